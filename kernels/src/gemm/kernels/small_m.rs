//! Small-batch GEMM in f16 and bf16 (decode): `out[m, n] = sum_k x[m, k] * weight[n, k] (+ bias[n])
//! (+ residual[m, n])`. For m up to 8, `_norm` instances apply RMSNorm to x first; gated
//! instances store `activation(gate) * up` of a stacked weight.
//!
//! Shapes    x `[m, k]`, weight `[n, k]`, f16 or bf16, the weight also E4M3 with scales `[n]` or
//!           `[n / 128, k / 128]` f32 and k a multiple of 16; bias `[n]`, residual `[m, n]`, f32;
//!           out `[m, n]`, f32 (may be residual) or the operands' type; row strides; any n, k a
//!           multiple of 8; rows of x and weight 16-byte aligned. Norm: x and norm_weight `[k]`
//!           f32, no residual. Gate: weight `[2 * n, k]` and bias `[2 * n]`, first gate, then up;
//!           out in 16 bits.
//! Launch    grid `(n / (8 * TILES_N), 1, 1)`, twice as many with a gate; block `(32 * WARPS, 1,
//!           1)`. The warps of a block split k; shared memory holds their partial sums and the
//!           normed x. With `TILES_M = 8` grid `(m / 64, n / (8 * TILES_N), 1)`: a batch-invariant
//!           step may have more rows, whose blocks read the same weight, at once and so from L2.
//! Numerics  f32 accumulators, one rounding at the store. A warp accumulates every `WARPS`-th
//!           k-tile (64 elements) in order; the epilogue adds warps in fours. The order depends on
//!           n and k alone, so a row has the same bits in any batch. Fused instances have the bits
//!           of RmsNorm, this kernel and GateRows in turn: what those store is rounded here too.
//! Bound     memory: the weight is read once; a block issues its first loads of
//!           it before it reads its row count or waits for the previous launch.
//!
//! This kernel loads the weight into registers; for m up to 32 on sm_90a,
//! [`gemm_16_streamed`](super::streamed::gemm_16_streamed()) loads it by TMA. Tensor cores serve
//! even one row: conversions and FMAs would take more issue slots. Figures, and what was tried and
//! rejected: `docs/measurements/gemm_small_m.md`.

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::SmallM16;
#[cfg(not(target_arch = "nvptx64"))]
pub(super) use launcher::{InstanceParams, KernelParams, is_normed};

use crate::activation::{GATES, Gate, NoGate};
use crate::gemm::epilogue::stream::{MAX_OUTPUTS, Outputs, max_columns, num_partials};
use crate::gemm::epilogue::{Epilogue, Matrix, Out};
use crate::gemm::mainloop::stream::{
    Cursor, LaneRow, TILE_MN, TileOrder, WeightRows, multiply, prefetch,
};
use crate::gemm::operand::normed::{Norm, NormParams};
use crate::gemm::operand::rows::GlobalRows;
use crate::tile::element::Operand16;
use crate::tile::weight::{Scales, WeightElement};
use cuda_std::E4m3;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Warps that an SM should hold: as many as their registers for accumulators and x allow.
const fn warps_per_sm(tiles_m: usize, tiles_n: usize, vecs: usize) -> usize {
    match (tiles_m, tiles_n) {
        (1, 1 | 2) if vecs == 1 => 32,
        (8, 2..) => 8,
        _ => 16,
    }
}

/// Blocks that should fit on an SM.
const fn min_blocks(tiles_m: usize, tiles_n: usize, warps: usize, vecs: usize) -> u32 {
    let blocks = warps_per_sm(tiles_m, tiles_n, vecs) / warps;
    if blocks == 0 { 1 } else { blocks as u32 }
}

/// Most MMA tiles along m: with fewer there is one row of blocks.
const MAX_TILES_M: usize = 8;

/// A block computes `8 * TILES_M` rows by `8 * TILES_N` columns; its `WARPS` warps split k.
///
/// # Safety
/// 1. `num_rows` is one element, at most `max_rows`, which is at least 1, and at most `8 * TILES_M`
///    if `TILES_M` is below 8. `x` holds `max_rows` rows, the output and `residual` `num_rows`,
///    `weight` holds `n`, or `2 * n` with a gate, at their strides; `bias` holds one element a row of
///    `weight`. `bias` and `residual` may be null. The output is `out_f32`, or `out` if `out_f32` is
///    null.
/// 2. The output is `residual`, or overlaps nothing that is read.
/// 3. Rows of `x` and `weight` are 16-byte aligned, and `k` is a multiple of 8, of 16 in E4M3.
///    `scales` are then those of `weight`: a row of blocks has `scale_stride` of them; if that is
///    0, a row of the weight has one.
#[kernel(
    launch_bounds(
        WARPS as u32 * warp::WARP_SIZE,
        min_blocks(TILES_M, TILES_N, WARPS, <W as WeightElement<E>>::VECS)
    ),
    overlaps,
    instances(
        E in [f16, bf16],
        A in GATES,
        gemm_{E}_small_m8_n8_w16 = <E, E, 1, 1, 16, false, NoGate>,
        gemm_{E}_small_m8_n8_w8 = <E, E, 1, 1, 8, false, NoGate>,
        gemm_{E}_small_m8_n32_w8 = <E, E, 1, 4, 8, false, NoGate>,
        gemm_{E}_small_m8_n8_w16_norm = <E, E, 1, 1, 16, true, NoGate>,
        gemm_{E}_small_m8_n8_w8_norm = <E, E, 1, 1, 8, true, NoGate>,
        gemm_{E}_small_m8_n32_w8_norm = <E, E, 1, 4, 8, true, NoGate>,
        gemm_{E}_small_m8_n8_w16_norm_{A} = <E, E, 1, 2, 16, true, A>,
        gemm_{E}_small_m8_n8_w8_norm_{A} = <E, E, 1, 2, 8, true, A>,
        gemm_{E}_small_m8_n8_w16_{A} = <E, E, 1, 2, 16, false, A>,
        gemm_{E}_small_m8_n8_w8_{A} = <E, E, 1, 2, 8, false, A>,
        gemm_{E}_small_m16_n8_w16 = <E, E, 2, 1, 16, false, NoGate>,
        gemm_{E}_small_m16_n32_w8 = <E, E, 2, 4, 8, false, NoGate>,
        gemm_{E}_small_m32_n8_w16 = <E, E, 4, 1, 16, false, NoGate>,
        gemm_{E}_small_m32_n32_w8 = <E, E, 4, 4, 8, false, NoGate>,
        gemm_{E}_small_m64_n8_w16 = <E, E, 8, 1, 16, false, NoGate>,
        gemm_{E}_small_m64_n32_w8 = <E, E, 8, 4, 8, false, NoGate>,
        gemm_f16_e4m3_small_m8_n8_w8 = <f16, E4m3, 1, 1, 8, false, NoGate>,
        gemm_f16_e4m3_small_m8_n32_w8 = <f16, E4m3, 1, 4, 8, false, NoGate>,
        gemm_f16_e4m3_small_m8_n8_w8_norm = <f16, E4m3, 1, 1, 8, true, NoGate>,
        gemm_f16_e4m3_small_m8_n32_w8_norm = <f16, E4m3, 1, 4, 8, true, NoGate>,
        gemm_f16_e4m3_small_m8_n8_w8_norm_{A} = <f16, E4m3, 1, 2, 8, true, A>,
        gemm_f16_e4m3_small_m8_n8_w8_{A} = <f16, E4m3, 1, 2, 8, false, A>,
        gemm_f16_e4m3_small_m16_n8_w8 = <f16, E4m3, 2, 1, 8, false, NoGate>,
        gemm_f16_e4m3_small_m16_n32_w8 = <f16, E4m3, 2, 4, 8, false, NoGate>
    )
)]
pub unsafe fn gemm_16_small_m<
    E: Operand16,
    W: WeightElement<E>,
    const TILES_M: usize,
    const TILES_N: usize,
    const WARPS: usize,
    const NORMED: bool,
    A: Gate,
>(
    num_rows: Global<u32>,
    max_rows: u32,
    n: u32,
    k: u32,
    x: Global<()>,
    x_stride: u32,
    norm_weight: Global<f32>,
    k_reciprocal: f32,
    eps: f32,
    weight: Global<W>,
    weight_stride: u32,
    scales: Global<f32>,
    scale_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<E>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
) {
    const { assert!(!NORMED || TILES_M == 1, "a block has shared memory for one tile's rows") };
    let (block_m, block_n) = match TILES_M {
        MAX_TILES_M => (thread::block_idx_x(), thread::block_idx_y()),
        _ => (0, thread::block_idx_x()),
    };
    let first_row = block_m * (TILES_M as u32 * TILE_MN);
    let block_n = block_n * max_columns(TILES_N, A::PARTS);
    let orders = [TileOrder::AsStored; 2];
    let outputs = Outputs::<TILES_M, TILES_N, WARPS, A>::new(block_n, n, n, orders);
    let cursor = Cursor::new(k / W::VECS as u32);
    let scales = Scales { scales, stride: scale_stride };
    // SAFETY: rows past the last one load the last one; their results are not stored. In shared
    // memory the normed rows follow the partial sums.
    unsafe {
        // 1. Before the previous launch has ended: loads of what it does not write.
        let mut rows = [LaneRow::new(0, 0, 1); TILES_N];
        for tile in 0..TILES_N {
            rows[tile] = outputs.weight_row(tile, weight_stride / W::VECS as u32);
        }
        let weights = WeightRows { weight, rows, scales: outputs.tile_scales(scales) };
        let prefetched = prefetch::<E, W, TILES_N, WARPS>(&weights, cursor);
        let mut bias_values = [0.0; 2];
        if A::PARTS == 1 {
            bias_values = outputs.bias(bias);
        }
        let params = NormParams { k, reciprocal: k_reciprocal, eps, vecs: W::VECS };
        let norm = NORMED.then(|| Norm::<WARPS>::new(norm_weight, params));
        let num_rows = num_rows.get(0).saturating_sub(first_row);

        // 2. After it.
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let mut residual = Matrix { ptr: residual, row_stride: residual_stride };
        let mut out = Matrix { ptr: Out { half: out, f32: out_f32 }, row_stride: out_stride };
        if TILES_M == MAX_TILES_M {
            (residual, out) = (residual.skip_rows(first_row), out.skip_rows(first_row));
        }
        let epilogue = Epilogue { num_rows, n, bias, residual, out };
        let mut residual_values = [0.0; MAX_OUTPUTS];
        if !NORMED {
            residual_values = outputs.residual(&epilogue);
        }

        // 3. Main loop, then the epilogue.
        let mut acc = [[[0.0; 4]; TILES_N]; TILES_M];
        if let Some(norm) = norm {
            if num_rows == 0 {
                return;
            }
            let smem = dynamic_shared_mem::<f32>();
            let smem = smem.offset(num_partials(TILES_M, TILES_N, A::PARTS, WARPS));
            let x = norm.rows::<E, TILES_M>((x.cast(), x_stride), num_rows, smem);
            multiply::<E, W, _, TILES_M, TILES_N, WARPS>(
                &x, &weights, cursor, prefetched, &mut acc,
            );
        } else {
            let x = x.cast().add(first_row as usize * x_stride as usize);
            let x = GlobalRows::<TILES_M>::new(x, x_stride, max_rows - first_row, W::VECS);
            multiply::<E, W, _, TILES_M, TILES_N, WARPS>(
                &x, &weights, cursor, prefetched, &mut acc,
            );
        }
        if A::PARTS == 2 {
            // Loaded late: few gated models have a bias, so it is not worth registers.
            bias_values = outputs.bias(bias);
        }
        // Loaded late as well, for the registers of the main loop.
        let scales = outputs.scales::<E, W>(scales);
        let smem = dynamic_shared_mem();
        outputs.store(smem, &acc, scales, bias_values, &residual_values, &epilogue);
    }
}
