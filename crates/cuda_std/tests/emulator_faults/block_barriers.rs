//! Barriers of a block: missing, in divergent code, with a wrong number or count.

use cuda_std::prelude::*;
use simt::FaultKind;

use super::NO_FAULT;
use super::planted::{
    assert_found, assert_right, geometry, is_deadlock, is_invalid, is_unordered, run,
};

const THREADS: u32 = 64;

const NO_BARRIER: u32 = 1;
const HALVES_APART: u32 = 2;
const ONE_ASTRAY: u32 = 3;

/// Reverses `x` through shared memory.
#[kernel(
    launch_bounds(THREADS),
    instances(
        reverse = <NO_FAULT>,
        reverse_without_barrier = <NO_BARRIER>,
        reverse_in_divergent_code = <HALVES_APART>,
        reverse_one_astray = <ONE_ASTRAY>
    )
)]
unsafe fn reverse_f32<const FAULT: u32>(x: Global<f32>, out: GlobalMut<f32>) {
    let i = thread::thread_idx_x();
    // SAFETY: 64 elements each.
    unsafe {
        let smem = shared_array![f32; THREADS as usize];
        smem.set(i, x.get(i as usize));
        if FAULT == HALVES_APART && i % 32 < 16 {
            thread::sync_threads(); // of the lower half
        } else if FAULT == ONE_ASTRAY && i == 3 {
            warp::sync_warp();
        } else if FAULT != NO_BARRIER {
            thread::sync_threads();
        }
        out.set(i as usize, smem.get(THREADS - 1 - i));
    }
}

#[test]
fn a_barrier_of_the_block() {
    use reverse_f32::Instance;
    let reverse = |instance| {
        run(move |device| {
            let (x, out) = (device.numbers("x", 64), device.out(64));
            reverse_f32::Args { x, out }.launch(instance, geometry(1, THREADS))
        })
    };
    assert_right(&reverse(Instance::reverse), |i| 63.0 - i as f32);
    let accesses = ["smem.set(", "smem.get("];
    let missing = reverse(Instance::reverse_without_barrier);
    assert_found(&missing, "reverse_without_barrier", &accesses, is_unordered);
    let report = assert_found(
        &reverse(Instance::reverse_in_divergent_code),
        "reverse_in_divergent_code",
        &["sync_threads();"],
        is_invalid("bar.sync in divergent code"),
    );
    assert!(report.contains("emulator_faults/block_barriers.rs:"), "{report}");
    let report = assert_found(
        &reverse(Instance::reverse_one_astray),
        "reverse_one_astray",
        &["sync_threads();", "sync_warp();"],
        is_deadlock,
    );
    assert!(report.contains("thread [3, 0, 0] of block [0, 0, 0]"), "{report}");
    assert!(report.contains("waits at bar.sync 0, which 63 of the 64 threads"), "{report}");
}

/// Lane 0 writes what the others read after a warp's barrier, or after a shuffle.
#[kernel(launch_bounds(THREADS), instances(warp_barrier = <true>, shuffle_alone = <false>))]
unsafe fn warp_sync_f32<const SYNC_WARP: bool>(out: GlobalMut<f32>) {
    let (i, warp_idx) = (thread::thread_idx_x(), warp::warp_idx());
    // SAFETY: two elements and 64.
    unsafe {
        let smem = shared_array![f32; 2];
        if warp::lane_id() == 0 {
            smem.set(warp_idx, 1.0);
        }
        if SYNC_WARP {
            warp::sync_warp();
        } else {
            warp::shuffle_xor(i, 1);
        }
        out.set(i as usize, smem.get(warp_idx));
    }
}

#[test]
fn a_shuffle_is_no_barrier() {
    use warp_sync_f32::Instance;
    let sync = |instance| {
        run(move |device| {
            warp_sync_f32::Args { out: device.out(64) }.launch(instance, geometry(1, THREADS))
        })
    };
    assert_right(&sync(Instance::warp_barrier), |_| 1.0);
    let is_race = |kind: &FaultKind| matches!(kind, FaultKind::Race { other_writes: true, .. });
    assert_found(&sync(Instance::shuffle_alone), "shuffle_alone", &["smem."], is_race);
}

const WRONG_COUNT: u32 = 1;
const WRONG_NUMBER: u32 = 2;
const NO_WAIT: u32 = 3;

/// Warp 0 writes and arrives, warp 1 waits and reads.
#[kernel(
    launch_bounds(THREADS),
    instances(
        hand_over = <NO_FAULT>,
        hand_over_wrong_count = <WRONG_COUNT>,
        hand_over_wrong_number = <WRONG_NUMBER>,
        hand_over_without_wait = <NO_WAIT>
    )
)]
unsafe fn hand_over_f32<const FAULT: u32>(out: GlobalMut<f32>) {
    let lane = warp::lane_id();
    // SAFETY: 32 elements each.
    unsafe {
        let smem = shared_array![f32; 32];
        if warp::warp_idx() == 0 {
            smem.set(lane, lane as f32);
            barrier::arrive::<1, 64>();
        } else {
            match FAULT {
                WRONG_COUNT => barrier::sync::<1, 96>(),
                WRONG_NUMBER => barrier::sync::<2, 64>(),
                NO_WAIT => (),
                _ => barrier::sync::<1, 64>(),
            }
            out.set(lane as usize, smem.get(31 - lane));
        }
    }
}

#[test]
fn a_named_barrier() {
    use hand_over_f32::Instance;
    let hand_over = |instance| {
        run(move |device| {
            hand_over_f32::Args { out: device.out(32) }.launch(instance, geometry(1, THREADS))
        })
    };
    assert_right(&hand_over(Instance::hand_over), |i| 31.0 - i as f32);
    let comes = ["barrier::arrive::<1, 64>", "barrier::sync::<1, 96>"];
    let wrong_count = hand_over(Instance::hand_over_wrong_count);
    // Either line may come second.
    let waits = is_invalid("name different thread counts");
    assert_found(&wrong_count, "hand_over_wrong_count", &comes, waits);
    let wrong_number = hand_over(Instance::hand_over_wrong_number);
    let lines = ["barrier::sync::<2, 64>"];
    let report = assert_found(&wrong_number, "hand_over_wrong_number", &lines, is_deadlock);
    assert!(report.contains("waits at bar.sync 2, which 32 of 64 threads have reached"));
    let accesses = ["smem.set(", "smem.get("];
    let missing = hand_over(Instance::hand_over_without_wait);
    assert_found(&missing, "hand_over_without_wait", &accesses, is_unordered);
}
