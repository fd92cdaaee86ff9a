//! GEMM for few rows (decode) on the tensor cores.

mod epilogue;
mod mainloop;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::SmallM16;

use crate::tile::element::Operand16;
use cuda_std::prelude::*;
use epilogue::{Destination, Outputs};
use half::{bf16, f16};
use mainloop::{Cursor, LaneRow, TILE, lane_group, load_stage, multiply};

/// Warps that an SM should hold: what their accumulators and rows of x leave room for.
const fn warps_per_sm(tiles_m: usize, tiles_n: usize) -> usize {
    match (tiles_m, tiles_n) {
        (1, 1) => 32,
        (8, 2..) => 8,
        _ => 16,
    }
}

/// Blocks that should fit on an SM.
const fn min_blocks(tiles_m: usize, tiles_n: usize, warps: usize) -> u32 {
    let blocks = warps_per_sm(tiles_m, tiles_n) / warps;
    if blocks == 0 { 1 } else { blocks as u32 }
}

/// Waits for the launches before, on devices that start one early.
#[inline(always)]
fn wait_for_dependencies() {
    #[cfg(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"))]
    {
        grid::launch_dependents();
        grid::wait_for_dependencies();
    }
}

/// `8 * TILES_N` columns of up to `8 * TILES_M` rows a block, whose `WARPS` share k.
///
/// # Safety
/// 1. `num_rows` is one element, at most `8 * TILES_M`; `x` and the output hold that many rows,
///    `weight` holds `n`, at their strides; `bias` and `residual` are null or hold as much as the
///    output asks for. The output is `out_f32`, or `out` if that is null.
/// 2. The output is `residual`, or overlaps nothing that is read.
/// 3. Rows of `x` and `weight` start at multiples of 16 bytes, and `k` is a multiple of 8.
#[kernel(
    launch_bounds(WARPS as u32 * warp::WARP_SIZE, min_blocks(TILES_M, TILES_N, WARPS)),
    instances(
        gemm_f16_small_m8_n8_w16 = <f16, 1, 1, 16>,
        gemm_f16_small_m8_n8_w8 = <f16, 1, 1, 8>,
        gemm_f16_small_m8_n32_w8 = <f16, 1, 4, 8>,
        gemm_f16_small_m16_n8_w16 = <f16, 2, 1, 16>,
        gemm_f16_small_m16_n32_w8 = <f16, 2, 4, 8>,
        gemm_f16_small_m32_n8_w16 = <f16, 4, 1, 16>,
        gemm_f16_small_m32_n32_w8 = <f16, 4, 4, 8>,
        gemm_f16_small_m64_n8_w16 = <f16, 8, 1, 16>,
        gemm_f16_small_m64_n32_w8 = <f16, 8, 4, 8>,
        gemm_bf16_small_m8_n8_w16 = <bf16, 1, 1, 16>,
        gemm_bf16_small_m8_n8_w8 = <bf16, 1, 1, 8>,
        gemm_bf16_small_m8_n32_w8 = <bf16, 1, 4, 8>,
        gemm_bf16_small_m16_n8_w16 = <bf16, 2, 1, 16>,
        gemm_bf16_small_m16_n32_w8 = <bf16, 2, 4, 8>,
        gemm_bf16_small_m32_n8_w16 = <bf16, 4, 1, 16>,
        gemm_bf16_small_m32_n32_w8 = <bf16, 4, 4, 8>,
        gemm_bf16_small_m64_n8_w16 = <bf16, 8, 1, 16>,
        gemm_bf16_small_m64_n32_w8 = <bf16, 8, 4, 8>
    )
)]
pub unsafe fn gemm_16_small_m<
    E: Operand16,
    const TILES_M: usize,
    const TILES_N: usize,
    const WARPS: usize,
>(
    num_rows: Global<u32>,
    n: u32,
    k: u32,
    x: Global<u16>,
    x_stride: u32,
    weight: Global<u16>,
    weight_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<u16>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
) {
    let block_n = thread::block_idx_x() * TILES_N as u32 * TILE;
    let outputs = Outputs::<TILES_M, TILES_N, WARPS>::new(block_n, n);
    let cursor = Cursor::new(k);
    // SAFETY: rows past the last one are the last one, whose results nobody stores.
    unsafe {
        // 1. What no launch before this one writes.
        let mut weight_rows = [LaneRow::new(0, 0); TILES_N];
        for tile in 0..TILES_N {
            let row = block_n + tile as u32 * TILE + lane_group();
            weight_rows[tile] = LaneRow::new(row.min(n - 1), weight_stride);
        }
        let weights = (weight, &weight_rows);
        let stages = [
            load_stage::<TILES_N, WARPS, 0>(weights, cursor),
            load_stage::<TILES_N, WARPS, 1>(weights, cursor),
        ];
        let bias = outputs.bias(bias);

        // 2. What they may.
        wait_for_dependencies();
        let num_rows = num_rows.get(0);
        if num_rows == 0 {
            return;
        }
        let residual = outputs.residual(num_rows, residual, residual_stride);
        let mut x_rows = [LaneRow::new(0, 0); TILES_M];
        for tile in 0..TILES_M {
            let row = tile as u32 * TILE + lane_group();
            x_rows[tile] = LaneRow::new(row.min(num_rows - 1), x_stride);
        }

        // 3. Products, and their sum over the warps.
        let mut acc = [[[0.0; 4]; TILES_N]; TILES_M];
        multiply::<E, TILES_M, TILES_N, WARPS>((x, &x_rows), weights, cursor, stages, &mut acc);
        let out = Destination { half: out.cast::<E>(), single: out_f32, stride: out_stride };
        outputs.store(num_rows, &acc, bias, &residual, &out);
    }
}
