//! RMSNorm, the linear layer of a router and the choice of experts, of few tokens: `normed[t] =
//! norm(x[t])`, `logits[t] = normed[t] weight^T (+ bias)`, then [`route`](super::route).
//!
//! Shapes    x `[num_tokens, k]` f32, normed `[num_tokens, k]` and weight `[num_experts, k]` f16 or
//!           bf16, norm weight `[k]`, bias `[num_experts]`, logits `[num_tokens, num_experts]` f32,
//!           experts and weights as [`route`](super::route); with the gate of a shared expert a row, a
//!           bias and a logit more; k is a multiple of 8, up to `MAX_K`.
//! Launch    grid `(num_experts / EXPERTS, max_tokens, 1)`, block `(32 * num_segments(k) / SEGMENTS,
//!           1, 1)`: a block norms the whole row; its warps split k, and its last block chooses.
//! Numerics  normed has the bits of [`rms_norm`](crate::rms_norm); a logit is a sum in f32 of the
//!           rounded row; the bits of a token do not depend on the others.
//! Bound     latency: all loads of the weights are issued before the wait for the launch before.

use super::route::{Choice, SharedArg, choose};
use crate::element::{Half, VEC_ELEMS};
use crate::rms_norm::{
    SEGMENT_ELEMS, Vector, num_segments, scale, scaled, segment_square_sum, sum_segments, weighted,
};
use crate::tile::last_block::is_last;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Experts of a block.
const EXPERTS: usize = 4;

/// Segments of a warp, one after the other in steps of the block's warps.
const SEGMENTS: usize = 2;

/// Most warps of a block.
const MAX_WARPS: u32 = 16;

/// Most columns.
const MAX_K: u32 = MAX_WARPS * SEGMENTS as u32 * SEGMENT_ELEMS;

/// Elements `index .. index + 8`, or zeros.
///
/// # Safety
/// As [`Global::get_vec_if`], of two vectors of four.
#[inline(always)]
#[track_caller]
unsafe fn load_f32(row: Global<f32>, index: u32, condition: bool) -> Vector {
    let index = index as usize;
    // SAFETY: the caller's promise.
    let [[a, b, c, d], [e, f, g, h]] =
        unsafe { [row.get_vec_if(index, condition), row.get_vec_if(index + 4, condition)] };
    [a, b, c, d, e, f, g, h]
}

/// Logits of a token and `EXPERTS` experts, of up to `32 * N` experts.
///
/// # Safety
/// 1. `num_tokens` is one element; the matrices hold that many rows at their strides; `k` is a
///    multiple of 8 up to `MAX_K`, and the block has a warp for every `SEGMENTS` segments of it.
/// 2. `x`, `normed`, `weight` and `norm_weight` have rows of `k` elements, 16-byte aligned; `bias`
///    holds an element an expert, or is null.
/// 3. `counters` holds a zero for each token; nothing that is written overlaps anything else.
/// 4. The rest is as `route::choose` requires.
#[kernel(
    launch_bounds(MAX_WARPS * 32, 1),
    overlaps,
    instances(
        E in [f16, bf16],
        norm_route_{E}_e128 = <E, 4>,
        norm_route_{E}_e256 = <E, 8>,
        norm_route_{E}_e512 = <E, 16>
    )
)]
pub unsafe fn norm_route<E: Half, const N: usize>(
    num_tokens: Global<u32>,
    k: u32,
    eps: f32,
    x: Global<f32>,
    x_stride: u32,
    norm_weight: Global<f32>,
    normed: GlobalMut<()>,
    normed_stride: u32,
    weight: Global<()>,
    bias: Global<f32>,
    counters: GlobalMut<u32>,
    num_experts: u32,
    top_k: u32,
    normalise: u32,
    scaling: f32,
    score_bias: Global<f32>,
    num_groups: u32,
    top_groups: u32,
    shared: u32,
    logits: GlobalMut<f32>,
    logits_stride: u32,
    experts: GlobalMut<u32>,
    experts_stride: u32,
    weights: GlobalMut<f32>,
    weights_stride: u32,
) {
    let (token, first_expert) =
        (thread::block_idx_y() as usize, thread::block_idx_x() * EXPERTS as u32);
    let (thread_idx, warp_idx, lane) = (thread::thread_idx_x(), warp::warp_idx(), warp::lane_id());
    let num_warps = thread::block_dim_x() / warp::WARP_SIZE;
    let first_column = warp_idx * SEGMENT_ELEMS + lane * VEC_ELEMS;
    let step = num_warps * SEGMENT_ELEMS;
    let shared = SharedArg(shared);
    let num_logits = num_experts + u32::from(shared.has_gate());
    // SAFETY: rows and columns are inside by the conditions; barriers are between the phases.
    unsafe {
        // A step input: no launch of the step writes it.
        let num_tokens = num_tokens.get(0);

        // 1. What no launch writes.
        let mut rows = [[[0u32; 4]; EXPERTS]; SEGMENTS];
        let mut norm_weights = [[0.0; VEC_ELEMS as usize]; SEGMENTS];
        unroll!(segment in 0..2, {
            let column = first_column + segment as u32 * step;
            norm_weights[segment] = load_f32(norm_weight, column, column < k);
            for expert in 0..EXPERTS {
                let row = first_expert + expert as u32;
                let at = row as usize * k as usize + column as usize;
                let row_words = weight.cast::<E>().wrapping_add(at).cast::<u32>();
                rows[segment][expert] =
                    row_words.stream_vec_if(0, column < k && row < num_logits);
            }
        });
        grid::wait_for_dependencies();
        grid::launch_dependents();
        if token >= num_tokens as usize {
            return;
        }

        // 2. The norm of the row, by every block.
        let square_sums = shared_array![f32; MAX_WARPS as usize * SEGMENTS];
        let x = x.add(token * x_stride as usize);
        let mut values = [[0.0; VEC_ELEMS as usize]; SEGMENTS];
        unroll!(segment in 0..2, {
            let column = first_column + segment as u32 * step;
            values[segment] = load_f32(x, column, column < k);
        });
        let segment_sums = [segment_square_sum(&values[0]), segment_square_sum(&values[1])];
        if lane == 0 {
            square_sums.set(warp_idx, segment_sums[0]);
            square_sums.set(warp_idx + num_warps, segment_sums[1]);
        }
        thread::sync_threads();
        let scale = scale(sum_segments(square_sums, num_segments(k)), 1.0 / k as f32, eps);

        // 3. The dot products of the rounded row, which the first block stores.
        let normed = normed.cast::<E>().add(token * normed_stride as usize).cast::<u32>();
        let mut acc = [0.0; EXPERTS];
        unroll!(segment in 0..2, {
            let column = first_column + segment as u32 * step;
            let [a, b, c, d, e, f, g, h] =
                scaled(weighted(values[segment], norm_weights[segment]), scale);
            let pairs = [E::pack(a, b), E::pack(c, d), E::pack(e, f), E::pack(g, h)];
            if first_expert == 0 && column < k {
                normed.set_vec(column as usize / 2, pairs);
            }
            for expert in 0..EXPERTS {
                for pair in 0..4 {
                    let ([x0, x1], [w0, w1]) =
                        (E::unpack(pairs[pair]), E::unpack(rows[segment][expert][pair]));
                    acc[expert] = math::fma(x1, w1, math::fma(x0, w0, acc[expert]));
                }
            }
        });
        let partials = shared_array![f32; MAX_WARPS as usize * EXPERTS];
        let sums = acc.map(warp::reduce_add);
        if lane == 0 {
            partials.set_vec(warp_idx * EXPERTS as u32, sums);
        }
        thread::sync_threads();
        let expert = first_expert + thread_idx;
        let logits = logits.add(token * logits_stride as usize);
        if thread_idx < EXPERTS as u32 && expert < num_logits {
            let mut logit = 0.0;
            for warp in 0..num_warps {
                logit += partials.get(warp * EXPERTS as u32 + thread_idx);
            }
            if !bias.is_null() {
                logit += bias.get(expert as usize);
            }
            logits.set(expert as usize, logit);
        }

        // 4. The choice, by a warp of the token's last block.
        if is_last(counters, token, thread::grid_dim_x(), shared_array![u32; 1]) && warp_idx == 0 {
            let choice = Choice {
                num_experts,
                top_k,
                normalise,
                scale: scaling,
                bias: score_bias,
                num_groups,
                top_groups,
                shared,
            };
            choose::<N>(
                choice,
                logits.as_global(),
                experts.add(token * experts_stride as usize),
                weights.add(token * weights_stride as usize),
            );
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{NormRoute, NormRouteOperands};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::norm_route::{Args, Instance};
    use super::{EXPERTS, MAX_K, SEGMENTS, VEC_ELEMS, num_segments};
    use crate::Rows;
    use crate::element::{Number, type_of};
    use crate::gemm::experts::{Route, RouteOperands};
    use crate::gemm::problem::refuse;
    use crate::operand::{is_aligned, untyped};
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
    use cuda_std::warp::WARP_SIZE;

    /// RMSNorm, the linear layer of a router and the choice of each token's experts.
    #[derive(Clone, Copy, Debug)]
    pub struct NormRoute {
        /// The choice.
        pub route: Route,
        /// Columns of a row.
        pub k: usize,
        /// Added to the mean of squares.
        pub eps: f32,
    }

    /// The operands of [`NormRoute`].
    #[derive(Clone, Copy, Debug)]
    pub struct NormRouteOperands<E> {
        /// `[max_tokens, k]`.
        pub x: Rows<f32>,
        /// The norm's weight, `[k]`.
        pub norm_weight: DevicePtr<f32>,
        /// `[max_tokens, k]`, which is written.
        pub normed: Rows<E>,
        /// `[num_experts, k]`, or one row more.
        pub weight: DevicePtr<E>,
        /// `[num_experts]`.
        pub bias: Option<DevicePtr<f32>>,
        /// [`NormRoute::MAX_TOKENS`] zeros, which are zeros again afterwards.
        pub counters: DevicePtr<u32>,
        /// The operands of the choice; the logits are written.
        pub route: RouteOperands,
    }

    impl NormRoute {
        /// Most tokens for which it is the faster: each reads the weight anew.
        pub const MAX_TOKENS: usize = 8;

        /// Whether there is a kernel for it.
        pub fn is_supported(&self) -> bool {
            self.check().is_ok()
        }

        fn check(&self) -> Result<(), LaunchError> {
            if self.route.max_tokens > Self::MAX_TOKENS {
                return refuse("tokens", self.route.max_tokens, "at most 8");
            }
            if self.k > MAX_K as usize || !self.k.is_multiple_of(VEC_ELEMS as usize) {
                return refuse("k", self.k, "a multiple of 8, at most 8192");
            }
            self.route.check()
        }

        /// The launch, or `None` if there are no tokens or no columns.
        ///
        /// # Errors
        /// [`LaunchError`] for more than 8 tokens, a `k` that is no multiple of 8 or beyond 8192,
        /// rows that are not 16-byte aligned or of 32 bits, and errors of [`Route::launch`].
        pub fn launch<E: Number>(
            &self,
            operands: &NormRouteOperands<E>,
        ) -> Result<Option<Launch>, LaunchError> {
            let NormRouteOperands { x, norm_weight, normed, weight, bias, counters, route } =
                *operands;
            self.check()?;
            let are_aligned = is_aligned(norm_weight) && is_aligned(weight);
            if !are_aligned || !x.is_aligned() || !normed.is_aligned() {
                return refuse("row stride", x.row_stride, "rows that are 16-byte aligned");
            }
            let choice = self.route.args(&route)?;
            let k = self.k as u32;
            let args = Args {
                num_tokens: route.num_tokens,
                k,
                eps: self.eps,
                x: x.ptr,
                x_stride: x.stride_arg()?,
                norm_weight,
                normed: normed.untyped_ptr(),
                normed_stride: normed.stride_arg()?,
                weight: untyped(weight),
                bias: bias.unwrap_or(DevicePtr::null()),
                counters,
                num_experts: choice.num_experts,
                top_k: choice.top_k,
                normalise: choice.normalise,
                scaling: choice.scale,
                score_bias: choice.bias,
                num_groups: choice.num_groups,
                top_groups: choice.top_groups,
                shared: choice.shared,
                logits: choice.logits,
                logits_stride: choice.logits_stride,
                experts: choice.experts,
                experts_stride: choice.experts_stride,
                weights: choice.weights,
                weights_stride: choice.weights_stride,
            };
            let num_experts = self.route.num_experts;
            let grid = [self.route.num_logits().div_ceil(EXPERTS), self.route.max_tokens, 1];
            let num_threads = num_segments(k) as usize / SEGMENTS * WARP_SIZE as usize;
            let geometry = Geometry::new(grid, num_threads, 0)?;
            let takes = |i: Instance| {
                Some(i.e()) == type_of(E::DTYPE) && num_experts <= WARP_SIZE as usize * i.n()
            };
            let Some(instance) = Instance::find(takes) else {
                return refuse("operand bits", 8 * size_of::<E>(), "16");
            };
            Ok(geometry.map(|geometry| args.launch(instance, geometry)))
        }
    }
}
