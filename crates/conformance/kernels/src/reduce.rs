//! Sums and maxima over a warp.

use cuda_std::prelude::*;

/// Words that a thread writes.
pub const NUM_VALUES: u32 = 4;

/// Each thread writes the maxima over its warp of the words `x` as u32, as i32 and as f32, and the
/// sum of `terms`: `x` and `terms` are `[num_threads]`, `out` `[num_threads, NUM_VALUES]`.
///
/// # Safety
/// 1. The views have these lengths, in whole warps.
#[kernel(launch_bounds(64))]
pub unsafe fn reduce_b32(x: Global<u32>, terms: Global<f32>, out: GlobalMut<u32>) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element and `NUM_VALUES` words per thread.
    unsafe {
        let word = x.get(i);
        let values = [
            warp::reduce_max(word),
            warp::reduce_max(word as i32) as u32,
            warp::reduce_max(f32::from_bits(word)).to_bits(),
            warp::reduce_add(terms.get(i)).to_bits(),
        ];
        unroll!(at in 0..NUM_VALUES as usize, {
            out.set(i * NUM_VALUES as usize + at, values[at]);
        });
    }
}
