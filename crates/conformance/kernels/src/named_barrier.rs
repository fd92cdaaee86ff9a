//! `bar.sync` and `bar.arrive` on named barriers: two warps fill buffers that two others read.

use cuda_std::prelude::*;

/// Producer threads, and consumer threads.
pub const NUM_PRODUCERS: u32 = 64;

/// Threads of the block.
pub const NUM_THREADS: u32 = 2 * NUM_PRODUCERS;

/// Rounds over both buffers.
pub const NUM_ROUNDS: u32 = 5;

/// The barriers of the two buffers: full, and empty.
const FULL: [u32; 2] = [1, 2];
const EMPTY: [u32; 2] = [3, 4];

/// Every value of `x` passes through a buffer to the consumer at the mirrored index, which doubles
/// it: `x` and `out` are `[NUM_ROUNDS, 2, NUM_PRODUCERS]`.
///
/// # Safety
/// 1. One block; the views have these lengths.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn named_barrier_u32(x: Global<u32>, out: GlobalMut<u32>) {
    // SAFETY: only producers access a buffer between its barriers "empty" and "full", and only
    // consumers between "full" and "empty".
    unsafe {
        let smem = shared_array![u32; 2 * NUM_PRODUCERS as usize];
        let (first, second) = (smem, smem.offset(NUM_PRODUCERS));
        let is_producer = thread::thread_idx_x() < NUM_PRODUCERS;
        let mut round = 0;
        while round < NUM_ROUNDS {
            let at = (2 * round * NUM_PRODUCERS) as usize;
            if is_producer {
                fill::<{ FULL[0] }, { EMPTY[0] }>(first, x, at, round > 0);
                fill::<{ FULL[1] }, { EMPTY[1] }>(
                    second,
                    x,
                    at + NUM_PRODUCERS as usize,
                    round > 0,
                );
            } else {
                let is_last = round + 1 == NUM_ROUNDS;
                drain::<{ FULL[0] }, { EMPTY[0] }>(first, out, at, is_last);
                drain::<{ FULL[1] }, { EMPTY[1] }>(
                    second,
                    out,
                    at + NUM_PRODUCERS as usize,
                    is_last,
                );
            }
            round += 1;
        }
    }
}

/// Fills a buffer, after waiting until it is empty unless it was never full.
///
/// # Safety
/// 1. The producers call it; `x` holds `NUM_PRODUCERS` values from `at` on.
#[inline(always)]
#[track_caller]
unsafe fn fill<const FULL: u32, const EMPTY: u32>(
    buffer: Shared<u32>,
    x: Global<u32>,
    at: usize,
    was_full: bool,
) {
    let t = thread::thread_idx_x();
    if was_full {
        barrier::sync::<EMPTY, NUM_THREADS>();
    }
    // SAFETY: the buffer is empty, and each thread writes its own element.
    unsafe { buffer.set(t, x.get(at + t as usize)) };
    barrier::arrive::<FULL, NUM_THREADS>();
}

/// Reads a buffer once it is full, and arrives on "empty" if it is filled again.
///
/// # Safety
/// 1. The consumers call it; `out` has room for `NUM_PRODUCERS` values from `at` on.
#[inline(always)]
#[track_caller]
unsafe fn drain<const FULL: u32, const EMPTY: u32>(
    buffer: Shared<u32>,
    out: GlobalMut<u32>,
    at: usize,
    is_last: bool,
) {
    let t = thread::thread_idx_x() - NUM_PRODUCERS;
    barrier::sync::<FULL, NUM_THREADS>();
    // SAFETY: the buffer is full; one element of `out` per thread.
    unsafe { out.set(at + t as usize, 2 * buffer.get(NUM_PRODUCERS - 1 - t)) };
    if !is_last {
        barrier::arrive::<EMPTY, NUM_THREADS>();
    }
}
