//! mbarriers with a wrong count, or with arrivals that come too early or are missing.

use cuda_std::prelude::*;
use simt::FaultKind;

use super::NO_FAULT;
use super::planted::{
    assert_found, assert_right, geometry, is_deadlock, is_invalid, is_unordered, run,
};

const NUM_STAGES: u32 = 2;
const ROUNDS: u32 = 5;

const COUNT_TOO_SMALL: u32 = 1;
const COUNT_TOO_LARGE: u32 = 2;
const ARRIVES_FIRST: u32 = 3;
const NO_INIT: u32 = 4;
const INIT_NOT_SEEN: u32 = 5;
const NO_FULL_WAIT: u32 = 6;
const NO_EMPTY_WAIT: u32 = 7;

/// Each lane of warp 0 passes a number to warp 1, through stages with full and empty mbarriers.
#[kernel(
    launch_bounds(64),
    instances(
        ring = <NO_FAULT>,
        ring_count_too_small = <COUNT_TOO_SMALL>,
        ring_count_too_large = <COUNT_TOO_LARGE>,
        ring_arrives_first = <ARRIVES_FIRST>,
        ring_without_init = <NO_INIT>,
        ring_init_not_seen = <INIT_NOT_SEEN>,
        ring_reads_early = <NO_FULL_WAIT>,
        ring_writes_early = <NO_EMPTY_WAIT>
    )
)]
unsafe fn pass_f32<const FAULT: u32>(out: GlobalMut<f32>) {
    let lane = warp::lane_id();
    // SAFETY: 32 elements and two barriers a stage, 32 elements a round.
    unsafe {
        let full = Mbarrier::new(shared_array![u64; NUM_STAGES as usize]);
        let empty = Mbarrier::new(shared_array![u64; NUM_STAGES as usize]);
        let smem: Shared<f32> = dynamic_shared_mem();
        let num_producers = match FAULT {
            COUNT_TOO_SMALL => 31,
            COUNT_TOO_LARGE => 33,
            _ => 32,
        };
        if thread::thread_idx_x() == 0 {
            for stage in 0..NUM_STAGES {
                if FAULT != NO_INIT {
                    full.offset(stage).init(num_producers);
                }
                empty.offset(stage).init(32);
            }
        }
        if FAULT != INIT_NOT_SEEN {
            thread::sync_threads();
        }
        for round in 0..ROUNDS {
            let (stage, phase) = (round % NUM_STAGES, round / NUM_STAGES % 2);
            let (full, empty) = (full.offset(stage), empty.offset(stage));
            let slots = smem.offset(32 * stage);
            if warp::warp_idx() == 0 {
                if FAULT != NO_EMPTY_WAIT {
                    empty.wait(phase ^ 1);
                }
                if FAULT == ARRIVES_FIRST {
                    full.arrive();
                }
                slots.set(lane, (32 * round + lane) as f32);
                if FAULT != ARRIVES_FIRST {
                    full.arrive();
                }
            } else {
                if FAULT != NO_FULL_WAIT {
                    full.wait(phase);
                }
                let number = slots.get(31 - lane);
                empty.arrive();
                out.set((32 * round + lane) as usize, number);
            }
        }
    }
}

#[test]
fn a_ring_of_stages() {
    use pass_f32::Instance;
    let pass = |instance| {
        run(move |device| {
            pass_f32::Args { out: device.out(32 * ROUNDS as usize) }
                .launch(instance, geometry(1, 64))
        })
    };
    assert_right(&pass(Instance::ring), |i| (i / 32 * 32 + 31 - i % 32) as f32);
    // The last producer of a phase is not waited for.
    let accesses = ["slots.set(", "slots.get("];
    let small = pass(Instance::ring_count_too_small);
    let report = assert_found(&small, "ring_count_too_small", &accesses, is_unordered);
    assert!(report.contains("`dynamic shared memory` + "), "{report}");
    let large = pass(Instance::ring_count_too_large);
    let waits = [".wait("];
    let report = assert_found(&large, "ring_count_too_large", &waits, is_deadlock);
    assert!(report.contains("with 1 of 33 arrivals and 0 bytes missing"), "{report}");
    assert!(report.contains("phase parity 0 of the mbarrier at `shared array "), "{report}");
    let first = pass(Instance::ring_arrives_first);
    assert_found(&first, "ring_arrives_first", &accesses, is_unordered);
    let none = is_invalid("mbarrier.init makes one");
    let without = pass(Instance::ring_without_init);
    let barriers = ["full.arrive();", "full.wait(", "empty.wait(", ".init("];
    let report = assert_found(&without, "ring_without_init", &barriers, &none);
    assert!(report.contains("there is no mbarrier at `shared array "), "{report}");
    let not_seen = pass(Instance::ring_init_not_seen);
    assert_found(&not_seen, "ring_init_not_seen", &barriers, |kind| {
        none(kind) || matches!(kind, FaultKind::Race { .. })
    });
    let early = pass(Instance::ring_reads_early);
    assert_found(&early, "ring_reads_early", &accesses, is_unordered);
    // Or a producer arrives twice in a phase, and the consumer waits for one that has passed.
    let early = pass(Instance::ring_writes_early);
    let lines = [&accesses[..], &barriers[..]].concat();
    assert_found(&early, "ring_writes_early", &lines, |kind| {
        is_unordered(kind) || is_deadlock(kind)
    });
}

/// Arrives on an mbarrier, or on what was one.
#[kernel(launch_bounds(1), instances(arrives = <false>, arrives_after_inval = <true>))]
unsafe fn arrive_and_inval<const INVAL_FIRST: bool>() {
    // SAFETY: a word of shared memory.
    let barrier = unsafe { Mbarrier::new(dynamic_shared_mem()) };
    barrier.init(1);
    if INVAL_FIRST {
        barrier.inval();
    }
    barrier.arrive();
    if !INVAL_FIRST {
        barrier.inval();
    }
}

#[test]
fn an_mbarrier_that_is_no_longer_one() {
    use arrive_and_inval::Instance;
    let arrive =
        |instance| run(move |_| arrive_and_inval::Args {}.launch(instance, geometry(1, 1)));
    assert_right(&arrive(Instance::arrives), |_| unreachable!("there is no output"));
    let invalid = arrive(Instance::arrives_after_inval);
    let why = is_invalid("mbarrier.init makes one");
    assert_found(&invalid, "arrives_after_inval", &["barrier.arrive("], why);
}
