//! `shfl.sync` over a whole warp.

use cuda_std::prelude::*;

/// Operands of a shuffle: of each, five bits count.
pub const NUM_OPERANDS: u32 = 2 * warp::WARP_SIZE;

/// Words that a thread writes: one per operand of two shuffles.
pub const NUM_VALUES: u32 = 2 * NUM_OPERANDS;

/// An operand: one for the whole warp below 32, from there on a different one for each lane.
#[inline(always)]
#[track_caller]
fn of_lane(operand: u32) -> u32 {
    operand + operand / warp::WARP_SIZE * warp::lane_id()
}

/// Each lane writes the value of lane `lane_id ^ mask` and of lane `of_lane(mask)`, for every mask:
/// `x` is `[num_threads]`, `out` `[num_threads, NUM_VALUES]`.
///
/// # Safety
/// 1. `x` and `out` have these lengths, in whole warps.
#[kernel(launch_bounds(64))]
pub unsafe fn shuffle_b32(x: Global<u32>, out: GlobalMut<u32>) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element and `NUM_VALUES` words per thread.
    unsafe {
        let word = x.get(i);
        let value = f32::from_bits(word);
        let mut mask = 0;
        while mask < NUM_OPERANDS {
            let at = i * NUM_VALUES as usize + mask as usize;
            let xor = if mask.is_multiple_of(2) {
                warp::shuffle_xor(word, mask)
            } else {
                warp::shuffle_xor(value, mask).to_bits()
            };
            out.set(at, xor);
            let idx = warp::shuffle_idx(value, of_lane(mask)).to_bits();
            out.set(at + NUM_OPERANDS as usize, idx);
            mask += 1;
        }
    }
}

/// Each lane writes the values of the lanes `of_lane(delta)` below and above it, for every `delta`:
/// `x` is `[num_threads]`, `out` `[num_threads, NUM_VALUES]`.
///
/// # Safety
/// 1. `x` and `out` have these lengths, in whole warps.
#[kernel(launch_bounds(64))]
pub unsafe fn shuffle_up_down_b32(x: Global<u32>, out: GlobalMut<u32>) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element and `NUM_VALUES` words per thread.
    unsafe {
        let word = x.get(i);
        let mut delta = 0;
        while delta < NUM_OPERANDS {
            let at = i * NUM_VALUES as usize + delta as usize;
            out.set(at, warp::shuffle_up(word, of_lane(delta)));
            out.set(at + NUM_OPERANDS as usize, warp::shuffle_down(word, of_lane(delta)));
            delta += 1;
        }
    }
}
