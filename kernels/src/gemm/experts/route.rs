//! The experts of a token: those with the `top_k` largest scores, and their weights. Scores are the
//! softmax of its logits, or their sigmoids; by those, experts are chosen with a bias added, of the
//! groups of experts that have the largest sums of two. After them a token may go to a shared expert,
//! with the sigmoid of a logit after the others or as a whole.
//!
//! Shapes    logits `[num_tokens, num_experts]` f32, experts `[num_tokens, top_k]` u32, weights
//!           `[num_tokens, top_k]` f32, with row strides; bias `[num_experts]` f32; at most 512
//!           experts and 32 groups.
//! Launch    grid `(max_tokens / WARPS, 1, 1)`, block `(32 * WARPS, 1, 1)`: a warp a token.
//! Numerics  f32; the exponential is approximate, within 2 ulp. Of equal scores the lower index is
//!           the first; one that is NaN comes after all numbers.
//! Bound     latency: `top_k` times two reductions of a warp.

use crate::sigmoid_gate::sigmoid;
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;

/// Warps of a block.
pub const WARPS: u32 = 4;

/// Threads of a block.
pub const NUM_THREADS: u32 = WARPS * warp::WARP_SIZE;

/// A number for each logit, in their order: 0 is none, 1 NaN. Both zeros are one.
#[inline(always)]
fn key(logit: f32) -> u32 {
    if logit.is_nan() {
        return 1;
    }
    let bits = (logit + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

/// Adds the two best scores of each group of `of_group` experts, and makes minus infinity what is of
/// no chosen group: those with the `top_k` largest sums, of equal ones that of the lower index.
#[inline(always)]
fn leave_out_groups<const N: usize>(
    scores: &mut [f32; N],
    [count, top_k]: [u32; 2],
    of_group: u32,
) {
    let lane = warp::lane_id();
    let mut own = f32::NEG_INFINITY;
    for group in 0..count {
        let mut keys = [0; N];
        for i in 0..N {
            let expert = i as u32 * warp::WARP_SIZE + lane;
            let is_in_group = expert.wrapping_sub(group * of_group) < of_group;
            keys[i] = if is_in_group { key(scores[i]) } else { 0 };
        }
        let (_, best) = take_largest(&mut keys, scores);
        let (_, second) = take_largest(&mut keys, scores);
        own = if lane == group { best + second } else { own };
    }
    let own_key = if lane < count { key(own) } else { 0 };
    let mut rank = 0;
    for other in 0..count {
        let key = warp::shuffle_idx(own_key, other);
        rank += u32::from(key > own_key || key == own_key && other < lane);
    }
    let chosen = warp::ballot(warp::FULL_MASK, lane < count && rank < top_k);
    for i in 0..N {
        let group = (i as u32 * warp::WARP_SIZE + lane) / of_group.max(1);
        if group < count && chosen >> group & 1 == 0 {
            scores[i] = f32::NEG_INFINITY;
        }
    }
}

/// The expert with the largest key, of equal ones the first, whose key becomes 0, and its value.
#[inline(always)]
fn take_largest<const N: usize>(keys: &mut [u32; N], values: &[f32; N]) -> (u32, f32) {
    let lane = warp::lane_id();
    let mut largest = 0;
    for i in 0..N {
        largest = largest.max(keys[i]);
    }
    let largest = warp::redux_max_u32(warp::FULL_MASK, largest);
    let (mut expert, mut value) = (u32::MAX, 0.0);
    for i in 0..N {
        if keys[i] == largest && expert == u32::MAX {
            (expert, value) = (i as u32 * warp::WARP_SIZE + lane, values[i]);
        }
    }
    let chosen = warp::redux_min_u32(warp::FULL_MASK, expert);
    for i in 0..N {
        if i as u32 * warp::WARP_SIZE + lane == chosen {
            keys[i] = 0;
        }
    }
    (chosen, warp::shuffle_idx(value, chosen % warp::WARP_SIZE))
}

/// Whether there is a shared expert: 0, 1 for one as a whole, 2 for one with a gate.
#[derive(Clone, Copy)]
pub(super) struct SharedArg(pub u32);

impl SharedArg {
    pub(super) fn is_there(self) -> bool {
        self.0 != 0
    }

    pub(super) fn has_gate(self) -> bool {
        self.0 == 2
    }
}

/// How experts are chosen.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub num_experts: u32,
    pub top_k: u32,
    pub normalise: u32,
    pub scale: f32,
    pub bias: Global<f32>,
    pub num_groups: u32,
    pub top_groups: u32,
    pub shared: SharedArg,
}

/// Writes the experts of a token, of up to `32 * N`, and their weights. The whole warp calls
/// this.
///
/// # Safety
/// 1. `logits` holds `num_experts` elements, at most `32 * N`, and one more for the gate of a shared
///    expert; `experts` and `weights` hold `top_k`, at most `num_experts`, and one more for a shared
///    expert, which no other warp reads or writes.
/// 2. `bias` holds an element an expert, or is null: scores are then a softmax. `num_groups`, at
///    most 32, divides `num_experts`.
#[inline(always)]
pub(super) unsafe fn choose<const N: usize>(
    choice: Choice,
    logits: Global<f32>,
    experts: GlobalMut<u32>,
    weights: GlobalMut<f32>,
) {
    let Choice { num_experts, top_k, normalise, scale, bias, shared, .. } = choice;
    let lane = warp::lane_id();
    // SAFETY: each expert is inside, by the checks.
    unsafe {
        let is_softmax = bias.is_null();
        let gate = if shared.has_gate() { logits.get(num_experts as usize) } else { 0.0 };
        let mut scores = [f32::NEG_INFINITY; N];
        let mut biases = [0.0; N];
        for i in 0..N {
            let expert = i as u32 * warp::WARP_SIZE + lane;
            if expert < num_experts {
                scores[i] = logits.get(expert as usize);
                biases[i] = if is_softmax { 0.0 } else { bias.get(expert as usize) };
            }
        }

        // 1. The scores, and what experts are chosen by.
        let mut choice_scores = scores;
        if is_softmax {
            let mut max = f32::NEG_INFINITY;
            for i in 0..N {
                max = math::max(max, scores[i]);
            }
            let max = warp::reduce_max(max);
            let mut total = 0.0;
            for i in 0..N {
                let exists = i as u32 * warp::WARP_SIZE + lane < num_experts;
                scores[i] = math::exp2_approx((scores[i] - max) * LOG2_E);
                total += if exists { scores[i] } else { 0.0 };
            }
            let total = warp::reduce_add(total);
            for i in 0..N {
                scores[i] /= total;
            }
        } else {
            for i in 0..N {
                scores[i] = 1.0 / (1.0 + math::exp2_approx(-scores[i] * LOG2_E));
                choice_scores[i] = scores[i] + biases[i];
            }
            let Choice { num_groups, top_groups, .. } = choice;
            if num_groups > 1 {
                let groups = [num_groups, top_groups];
                leave_out_groups(&mut choice_scores, groups, num_experts / num_groups);
            }
        }
        let mut keys = [0; N];
        for i in 0..N {
            let exists = i as u32 * warp::WARP_SIZE + lane < num_experts;
            keys[i] = if exists { key(choice_scores[i]) } else { 0 };
        }

        // 2. The largest, one after the other; lane `i` stores every 32nd from the `i`-th on.
        let mut sum = 0.0;
        let mut own_weight = 0.0;
        for choice in 0..top_k {
            let (expert, weight) = take_largest(&mut keys, &scores);
            sum += weight;
            if choice % warp::WARP_SIZE == lane {
                own_weight = weight;
                experts.set(choice as usize, expert);
                if top_k > warp::WARP_SIZE {
                    weights.set(choice as usize, weight);
                }
            }
        }

        // 3. Their weights, which are the lane's own if there are no more than lanes.
        // All sigmoids may be zeros.
        let sum = if is_softmax { sum } else { sum + 1e-20 };
        let divisor = if normalise != 0 { sum } else { 1.0 };
        let mut choice = lane;
        while choice < top_k {
            if top_k > warp::WARP_SIZE {
                own_weight = weights.get(choice as usize);
            }
            weights.set(choice as usize, own_weight / divisor * scale);
            choice += warp::WARP_SIZE;
        }
        if shared.is_there() && lane == 0 {
            let weight = if shared.has_gate() { sigmoid(gate) } else { 1.0 };
            experts.set(top_k as usize, num_experts);
            weights.set(top_k as usize, weight);
        }
    }
}

/// A warp a token, of up to `32 * N` experts.
///
/// # Safety
/// 1. `num_tokens` is one element; the matrices hold that many rows at their strides.
/// 2. The rest is as `choose` requires.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(route_f32_e128 = <4>, route_f32_e256 = <8>, route_f32_e512 = <16>)
)]
pub unsafe fn route_f32<const N: usize>(
    num_tokens: Global<u32>,
    num_experts: u32,
    top_k: u32,
    normalise: u32,
    scale: f32,
    bias: Global<f32>,
    num_groups: u32,
    top_groups: u32,
    shared: u32,
    logits: Global<f32>,
    logits_stride: u32,
    experts: GlobalMut<u32>,
    experts_stride: u32,
    weights: GlobalMut<f32>,
    weights_stride: u32,
) {
    let token = thread::block_idx_x() * WARPS + warp::warp_idx();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_tokens = unsafe { num_tokens.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if token >= num_tokens {
        return;
    }
    let shared = SharedArg(shared);
    let choice =
        Choice { num_experts, top_k, normalise, scale, bias, num_groups, top_groups, shared };
    // SAFETY: the token exists, by the check.
    unsafe {
        choose::<N>(
            choice,
            logits.add(token as usize * logits_stride as usize),
            experts.add(token as usize * experts_stride as usize),
            weights.add(token as usize * weights_stride as usize),
        );
    }
}
