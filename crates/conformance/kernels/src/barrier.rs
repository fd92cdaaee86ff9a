//! `bar.sync`: values pass through shared memory from thread to thread.

use cuda_std::prelude::*;

/// Threads of the block.
pub const NUM_THREADS: u32 = 256;

/// Times that every value is passed on.
pub const NUM_ROUNDS: u32 = 8;

/// In round `r` each thread takes the value of the thread `37 r + 1` further on, modulo the block;
/// `out[i] = x[i + sum_r (37 r + 1)]`.
///
/// # Safety
/// 1. One block; `x` and `out` are `[NUM_THREADS]`.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn barrier_rotate_u32(x: Global<u32>, out: GlobalMut<u32>) {
    let i = thread::thread_idx_x();
    // SAFETY: one element per thread; the barriers separate reads and writes of `values`.
    unsafe {
        let values = shared_array![u32; NUM_THREADS as usize];
        let mut value = x.get(i as usize);
        let mut round = 0;
        while round < NUM_ROUNDS {
            values.set(i, value);
            thread::sync_threads();
            value = values.get((i + 37 * round + 1) % NUM_THREADS);
            thread::sync_threads();
            round += 1;
        }
        out.set(i as usize, value);
    }
}
