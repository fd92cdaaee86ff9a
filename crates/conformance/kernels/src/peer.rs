//! Lines that hold their flag, and accesses of system scope: between two blocks of one device, as a
//! case has one device.

use cuda_std::atomic::Scope;
use cuda_std::peer;
use cuda_std::prelude::*;

/// Messages that each block sends.
pub const NUM_ROUNDS: u32 = 5;

/// Threads of a block.
pub const NUM_THREADS: u32 = 64;

/// Every thread of block 0 sends two words to the thread of block 1, which sends back their rotated
/// sum and difference; `NUM_ROUNDS` times, each in lines of its own.
///
/// # Safety
/// 1. Two blocks; `x` and `out` are `[NUM_ROUNDS, NUM_THREADS, 2]`, `lines` `[2, NUM_ROUNDS,
///    NUM_THREADS]` lines of zeros.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn peer_lines(x: Global<u32>, lines: GlobalMut<u64>, out: GlobalMut<u32>) {
    let (t, block) = (thread::thread_idx_x(), thread::block_idx_x());
    let mut round = 0;
    while round < NUM_ROUNDS {
        let at = (round * NUM_THREADS + t) as usize;
        let back = at + (NUM_ROUNDS * NUM_THREADS) as usize;
        let flag = round + 1;
        // SAFETY: a line of each direction for every message.
        unsafe {
            if block == 0 {
                peer::store_flagged(lines, at, x.get_vec(2 * at), flag);
            }
            let own = if block == 0 { back } else { at };
            let [a, b] = loop {
                if let Some(data) = peer::load_flagged(lines, own, flag) {
                    break data;
                }
            };
            if block == 0 {
                out.set_vec(2 * at, [a, b]);
            } else {
                let data = [a.wrapping_add(b).rotate_left(1), a.wrapping_sub(b)];
                peer::store_flagged(lines, back, data, flag);
            }
        }
        round += 1;
    }
}

/// Each block writes its words by plain stores and releases a flag; it reads the other block's once
/// it has acquired that one's flag. System scope throughout.
///
/// # Safety
/// 1. Two blocks; `x`, `message` and `out` hold one element per thread, `flags` two of 0.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn peer_flags(
    x: Global<u32>,
    message: GlobalMut<u32>,
    flags: GlobalMut<u32>,
    out: GlobalMut<u32>,
) {
    let (t, block) = (thread::thread_idx_x(), thread::block_idx_x());
    let (own, other) = (block * NUM_THREADS + t, (1 - block) * NUM_THREADS + t);
    // SAFETY: one element per thread, and a flag per block.
    unsafe {
        message.set(own as usize, x.get(own as usize).rotate_left(1));
        thread::sync_threads();
        if t == 0 {
            flags.store_release(block as usize, 1, Scope::System);
            while flags.load_acquire(1 - block as usize, Scope::System) == 0 {}
        }
        thread::sync_threads();
        out.set(own as usize, message.get(other as usize));
    }
}
