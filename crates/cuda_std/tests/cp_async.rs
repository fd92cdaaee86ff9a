//! Asynchronous copies of 16 bytes of any element, and waits for all but the newest groups.

use cuda_std::launch::{DevicePtr, Geometry, Launch};
use cuda_std::prelude::*;
use half::bf16;
use simt::{Fault, FaultKind, Init, Memory};

/// Groups of one copy each.
const GROUPS: u32 = 8;

/// Elements of a copy.
const LEN: usize = 8;

/// Copies one row per group, except for the last row; waits for all but `PENDING` groups, and
/// writes the rows of those that were waited for and of `TOO_MANY` more.
#[kernel(
    launch_bounds(1),
    instances(
        wait_0 = <0, 0>, wait_1 = <1, 0>, wait_2 = <2, 0>, wait_3 = <3, 0>, wait_4 = <4, 0>,
        wait_5 = <5, 0>, wait_6 = <6, 0>,
        read_1 = <1, 1>, read_2 = <2, 1>, read_3 = <3, 1>, read_4 = <4, 1>, read_5 = <5, 1>,
        read_6 = <6, 1>
    )
)]
unsafe fn copies<const PENDING: u32, const TOO_MANY: u32>(x: Global<bf16>, out: GlobalMut<bf16>) {
    // SAFETY: `GROUPS` rows of `LEN` elements; the last row is not read.
    unsafe {
        let smem = dynamic_shared_mem::<bf16>();
        for group in 0..GROUPS {
            let at = group * LEN as u32;
            cp_async::copy_vec::<LEN, _>(smem, at, x, at as usize, group < GROUPS - 1);
            cp_async::commit();
        }
        cp_async::wait(PENDING);
        for at in (0..(GROUPS - PENDING + TOO_MANY) * LEN as u32).step_by(LEN) {
            out.set_vec::<LEN>(at as usize, smem.get_vec::<LEN>(at));
        }
    }
}

/// Element `i` of the source.
fn element(i: usize) -> u16 {
    0x8000 | i as u16
}

/// The elements that a launch writes.
fn run(instance: copies::Instance, seed: u64) -> Result<Vec<u16>, Fault> {
    let len = (GROUPS - instance.pending()) as usize * LEN;
    let x: Vec<u8> =
        (0..(GROUPS as usize - 1) * LEN).flat_map(|i| element(i).to_le_bytes()).collect();
    let mut memory = Memory::new();
    let x = DevicePtr::new(memory.alloc("x", Init::Bytes(&x)));
    let out = memory.alloc("out", Init::Poisoned(2 * GROUPS as usize * LEN));
    let geometry = Geometry::new([1; 3], 1, 2 * GROUPS as usize * LEN).unwrap().unwrap();
    let launch: Launch = copies::Args { x, out: DevicePtr::new(out) }.launch(instance, geometry);
    launch.emulate(&mut memory, seed)?;
    let mut bytes = vec![0; 2 * len];
    memory.read(out, &mut bytes).unwrap();
    Ok(bytes.as_chunks::<2>().0.iter().map(|bits| u16::from_le_bytes(*bits)).collect())
}

#[test]
fn groups_that_were_waited_for_are_visible() {
    for &instance in copies::Instance::ALL.iter().filter(|instance| instance.too_many() == 0) {
        let pending = instance.pending();
        for seed in 0..10 {
            let got = run(instance, seed).unwrap_or_else(|fault| panic!("{pending}: {fault}"));
            let exists = |i| i < (GROUPS as usize - 1) * LEN;
            let want: Vec<u16> =
                (0..got.len()).map(|i| if exists(i) { element(i) } else { 0 }).collect();
            assert_eq!(got, want, "all but {pending} groups, seed {seed}");
        }
    }
}

#[test]
fn a_read_of_a_pending_group_is_a_fault() {
    for &instance in copies::Instance::ALL.iter().filter(|instance| instance.too_many() == 1) {
        let fault = run(instance, 0).expect_err("a read of a pending group");
        assert!(
            matches!(fault.kind, FaultKind::NotWaitedFor { writes: true, .. }),
            "all but {}: {fault}",
            instance.pending()
        );
    }
}
