//! Instructions of a warp on the emulator: lanes meet and exchange words.

use super::{WARP_SIZE, lane_id};
use simt::device::collective;

/// Checks that `mask` contains the calling lane; otherwise the instruction is undefined.
///
/// # Panics
/// If it does not: a fault of the kernel.
#[track_caller]
pub(crate) fn check_membership(instruction: &str, mask: u32) {
    let lane = lane_id();
    assert!(
        mask >> lane & 1 == 1,
        "lane {lane} calls {instruction} with the mask {mask:#010x}, which does not contain it"
    );
}

/// The `value` of lane `from`.
#[track_caller]
pub(super) fn shuffle(instruction: &'static str, mask: u32, value: u32, from: u32) -> u32 {
    check_membership(instruction, mask);
    assert!(
        mask >> from & 1 == 1,
        "lane {} reads lane {from} by {instruction}, whose mask {mask:#010x} does not contain it",
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

/// The lanes of `mask` whose `value` equals the calling lane's.
#[track_caller]
pub(super) fn match_any(instruction: &'static str, mask: u32, value: u32) -> u32 {
    check_membership(instruction, mask);
    let [equal, ..] = collective(instruction, mask, &[value], |lanes| {
        let values = lanes.map(|[value, ..]| value);
        for lane in lanes {
            let value = lane[0];
            lane[0] = lanes_of(mask).filter(|&other| values[other] == value).map(|b| 1 << b).sum();
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
        let result = lanes_of(mask).map(|lane| lanes[lane][0]).reduce(op);
        lanes.iter_mut().for_each(|lane| lane[0] = result.unwrap_or_default());
    });
    result
}

/// The lanes of `mask`.
fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    (0..WARP_SIZE as usize).filter(move |lane| mask >> lane & 1 == 1)
}
