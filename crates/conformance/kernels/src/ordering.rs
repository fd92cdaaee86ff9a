//! The order that atomic operations and fences impose on plain accesses of several blocks.

use cuda_std::atomic::{self, Order, Scope};
use cuda_std::prelude::*;

/// Times that a block takes the lock, or sends a message.
pub const NUM_ROUNDS: u32 = 5;

/// Threads of a block of [`ordering_last_block()`], and of [`ordering_messages()`].
pub const NUM_THREADS: u32 = 32;

/// Every block adds its index plus 1 to `sum`, by plain accesses, `NUM_ROUNDS` times, each time
/// holding a lock that `compare_exchange` takes with acquire and a store releases.
///
/// # Safety
/// 1. Blocks of one thread; `lock` is 0; `lock` and `sum` are one element.
#[kernel(launch_bounds(1))]
pub unsafe fn ordering_semaphore(lock: GlobalMut<u32>, sum: GlobalMut<u32>) {
    let mut round = 0;
    while round < NUM_ROUNDS {
        // SAFETY: `sum` is accessed only while the lock is held.
        unsafe {
            while lock.compare_exchange(0, (0, 1), Order::Acquire, Scope::Gpu).is_err() {
                atomic::nanosleep(100);
            }
            sum.set(0, sum.get(0) + thread::block_idx_x() + 1);
            lock.store_release(0, 0, Scope::Gpu);
        }
        round += 1;
    }
}

/// Every thread writes its element, rotated by a bit, to `parts`; the last block that increments
/// `arrived` adds up all of them, in order.
///
/// # Safety
/// 1. `x` and `parts` hold one element per thread; `arrived` is 0; `arrived` and `sum` are one
///    element.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn ordering_last_block(
    x: Global<u32>,
    parts: GlobalMut<u32>,
    arrived: GlobalMut<u32>,
    sum: GlobalMut<u32>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread; the last block reads what all blocks have released.
    unsafe {
        parts.set(i, x.get(i).rotate_left(1));
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            let before = arrived.fetch_add(0, 1, Order::AcqRel, Scope::Gpu);
            if before == thread::grid_dim_x() - 1 {
                let mut total = 0;
                let mut part = 0;
                while part < NUM_THREADS * thread::grid_dim_x() {
                    total = parts.get(part as usize).wrapping_add(3u32.wrapping_mul(total));
                    part += 1;
                }
                sum.set(0, total);
            }
        }
    }
}

/// Block 0 sends `NUM_ROUNDS` messages of one word per thread to block 1, which adds `1` to each
/// word: both order their plain accesses of `message` by fences around relaxed accesses of `turn`.
///
/// # Safety
/// 1. Two blocks; `turn` is one element, 0; `x` and `out` are `[NUM_ROUNDS, NUM_THREADS]`,
///    `message` `[NUM_THREADS]`.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn ordering_messages(
    x: Global<u32>,
    turn: GlobalMut<u32>,
    message: GlobalMut<u32>,
    out: GlobalMut<u32>,
) {
    let (t, block) = (thread::thread_idx_x() as usize, thread::block_idx_x());
    let mut round = 0;
    while round < NUM_ROUNDS {
        let at = round as usize * NUM_THREADS as usize + t;
        // SAFETY: a block accesses the message only in its turn.
        unsafe {
            if t == 0 {
                while turn.load_relaxed(0, Scope::Gpu) != 2 * round + block {
                    atomic::nanosleep(100);
                }
                atomic::fence(Scope::Gpu);
            }
            thread::sync_threads();
            if block == 0 {
                message.set(t, x.get(at));
            } else {
                out.set(at, message.get(t) + 1);
            }
            thread::sync_threads();
            if t == 0 {
                atomic::fence(Scope::Gpu);
                turn.store_relaxed(0, 2 * round + block + 1, Scope::Gpu);
            }
        }
        round += 1;
    }
}
