//! Split-K: blocks write partial sums to global memory, and the last one to increment a semaphore
//! adds them.

use cuda_std::atomic::{Order, Scope};
use cuda_std::prelude::*;
use simt::FaultKind;

use super::NO_FAULT;
use super::planted::{assert_found, assert_right, geometry, run};

const THREADS: u32 = 32;
const BLOCKS: u32 = 4;

const FENCES: u32 = 1;
const NO_FENCES: u32 = 2;
const NO_RELEASE: u32 = 3;
const NO_ACQUIRE: u32 = 4;
const BLOCK_SCOPE: u32 = 5;
const NO_BARRIER: u32 = 6;

/// Adds one number of each thread of each block.
#[kernel(
    launch_bounds(THREADS),
    instances(
        split = <NO_FAULT>,
        split_by_fences = <FENCES>,
        split_without_fences = <NO_FENCES>,
        split_without_release = <NO_RELEASE>,
        split_without_acquire = <NO_ACQUIRE>,
        split_in_block_scope = <BLOCK_SCOPE>,
        split_without_barrier = <NO_BARRIER>
    )
)]
unsafe fn split_sum<const FAULT: u32>(
    semaphore: GlobalMut<u32>,
    parts: GlobalMut<f32>,
    out: GlobalMut<f32>,
) {
    let i = thread::thread_idx_x();
    let order = match FAULT {
        FENCES | NO_FENCES => Order::Relaxed,
        NO_RELEASE => Order::Acquire,
        NO_ACQUIRE => Order::Release,
        _ => Order::AcqRel,
    };
    let scope = if FAULT == BLOCK_SCOPE { Scope::Block } else { Scope::Gpu };
    // SAFETY: a counter, a partial sum for each thread of each block, and an output for each
    // thread.
    unsafe {
        let is_last = shared_array![u32; 1];
        parts.set(thread::index_1d() as usize, (i * thread::block_idx_x()) as f32);
        if FAULT != NO_BARRIER {
            thread::sync_threads();
        }
        if i == 0 {
            if FAULT == FENCES {
                atomic::fence(Scope::Gpu);
            }
            let before = semaphore.fetch_add(0, 1, order, scope);
            if FAULT == FENCES {
                atomic::fence(Scope::Gpu);
            }
            is_last.set(0, u32::from(before == BLOCKS - 1));
        }
        thread::sync_threads();
        if is_last.get(0) == 1 {
            let part = |block| parts.get((THREADS * block + i) as usize);
            out.set(i as usize, (0..BLOCKS).map(part).sum());
        }
    }
}

#[test]
fn a_semaphore_of_blocks() {
    use split_sum::Instance;
    let sum = |instance| {
        run(move |device| {
            let semaphore = device.zeros("semaphore", 1);
            let parts = device.zeros("parts", (THREADS * BLOCKS) as usize);
            split_sum::Args { semaphore, parts, out: device.out(32) }
                .launch(instance, geometry(BLOCKS, THREADS))
        })
    };
    for right in [Instance::split, Instance::split_by_fences] {
        assert_right(&sum(right), |i| 6.0 * i as f32);
    }
    let is_race = |kind: &FaultKind| matches!(kind, FaultKind::Race { other_writes: true, .. });
    for (instance, symbol) in [
        (Instance::split_without_fences, "split_without_fences"),
        (Instance::split_without_release, "split_without_release"),
        (Instance::split_without_acquire, "split_without_acquire"),
    ] {
        let report = assert_found(&sum(instance), symbol, &["parts."], is_race);
        assert!(report.contains("reads 4 bytes at `parts` + "), "{report}");
    }
    // Thread 0 releases before the others have written.
    let early = sum(Instance::split_without_barrier);
    let is_race = |kind: &FaultKind| matches!(kind, FaultKind::Race { .. });
    assert_found(&early, "split_without_barrier", &["parts."], is_race);
    // The counter itself is atomic only among the threads of one block.
    let scope = sum(Instance::split_in_block_scope);
    let report = assert_found(&scope, "split_in_block_scope", &["semaphore.fetch_add("], is_race);
    assert!(report.contains("`semaphore` + 0 (of 4)"), "{report}");
}

/// Block 0 sets a flag after its message; the others wait for the flag and read the message.
#[kernel(
    launch_bounds(1),
    instances(
        pass = <NO_FAULT>,
        pass_by_fences = <FENCES>,
        pass_without_fences = <NO_FENCES>,
        pass_without_release = <NO_RELEASE>,
        pass_without_acquire = <NO_ACQUIRE>,
        pass_in_block_scope = <BLOCK_SCOPE>
    )
)]
unsafe fn pass_message<const FAULT: u32>(
    flag: GlobalMut<u32>,
    message: GlobalMut<f32>,
    out: GlobalMut<f32>,
) {
    let scope = if FAULT == BLOCK_SCOPE { Scope::Block } else { Scope::Gpu };
    let fence = || {
        if FAULT == FENCES {
            atomic::fence(Scope::Gpu);
        }
    };
    // SAFETY: a flag, a message, and an output for each block.
    unsafe {
        if thread::block_idx_x() == 0 {
            message.set(0, 42.0);
            fence();
            if matches!(FAULT, FENCES | NO_FENCES | NO_RELEASE) {
                flag.store_relaxed(0, 1, scope);
            } else {
                flag.store_release(0, 1, scope);
            }
        } else {
            let is_relaxed = matches!(FAULT, FENCES | NO_FENCES | NO_ACQUIRE);
            let load = || match is_relaxed {
                true => flag.load_relaxed(0, scope),
                false => flag.load_acquire(0, scope),
            };
            while load() == 0 {
                atomic::nanosleep(100);
            }
            fence();
        }
        out.set(thread::block_idx_x() as usize, message.get(0));
    }
}

#[test]
fn a_flag_of_a_message() {
    use pass_message::Instance;
    let pass = |instance| {
        run(move |device| {
            let (flag, message) = (device.zeros("flag", 1), device.zeros("message", 1));
            pass_message::Args { flag, message, out: device.out(BLOCKS as usize) }
                .launch(instance, geometry(BLOCKS, 1))
        })
    };
    let is_race = |kind: &FaultKind| matches!(kind, FaultKind::Race { .. });
    for &instance in Instance::ALL {
        match instance {
            Instance::pass | Instance::pass_by_fences => assert_right(&pass(instance), |_| 42.0),
            wrong => {
                let lines = ["message.", "flag."];
                assert_found(&pass(wrong), wrong.symbol(), &lines, is_race);
            }
        }
    }
}
