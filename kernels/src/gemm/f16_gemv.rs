//! GEMV in f16 and bf16 (decode of one sequence): `out[n] = sum_k x[k] * weight[n, k] (+ bias[n])
//! (+ residual[n])`. `_norm` instances apply RMSNorm to x first; `_silu` instances store
//! `silu(gate) * up` of a stacked weight.
//!
//! Shapes    x `[k]`, weight `[n, k]` with a row stride, f16 or bf16; bias, residual `[n]` f32; out
//!           `[n]`, f32 (may be residual) or the operands' type; any n, k a multiple of 8; x and
//!           rows of weight 16-byte aligned. Norm: x and norm_weight `[k]` f32, no residual. Gate:
//!           weight `[2 * n, k]` and bias `[2 * n]`, first gate, then up; out in 16 bits.
//! Launch    grid `(n / block_n, 1, 1)`, block `(32 * num_slices * splits_per_block, 1, 1)`. k is
//!           split: a warp takes one slice of k for `ROWS` rows of the weight, and the warps of a
//!           split, which share these rows, add their partial sums in shared memory.
//! Numerics  f32 FMAs. A lane accumulates eight neighbours of every 256 elements that its warp
//!           takes; slices are added lane by lane, in pairs; lanes are reduced as a tree. The
//!           normed x, gate and up are not rounded: one rounding, at the store. The order differs
//!           from that of the small-batch kernels, see [`SumOrder`](super::SumOrder).
//! Bound     memory: the weight is read once, `2 * n * k` bytes.
//!
//! A warp reads contiguous bytes of a row, and a split a whole row of up to 5,120 elements at once.
//! Figures, and what was tried and rejected: `docs/measurements/gemv.md`.

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Gemv16;

use crate::element::VEC_ELEMS;
use crate::rms_norm::scale;
use crate::silu_mul::{gated, num_parts};
use crate::tile::element::Operand16;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Most slices that k is split into: one warp each.
const MAX_SLICES: u32 = 5;

/// Elements along k that one load of a warp covers: `VEC_ELEMS` a lane.
const K_PER_LOAD: u32 = warp::WARP_SIZE * VEC_ELEMS;

/// A lane's 16-byte load: eight elements along k.
type Load = [u32; VEC_ELEMS as usize / 2];

/// Partial sums of a lane: one a row of the weight and, for a norm, that of the squares of x.
const fn num_partials(rows: usize, normed: bool) -> u32 {
    rows as u32 + normed as u32
}

/// Most warps of a block.
const fn max_warps(fused: bool) -> u32 {
    if fused { MAX_SLICES } else { 6 }
}

/// Blocks that should fit on an SM.
const fn min_blocks(fused: bool) -> u32 {
    if fused { 3 } else { 6 }
}

/// The rows of the weight that a warp computes.
struct Weights<const ROWS: usize> {
    weight: Global<u16>,
    /// Index of each row's first element.
    rows: [usize; ROWS],
}

impl<const ROWS: usize> Weights<ROWS> {
    /// Issues `LOADS` loads of each row, the lane's first at `first_k`; zeros from `k` on.
    ///
    /// # Safety
    /// 1. Rows hold `k` elements and are 16-byte aligned; `first_k` and `k` are multiples of 8.
    #[inline(always)]
    unsafe fn load<const LOADS: usize>(&self, first_k: u32, k: u32) -> [[Load; ROWS]; LOADS] {
        let mut loads = [[[0; VEC_ELEMS as usize / 2]; ROWS]; LOADS];
        unroll!(load_idx in 0..4, {
            if load_idx < LOADS {
                let k_idx = first_k + load_idx as u32 * K_PER_LOAD;
                for row in 0..ROWS {
                    let words = self.weight.wrapping_add(self.rows[row] + k_idx as usize);
                    let words = words.cast::<u32>();
                    // SAFETY: inside the row, by the condition.
                    loads[load_idx][row] = unsafe { words.stream_vec_if(0, k_idx < k) };
                }
            }
        });
        loads
    }
}

/// x, and the norm's weight if it is to be normed.
#[derive(Clone, Copy)]
struct Input {
    x: Global<()>,
    norm_weight: Global<f32>,
    k: u32,
}

impl Input {
    /// Issues the loads of the norm's weight that go with `LOADS` loads of x. No launch writes it.
    ///
    /// # Safety
    /// 1. `norm_weight` is as the kernel requires; `first_k` is a multiple of 8.
    #[inline(always)]
    unsafe fn load_norm<const LOADS: usize, const NORMED: bool>(
        &self,
        first_k: u32,
    ) -> [[[f32; 4]; 2]; LOADS] {
        let mut loads = [[[0.0; 4]; 2]; LOADS];
        unroll!(load_idx in 0..4, {
            if NORMED && load_idx < LOADS {
                let k_idx = first_k + load_idx as u32 * K_PER_LOAD;
                let weights = self.norm_weight.wrapping_add(k_idx as usize);
                // SAFETY: inside, by the condition.
                loads[load_idx] =
                    [0, 4].map(|at| unsafe { weights.get_vec_if(at, k_idx < self.k) });
            }
        });
        loads
    }

    /// Issues `LOADS` loads of x, the lane's first at `first_k`; zeros from `k` on. They do not
    /// depend on `num_rows`, so the row may be unwritten: the load of `num_rows` would complete
    /// only after the weight's, which are issued before it.
    ///
    /// # Safety
    /// 1. `x` is as the kernel requires; `first_k` is a multiple of 8.
    #[inline(always)]
    unsafe fn load<const LOADS: usize, const NORMED: bool>(
        &self,
        first_k: u32,
    ) -> [InputLoad; LOADS] {
        let mut loads = [InputLoad::default(); LOADS];
        unroll!(load_idx in 0..4, {
            if load_idx < LOADS {
                let k_idx = first_k + load_idx as u32 * K_PER_LOAD;
                let (at, is_inside) = (k_idx as usize, k_idx < self.k);
                // SAFETY: inside, by the condition.
                unsafe {
                    if NORMED {
                        let x = self.x.cast::<f32>().wrapping_add(at);
                        loads[load_idx].x32 = [0, 4].map(|at| x.speculate_vec_if(at, is_inside));
                    } else {
                        let x = self.x.cast::<u16>().wrapping_add(at).cast::<u32>();
                        loads[load_idx].x16 = x.speculate_vec_if(0, is_inside);
                    }
                }
            }
        });
        loads
    }
}

/// A lane's load of x: eight elements, in 16 bits, or f32 if they are to be normed.
#[derive(Clone, Copy, Default)]
struct InputLoad {
    x16: Load,
    x32: [[f32; 4]; 2],
}

impl InputLoad {
    /// The elements as f32. If `NORMED`, multiplied by the norm's weight; their squares are added
    /// to `square_sum`.
    #[inline(always)]
    fn values<E: Operand16, const NORMED: bool>(
        &self,
        norm: [[f32; 4]; 2],
        square_sum: &mut f32,
    ) -> [f32; VEC_ELEMS as usize] {
        if !NORMED {
            return unpacked::<E>(self.x16);
        }
        let flat = |[[a, b, c, d], [e, f, g, h]]: [[f32; 4]; 2]| [a, b, c, d, e, f, g, h];
        let (mut x, norm) = (flat(self.x32), flat(norm));
        for i in 0..VEC_ELEMS as usize {
            *square_sum = math::fma(x[i], x[i], *square_sum);
            x[i] *= norm[i];
        }
        x
    }
}

/// The elements of a load.
#[inline(always)]
fn unpacked<E: Operand16>(load: Load) -> [f32; VEC_ELEMS as usize] {
    let [[a, b], [c, d], [e, f], [g, h]] = load.map(E::unpack);
    [a, b, c, d, e, f, g, h]
}

/// Adds up partial sum `partial_idx` of this lane over slices 1, 2, ..; all loads are issued at
/// once.
///
/// # Safety
/// 1. `split_partials` starts at the lane's partial sums of slice 0, `warp_partials` elements
///    before those of slice 1; slices 1, 2, .. have written theirs.
#[inline(always)]
unsafe fn reduce_other_slices(
    split_partials: Shared<f32>,
    warp_partials: u32,
    num_slices: u32,
    partial_idx: usize,
) -> f32 {
    let mut others = [0.0; MAX_SLICES as usize - 1];
    unroll!(other in 0..4, {
        let slice_idx = other as u32 + 1;
        if slice_idx < num_slices {
            let at = slice_idx * warp_partials + partial_idx as u32 * warp::WARP_SIZE;
            // SAFETY: the caller's promise.
            others[other] = unsafe { split_partials.get(at) };
        }
    });
    (others[0] + others[1]) + (others[2] + others[3])
}

/// A warp takes one of `num_slices` slices of k for `ROWS` rows of the weight, with `LOADS` loads
/// of each in flight.
///
/// # Safety
/// 1. `num_rows` is one element, 0 or 1. x, `residual` and the output hold one row; `weight` holds
///    `n` rows at its stride, or `2 * n` if `GATED`, and `bias` as many elements. `bias` and
///    `residual` may be null. The output is `out_f32`, or `out` if `out_f32` is null.
/// 2. The output is `residual`, or overlaps nothing that is read.
/// 3. x, `norm_weight` and rows of `weight` are 16-byte aligned, and `k` is a multiple of 8.
/// 4. A block has a multiple of `num_slices` warps; `slices_reciprocal` is 256 over `num_slices`,
///    rounded up; `block_n` is the outputs of the block.
#[kernel(
    launch_bounds(
        max_warps(NORMED || GATED) * warp::WARP_SIZE,
        min_blocks(NORMED || GATED)
    ),
    overlaps,
    instances(
        gemv_f16 = <f16, 1, 4, false, false>,
        gemv_f16_silu = <f16, 4, 2, false, true>,
        gemv_f16_norm = <f16, 4, 2, true, false>,
        gemv_f16_norm_silu = <f16, 4, 2, true, true>,
        gemv_bf16 = <bf16, 1, 4, false, false>,
        gemv_bf16_silu = <bf16, 4, 2, false, true>,
        gemv_bf16_norm = <bf16, 4, 2, true, false>,
        gemv_bf16_norm_silu = <bf16, 4, 2, true, true>
    )
)]
pub unsafe fn gemv_16<
    E: Operand16,
    const ROWS: usize,
    const LOADS: usize,
    const NORMED: bool,
    const GATED: bool,
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
    weight: Global<u16>,
    weight_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    out: GlobalMut<u16>,
    out_f32: GlobalMut<f32>,
) {
    let num_columns = const { (ROWS / num_parts(GATED)) as u32 };
    let (lane, warp_idx) = (warp::lane_id(), warp::warp_idx());
    let split_idx = (warp_idx * slices_reciprocal) >> 8;
    let slice_idx = warp_idx - split_idx * num_slices;
    let first_column = thread::block_idx_x() * block_n + split_idx * num_columns;

    // 1. Before the previous launch has ended: loads of what it does not write. All warps start at
    //    once and compete for issue slots, so only what these loads need comes before them.
    let mut weights = Weights { weight, rows: [0; ROWS] };
    for row in 0..ROWS as u32 {
        let (part, column) = (row / num_columns, first_column + row % num_columns);
        // Columns past `n` load row `n - 1`; their results are not stored.
        let row_idx = part * n + column.min(n - 1);
        weights.rows[row as usize] = row_idx as usize * weight_stride as usize;
    }
    let step = num_slices * LOADS as u32 * K_PER_LOAD;
    let mut warp_k = slice_idx * LOADS as u32 * K_PER_LOAD;
    let lane_k = lane * VEC_ELEMS;
    let input = Input { x, norm_weight, k };
    // SAFETY: loads are inside by their conditions.
    let (mut loads, mut norms) = unsafe {
        let loads = weights.load::<LOADS>(warp_k + lane_k, k);
        (loads, input.load_norm::<LOADS, NORMED>(warp_k + lane_k))
    };

    // 2. After it: x, residual, and the dot products.
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: the caller's promise.
    let mut inputs = unsafe { input.load::<LOADS, NORMED>(warp_k + lane_k) };
    // In slice 0, lane `i` stores column `i` of the split.
    let column = first_column + lane;
    let has_output = slice_idx == 0 && lane < num_columns && column < n;
    let (mut bias_values, mut residual_value) = ([0.0; 2], 0.0);
    // SAFETY: the column is inside, and the bias has an element for each row of the weight.
    let num_rows = unsafe {
        if has_output && !bias.is_null() {
            for part in 0..num_parts(GATED) {
                bias_values[part] = bias.get((part as u32 * n + column) as usize);
            }
        }
        if has_output && !residual.is_null() {
            residual_value = residual.speculate(column as usize);
        }
        num_rows.get(0)
    };
    let (mut acc, mut square_sum) = ([0.0; ROWS], 0.0);
    loop {
        unroll!(load_idx in 0..4, {
            if load_idx < LOADS {
                let x = inputs[load_idx].values::<E, NORMED>(norms[load_idx], &mut square_sum);
                for row in 0..ROWS {
                    let weights = unpacked::<E>(loads[load_idx][row]);
                    for i in 0..VEC_ELEMS as usize {
                        acc[row] = math::fma(x[i], weights[i], acc[row]);
                    }
                }
            }
        });
        warp_k += step;
        if warp_k >= k {
            break;
        }
        // SAFETY: as above.
        (loads, norms, inputs) = unsafe {
            let loads = weights.load::<LOADS>(warp_k + lane_k, k);
            let norms = input.load_norm::<LOADS, NORMED>(warp_k + lane_k);
            (loads, norms, input.load::<LOADS, NORMED>(warp_k + lane_k))
        };
    }

    // 3. Reduction: slice 0 adds the partial sums of the other slices lane by lane, then reduces
    //    over lanes; lane `i` keeps row `i`.
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
    if NORMED {
        dot *= scale(warp::reduce_add(square_sum), k_reciprocal, eps);
    }
    let up = if GATED { warp::shuffle_down(dot, num_columns) } else { 0.0 };
    if has_output && num_rows > 0 {
        let value = if GATED {
            gated::<E>(dot + bias_values[0], up + bias_values[1])
        } else {
            dot + bias_values[0] + residual_value
        };
        // SAFETY: the column is inside.
        unsafe {
            if out_f32.address() == 0 {
                out.cast::<E>().set(column as usize, E::from_f32(value));
            } else {
                out_f32.set(column as usize, value);
            }
        }
    }
}
