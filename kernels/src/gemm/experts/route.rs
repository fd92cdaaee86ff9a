//! The experts of a token: the `top_k` largest of its logits, and their weights, the softmax over
//! all of them.
//!
//! Shapes    logits `[num_tokens, num_experts]` f32, experts `[num_tokens, top_k]` u32, weights
//!           `[num_tokens, top_k]` f32, with row strides; at most 512 experts.
//! Launch    grid `(max_tokens / WARPS, 1, 1)`, block `(32 * WARPS, 1, 1)`: a warp a token.
//! Numerics  f32; the exponential is approximate, within 2 ulp. Of equal logits the lower index is
//!           the first; one that is NaN comes after all numbers.
//! Bound     latency: `top_k` times two reductions of a warp.

use super::group::MAX_EXPERTS;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;

/// Warps of a block.
pub const WARPS: u32 = 4;

/// Threads of a block.
pub const NUM_THREADS: u32 = WARPS * warp::WARP_SIZE;

/// Logits of a lane.
const LANE_LOGITS: usize = (MAX_EXPERTS / warp::WARP_SIZE) as usize;

/// A number for each logit, in their order: 0 is none, 1 NaN. Both zeros are one.
#[inline(always)]
fn key(logit: f32) -> u32 {
    if logit.is_nan() {
        return 1;
    }
    let bits = (logit + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// A warp a token.
///
/// # Safety
/// 1. `num_tokens` is one element; the matrices hold that many rows at their strides; `top_k` is at
///    most `num_experts`, and that at most [`MAX_EXPERTS`].
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn route_f32(
    num_tokens: Global<u32>,
    num_experts: u32,
    top_k: u32,
    normalise: u32,
    logits: Global<f32>,
    logits_stride: u32,
    experts: GlobalMut<u32>,
    experts_stride: u32,
    weights: GlobalMut<f32>,
    weights_stride: u32,
) {
    let lane = warp::lane_id();
    let token = thread::block_idx_x() * WARPS + warp::warp_idx();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if token >= num_tokens {
        return;
    }
    // SAFETY: the token exists, and each expert, by the checks.
    unsafe {
        let row = logits.add(token as usize * logits_stride as usize);
        let mut values = [f32::NEG_INFINITY; LANE_LOGITS];
        let mut keys = [0; LANE_LOGITS];
        for i in 0..LANE_LOGITS {
            let expert = i as u32 * warp::WARP_SIZE + lane;
            if expert < num_experts {
                values[i] = row.get(expert as usize);
                keys[i] = key(values[i]);
            }
        }
        let mut max = f32::NEG_INFINITY;
        for i in 0..LANE_LOGITS {
            max = math::max(max, values[i]);
        }
        let max = warp::reduce_max(max);
        let mut total = 0.0;
        for i in 0..LANE_LOGITS {
            if keys[i] > 0 {
                total += math::exp2_approx((values[i] - max) * LOG2_E);
            }
        }
        let total = warp::reduce_add(total);

        let (experts_at, weights_at) =
            (token as usize * experts_stride as usize, token as usize * weights_stride as usize);
        let mut sum = 0.0;
        for choice in 0..top_k {
            let mut largest = 0;
            for i in 0..LANE_LOGITS {
                largest = largest.max(keys[i]);
            }
            let largest = warp::redux_max_u32(warp::FULL_MASK, largest);
            let (mut expert, mut logit) = (u32::MAX, 0.0);
            for i in 0..LANE_LOGITS {
                if keys[i] == largest && expert == u32::MAX {
                    (expert, logit) = (i as u32 * warp::WARP_SIZE + lane, values[i]);
                }
            }
            let chosen = warp::redux_min_u32(warp::FULL_MASK, expert);
            let logit = warp::shuffle_idx(logit, chosen % warp::WARP_SIZE);
            for i in 0..LANE_LOGITS {
                if i as u32 * warp::WARP_SIZE + lane == chosen {
                    keys[i] = 0;
                }
            }
            let weight = math::exp2_approx((logit - max) * LOG2_E) / total;
            sum += weight;
            if lane == 0 {
                experts.set(experts_at + choice as usize, chosen);
                weights.set(weights_at + choice as usize, weight);
            }
        }
        if normalise != 0 && lane == 0 {
            let weights = weights.add(weights_at);
            for choice in 0..top_k as usize {
                weights.set(choice, weights.get(choice) / sum);
            }
        }
    }
}
