//! GEMV in f16 and bf16 (decode of one sequence): `out[n] = sum_k x[k] * weight[n, k] (+ bias[n])
//! (+ residual[n])`. `_norm` instances apply RMSNorm to x first; gated instances store
//! `activation(gate) * up` of a stacked weight.
//!
//! Shapes    x `[k]`, weight `[n, k]` with a row stride, f16 or bf16, or E4M3 with scales `[n]` or
//!           `[n / 128, k / 128]` f32; bias, residual `[n]` f32; out `[n]`, f32 (may be residual)
//!           or the operands' type; any n, k a multiple of 8, of 16 in E4M3; x and rows of weight
//!           16-byte aligned. Norm: x and norm_weight `[k]` f32, no residual. Gate:
//!           weight `[2 * n, k]` and bias `[2 * n]`, first gate, then up; out in 16 bits.
//! Launch    grid `(n / block_n, 1, 1)`, block `(32 * num_slices * splits_per_block, 1, 1)`. k is
//!           split: a warp takes one slice of k for `ROWS` rows of the weight, and the warps of a
//!           split, which share these rows, add their partial sums in shared memory.
//! Numerics  f32 FMAs; in E4M3 MMAs with f32 accumulators. A lane accumulates eight neighbours of
//!           every 256 elements that its warp takes; slices are added lane by lane, in pairs; lanes
//!           are reduced as a tree. The normed x, gate and up are not rounded: one rounding, at the
//!           store. The order differs from that of the small-batch kernels, see
//!           [`SumOrder`](crate::gemm::SumOrder).
//! Bound     memory: the weight is read once.
//!
//! A warp reads contiguous bytes of a row, and a split a whole row of up to 5,120 elements at once.
//! Figures, and what was tried and rejected: `docs/measurements/gemv.md`; in E4M3
//! `docs/measurements/gemm_fp8_small_m.md`.

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Gemv16;

use crate::activation::{GATES, Gate, NoGate};
use crate::gemm::epilogue::{Destination, Out};
use crate::gemm::mainloop::gemv::*;
use crate::rms_norm::scale;
use crate::tile::element::Operand16;
use crate::tile::weight::{Scales, WeightElement};
use cuda_std::E4m3;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// A warp takes one of `num_slices` slices of k for `ROWS` rows of the weight, with `LOADS` loads
/// of each in flight.
///
/// # Safety
/// 1. `num_rows` is one element, 0 or 1. x, `residual` and the output hold one row; `weight` holds
///    `n` rows at its stride, or `2 * n` with a gate, and `bias` as many elements. `bias` and
///    `residual` may be null. The output is `out_f32`, or `out` if `out_f32` is null.
/// 2. The output is `residual`, or overlaps nothing that is read.
/// 3. x, `norm_weight` and rows of `weight` are 16-byte aligned, and `k` is a multiple of 8, of 16
///    in E4M3. `scales` are then those of `weight`: a row of blocks has `scale_stride` of them; if
///    that is 0, a row of the weight has one.
/// 4. A block has a multiple of `num_slices` warps; `slices_reciprocal` is 256 over `num_slices`,
///    rounded up; `block_n` is the outputs of the block.
#[kernel(
    launch_bounds(
        max_warps(NORMED || A::PARTS == 2, BY_MMA) * warp::WARP_SIZE,
        min_blocks(NORMED || A::PARTS == 2, BY_MMA)
    ),
    overlaps,
    instances(
        E in [f16, bf16],
        A in GATES,
        gemv_{E} = <E, E, 1, 4, false, false, NoGate>,
        gemv_{E}_{A} = <E, E, 4, 2, false, false, A>,
        gemv_{E}_norm = <E, E, 4, 2, false, true, NoGate>,
        gemv_{E}_norm_{A} = <E, E, 4, 2, false, true, A>,
        gemv_f16_e4m3 = <f16, E4m3, 4, 1, true, false, NoGate>,
        gemv_f16_e4m3_{A} = <f16, E4m3, 4, 1, true, false, A>
    )
)]
pub unsafe fn gemv_16<
    E: Operand16,
    W: WeightElement<E>,
    const ROWS: usize,
    const LOADS: usize,
    const BY_MMA: bool,
    const NORMED: bool,
    A: Gate,
>(
    num_rows: Global<u32>,
    n: u32,
    k: u32,
    num_slices: u32,
    slices_reciprocal: u32,
    block_n: u32,
    x: Global<()>,
    norm_weight: Global<f32>,
    k_reciprocal: f32,
    eps: f32,
    weight: Global<W>,
    weight_stride: u32,
    scales: Global<f32>,
    scale_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    out: GlobalMut<E>,
    out_f32: GlobalMut<f32>,
) {
    let num_columns = const { (ROWS / A::PARTS) as u32 };
    let (lane, warp_idx) = (warp::lane_id(), warp::warp_idx());
    let split_idx = (warp_idx * slices_reciprocal) >> 8;
    let slice_idx = warp_idx - split_idx * num_slices;
    let first_column = thread::block_idx_x() * block_n + split_idx * num_columns;

    // 1. Before the previous launch has ended: loads of what it does not write. All warps start at
    //    once and compete for issue slots, so only what these loads need comes before them.
    let scales = Scales { scales, stride: scale_stride };
    let first_rows = [0, 1].map(|part| part * n + first_column.min(n - 1));
    let mut weights = Weights { weight, rows: [0; ROWS], scales, first_rows };
    for row in 0..ROWS as u32 {
        let (part, column) = (row / num_columns, first_column + row % num_columns);
        // Columns past `n` load row `n - 1`; their results are not stored.
        let row_idx = part * n + column.min(n - 1);
        weights.rows[row as usize] = row_idx as usize * weight_stride as usize;
    }
    let step = num_slices * LOADS as u32 * k_per_load(W::LOAD_ELEMS);
    let mut warp_k = slice_idx * LOADS as u32 * k_per_load(W::LOAD_ELEMS);
    let lane_k = lane * W::LOAD_ELEMS;
    let input = Input { x, norm_weight, k };
    // SAFETY: loads are inside by their conditions.
    let (mut loads, mut norms) = unsafe {
        let loads = weights.load::<E, LOADS>(warp_k + lane_k, k, A::PARTS);
        (loads, input.load_norm::<LOADS, NORMED>(warp_k + lane_k, W::VECS))
    };

    // 2. After it: x, residual, and the dot products.
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: the caller's promise.
    let mut inputs = unsafe { input.load::<LOADS, NORMED>(warp_k + lane_k, W::VECS) };
    // In slice 0, lane `i` stores column `i` of the split.
    let column = first_column + lane;
    let has_output = slice_idx == 0 && lane < num_columns && column < n;
    let (mut bias_values, mut residual_value, mut scale_value) = ([0.0; 2], 0.0, 1.0);
    // SAFETY: the column is inside, and the bias has an element for each row of the weight.
    let num_rows = unsafe {
        if W::IS_SCALED && slice_idx == 0 && lane < ROWS as u32 {
            let (part, column) = (lane / num_columns, first_column + lane % num_columns);
            scale_value = scales.row_scale(part * n + column.min(n - 1)) * W::FACTOR;
        }
        if has_output && !bias.is_null() {
            for part in 0..A::PARTS {
                bias_values[part] = bias.get((part as u32 * n + column) as usize);
            }
        }
        if has_output && !residual.is_null() {
            residual_value = residual.speculate(column as usize);
        }
        num_rows.get(0)
    };
    let mut products = DotProducts::<ROWS>::new();
    loop {
        unroll!(load_idx in 0..4, {
            if load_idx < LOADS {
                let (x, weights) = (&inputs[load_idx], &loads[load_idx]);
                if BY_MMA {
                    products.multiply_by_mma::<E, W>(x, weights, A::PARTS);
                } else {
                    let norms = &norms[load_idx];
                    products.multiply::<E, W, NORMED>(x, norms, weights, A::PARTS);
                }
            }
        });
        warp_k += step;
        if warp_k >= k {
            break;
        }
        // SAFETY: as above.
        (loads, norms, inputs) = unsafe {
            let loads = weights.load::<E, LOADS>(warp_k + lane_k, k, A::PARTS);
            let norms = input.load_norm::<LOADS, NORMED>(warp_k + lane_k, W::VECS);
            (loads, norms, input.load::<LOADS, NORMED>(warp_k + lane_k, W::VECS))
        };
    }

    // 3. Reduction: slice 0 adds the partial sums of the other slices lane by lane, then reduces
    //    over lanes; lane `i` keeps row `i`.
    if BY_MMA {
        products.keep_diagonal();
    }
    let DotProducts { rows: mut acc, mut square_sum } = products;
    if num_slices > 1 {
        let warp_partials = const { num_partials(ROWS, NORMED) * warp::WARP_SIZE };
        // SAFETY: the launch gives every warp room for its partial sums; they are read after the
        // barrier.
        unsafe {
            let split_partials = dynamic_shared_mem::<f32>();
            let split_partials =
                split_partials.offset(split_idx * num_slices * warp_partials + lane);
            let own_partials = split_partials.offset(slice_idx * warp_partials);
            if slice_idx > 0 {
                for row in 0..ROWS {
                    own_partials.set(row as u32 * warp::WARP_SIZE, acc[row]);
                }
                if NORMED {
                    own_partials.set(ROWS as u32 * warp::WARP_SIZE, square_sum);
                }
            }
            thread::sync_threads();
            if slice_idx > 0 {
                return;
            }
            for row in 0..ROWS {
                acc[row] += reduce_other_slices(split_partials, warp_partials, num_slices, row);
            }
            if NORMED {
                square_sum += reduce_other_slices(split_partials, warp_partials, num_slices, ROWS);
            }
        }
    }
    let mut dot = 0.0;
    for row in 0..ROWS {
        let row_dot = warp::reduce_add(acc[row]);
        dot = if lane == row as u32 { row_dot } else { dot };
    }
    if W::IS_SCALED {
        dot *= scale_value;
    }
    if NORMED {
        dot *= scale(warp::reduce_add(square_sum), k_reciprocal, eps);
    }
    let up = if A::PARTS == 2 { warp::shuffle_down(dot, num_columns) } else { 0.0 };
    if has_output && num_rows > 0 {
        let value = if A::PARTS == 2 {
            A::apply::<E>(dot + bias_values[0], up + bias_values[1])
        } else {
            dot + bias_values[0] + residual_value
        };
        // SAFETY: the column is inside.
        unsafe { Out { half: out, f32: out_f32 }.store(column as usize, value) };
    }
}
