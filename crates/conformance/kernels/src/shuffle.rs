//! `shfl.sync` over a whole warp.

use cuda_std::prelude::*;

/// Words that a thread writes: one value per lane mask, then one per lane.
pub const NUM_VALUES: u32 = 2 * warp::WARP_SIZE;

/// Each lane writes the value of lane `lane_id ^ mask` and of lane `mask`, for every mask:
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
        while mask < warp::WARP_SIZE {
            let at = i * NUM_VALUES as usize + mask as usize;
            let xor = if mask.is_multiple_of(2) {
                warp::shuffle_xor(word, mask)
            } else {
                warp::shuffle_xor(value, mask).to_bits()
            };
            out.set(at, xor);
            out.set(at + warp::WARP_SIZE as usize, warp::shuffle_idx(value, mask).to_bits());
            mask += 1;
        }
    }
}

/// Each lane writes the values of the lanes `delta` below and `delta` above it, for every `delta`:
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
        while delta < warp::WARP_SIZE {
            let at = i * NUM_VALUES as usize + delta as usize;
            out.set(at, warp::shuffle_up(word, delta));
            out.set(at + warp::WARP_SIZE as usize, warp::shuffle_down(word, delta));
            delta += 1;
        }
    }
}
