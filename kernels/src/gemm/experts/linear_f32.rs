//! Linear layers of experts in f32: `out[t, i, n] = sum_k x[t, i, k] * weight[experts[t, i], n, k] (+ bias)`.
//!
//! Shapes    experts `[num_tokens, top_k]` u32; x `[num_tokens, k]`, or a row for each choice; weight
//!           `[num_experts, n, k]`; out `[num_tokens, top_k, n]`; f32, with strides.
//! Launch    grid `(max_tokens * top_k, n / COLUMNS, 1)`, block `(NUM_THREADS, 1, 1)`: a warp for
//!           `WARP_COLUMNS` columns of a choice.
//! Numerics  f32 FMAs; a lane takes every 32nd element of k, lanes are reduced as a tree.
//! Bound     memory. It is for tests and comparisons: each choice reads its expert.

use super::chunk::{NUM_THREADS, NUM_WARPS, offset};
use cuda_std::prelude::*;

/// Columns of a warp.
const WARP_COLUMNS: usize = 4;

/// Columns of a block.
pub const COLUMNS: u32 = NUM_WARPS * WARP_COLUMNS as u32;

/// Four columns of a choice a warp.
///
/// # Safety
/// 1. `num_tokens` is one element; `experts` holds that many rows of `top_k` experts of the weight;
///    `x` a row of `k` elements for each choice, and `out` one of `n`, at their strides, those of
///    tokens and of choices. `bias` is null, or holds `n` elements an expert.
/// 2. `out` overlaps nothing that is read.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn experts_f32(
    num_tokens: Global<u32>,
    top_k: u32,
    experts: Global<u32>,
    experts_stride: u32,
    n: u32,
    k: u32,
    x: Global<f32>,
    x_stride: u32,
    x_choice_stride: u32,
    weight: Global<f32>,
    bias: Global<f32>,
    out: GlobalMut<f32>,
    out_stride: u32,
    out_choice_stride: u32,
) {
    let (choice, lane) = (thread::block_idx_x(), warp::lane_id());
    let first = (thread::block_idx_y() * NUM_WARPS + warp::warp_idx()) * WARP_COLUMNS as u32;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if choice >= num_tokens * top_k || first >= n {
        return;
    }
    // SAFETY: the choice exists; columns past the last load the last one's row.
    unsafe {
        let expert = experts.get(offset(choice, top_k, [experts_stride, 1]));
        let x = x.add(offset(choice, top_k, [x_stride, x_choice_stride]));
        let mut sums = [0.0; WARP_COLUMNS];
        let mut column = lane;
        while column < k {
            let value = x.get(column as usize);
            for i in 0..WARP_COLUMNS {
                let row = expert as usize * n as usize + (first + i as u32).min(n - 1) as usize;
                let weight = weight.get(row * k as usize + column as usize);
                sums[i] = math::fma(value, weight, sums[i]);
            }
            column += warp::WARP_SIZE;
        }
        let out = out.add(offset(choice, top_k, [out_stride, out_choice_stride]));
        for i in 0..WARP_COLUMNS {
            let (mut sum, column) = (warp::reduce_add(sums[i]), first + i as u32);
            if lane == 0 && column < n {
                if !bias.is_null() {
                    sum += bias.get(expert as usize * n as usize + column as usize);
                }
                out.set(column as usize, sum);
            }
        }
    }
}
