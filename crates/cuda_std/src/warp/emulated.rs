//! A warp's instructions on the host: lanes meet, and exchange words.

use super::{WARP_SIZE, lane_id};
use simt::device::collective;

/// The own lane is one of `mask`: what else an instruction does is not defined.
///
/// # Panics
/// If it is not: a fault of the kernel.
#[track_caller]
pub(crate) fn check_membership(instruction: &str, mask: u32) {
    let lane = lane_id();
    assert!(mask >> lane & 1 == 1, "lane {lane} calls {instruction} for lanes {mask:#010x}");
}

/// The `value` of lane `from`.
#[track_caller]
pub(super) fn shuffle(instruction: &'static str, mask: u32, value: u32, from: u32) -> u32 {
    check_membership(instruction, mask);
    assert!(
        mask >> from & 1 == 1,
        "lane {} reads lane {from} in {instruction} for lanes {mask:#010x}",
        lane_id()
    );
    let [got, ..] = collective(instruction, mask, &[value, from], |lanes| {
        let brought = *lanes;
        lanes.iter_mut().for_each(|lane| lane[0] = brought[lane[1] as usize][0]);
    });
    got
}

/// The lanes of `mask` whose `predicate` holds.
#[track_caller]
pub(super) fn ballot(instruction: &'static str, mask: u32, predicate: bool) -> u32 {
    redux(instruction, mask, u32::from(predicate) << lane_id(), |a, b| a | b)
}

/// The lanes of `mask` whose `value` is the own one.
#[track_caller]
pub(super) fn match_any(instruction: &'static str, mask: u32, value: u32) -> u32 {
    check_membership(instruction, mask);
    let [equal, ..] = collective(instruction, mask, &[value], |lanes| {
        let values = lanes.map(|[value, ..]| value);
        for lane in lanes {
            let value = lane[0];
            lane[0] = members(mask).filter(|&other| values[other] == value).map(|b| 1 << b).sum();
        }
    });
    equal
}

/// `op` over the `value`s of the lanes `mask`.
#[track_caller]
pub(super) fn redux(
    instruction: &'static str,
    mask: u32,
    value: u32,
    op: impl Fn(u32, u32) -> u32,
) -> u32 {
    check_membership(instruction, mask);
    let [result, ..] = collective(instruction, mask, &[value], |lanes| {
        let result = members(mask).map(|lane| lanes[lane][0]).reduce(op);
        lanes.iter_mut().for_each(|lane| lane[0] = result.unwrap_or_default());
    });
    result
}

/// The lanes of `mask`.
fn members(mask: u32) -> impl Iterator<Item = usize> {
    (0..WARP_SIZE as usize).filter(move |lane| mask >> lane & 1 == 1)
}
