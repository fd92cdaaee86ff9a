//! GEMM of few rows on sm_90: as [`gemm_16_small_m`](super::gemm_16_small_m), with the bits of it,
//! but the weight comes by TMA.
//!
//! Launch    grid of at most as many blocks as the GPU has SMs, block `(32 * WARPS, 1, 1)`; the rings,
//!           the sums of all warps and the normed rows in shared memory.
//! Bound     memory: the weight is read once, `2 * n * k` bytes.
//!
//! A block computes tile after tile of columns; the host makes tiles of as many columns as leave all
//! SMs equal parts: of 3072 columns 24 each, where blocks of 8 or 32 make a last wave of a part of the
//! SMs.
//!
//! Tried on an H200 and slower, in us of 896 x 896, one row and eight: x in shared memory by bulk copies,
//! one a row, before the loop 3.2 and 4.1, by loads from global memory a line ahead 2.9 and 3.2; as it is,
//! in the boxes of the lines, 2.5 and 2.6. One box has a fixed cost: with `cp.async.bulk` a row of 512
//! bytes instead of boxes 9216 x 3072 takes 43, and boxes of 32 columns, which need no swizzle, 4 to 13 % more.
//! Weights by `cp.async`, 16 bytes a lane: 9216 x 3072 18.2, by TMA 15.5.
//!
//! Of eight rows, where this takes 2.5 of 896 x 896, 6.3 of 3072 x 3072, 25.4 of 12288 x 4096: boxes of four lines,
//! by a map with lines as a dimension, that four warps share 2.7, 6.6, 25.1; weights as `wgmma`'s B in blocks
//! of a cluster that share k, x in shared memory throughout 3.6, 8.0, 26.8; weights loaded to registers as
//! whole lines, for x that stays in registers 2.8, 7.1, 25.7. A grid that only reads the weights so: 2.0, 5.8, 24.0.
//! As whole lines whose halves lanes then exchange by shuffles, in the same order of sums, 2.7, 8.1, 27.8. Boxes of
//! two lines: the same as of one. Promotion to 256 bytes in L2: 2 to 5 % more; none at all, or x prefetched to L2: the
//! same. As loads of four whole lines, the halves of a line by the rows of `mma` that eight rows of x leave idle, x
//! loaded beside them: 2.3, 6.5, 25.2, but 9728 x 896 6.5 for 6.3, and 32 rows of 896 x 896 3.1 for 2.9.
//!
//! The first weights of a warp copied by its lanes (where that is done, see `SmallM16`): x of the same stage copied
//! too, 8 rows of 896 x 896 2.6 us, 32 rows 3.6, by TMA 2.5 and 3.3, and weights as well by TMA 2.3 and 3.0.
//!
//! 32 rows split between two blocks, each with twice the columns, so that x is fewer bytes: 896 x 896 2.7 for 2.8,
//! 1152 x 896 3.2 for 3.3, but 896 x 4864 5.9 for 5.6, and 17 rows of it 6.4 for 4.8.
//!
//! Where the time goes, by kernels without a part, in us on one H200 (a kernel that ends at once takes 0.6, one
//! that loads one word 1.2):
//!
//! | rows, n, k | all | no `mma` | no `mma`, stages not read | no sums, no stores | only TMA | only TMA, of weights |
//! | --- | --- | --- | --- | --- | --- | --- |
//! | 8, 896, 896 | 2.6 | 2.5 | 2.2 | 2.5 | 2.1 | 2.1 |
//! | 8, 3072, 3072 | 6.5 | 6.3 | 6.1 | 6.4 | 5.9 | 6.0 |
//! | 8, 12288, 4096 | 25.8 | 25.3 | 25.0 | 25.4 | 24.6 | 24.6 |
//! | 32, 896, 896 | 2.9 | 2.7 | 2.5 | 2.7 | 2.3 | 2.1 |
//! | 32, 3072, 3072 | 7.6 | 6.9 | 6.6 | 7.1 | 6.2 | 6.1 |
//! | 32, 22016, 4096, tiles of 48 columns | 46.2 | 45.1 | 44.6 | 44.7 | 43.4 | 43.1 |
//!
//! What TMA alone takes, a ring a warp, by the rows and lines of k of a box (a 3D map's, lines in front of rows or
//! behind: the same) and the bytes under way; loads of 2 KiB a warp take 1.8, 5.6, 13.8, 23.2, 40.1:
//!
//! | warps, rows, lines, KiB | 896, 896 | 3072, 3072 | 9216, 3072 | 12288, 4096 | 22016, 4096 |
//! | --- | --- | --- | --- | --- | --- |
//! | 8, 8, 1, 64 | 2.2 | 6.2 | 14.7 | 24.4 | 42.0 |
//! | 8, 8, 1, 128 | 2.2 | 6.3 | 15.8 | 26.9 | 48.1 |
//! | 16, 8, 1, 128 | 2.2 | 6.8 | 20.1 | 39.0 | 70.8 |
//! | 8, 16, 1, 128 | 2.2 | 6.1 | 14.4 | 24.4 | 42.9 |
//! | 8, 32, 1, 128 | 2.2 | 6.0 | 14.6 | 25.6 | 42.1 |
//! | 8, 8, 4, 128 | 2.1 | 6.0 | 14.4 | 24.0 | 41.5 |
//! | 4, 16, 4, 128 | 2.1 | 6.0 | 14.2 | 24.0 | 41.5 |
//! | 4, 8, 16, 192 (no swizzle, 2 KiB a row) | 2.1 | 6.0 | 14.3 | 23.9 | 41.4 |
//!
//! So many small boxes in flight are slow, and boxes of four lines would save up to 3 % of large weights.

use super::epilogue::{Destination, MAX_OUTPUTS, Outputs, num_sums};
use super::input::Input;
use super::mainloop::{Cursor, LINE_K, STEP_K, STEPS, TileOrder, multiply_step};
use super::normed::{Norm, Shape};
use super::ring::{Boxes, LaneLoads, Ring};
use crate::silu_mul::num_parts;
use crate::tile::box_copy::Weight;
use crate::tile::element::Operand16;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Blocks that should fit on an SM: this launch's and the next one's, whose weights are under way
/// before this one has ended.
const fn min_blocks(tiles_m: usize) -> u32 {
    if tiles_m == 1 { 2 } else { 1 }
}

/// Whether a stage is released before its products: where they take a warp long, or there is little else
/// to wait for. On an H200 32 rows of 22016 x 4096 take 45.8 us so and 46.9, 8 rows of 896 x 4864 4.4 and
/// 4.6, but of 3072 x 8192 13.8 and 13.6.
const fn releases_early(tiles_m: usize, tiles_n: usize) -> bool {
    tiles_m >= 4 || tiles_n == 1
}

/// Tiles of up to `8 * TILES_N` columns of up to `8 * TILES_M` rows, a block as many as it comes to;
/// its `WARPS` share k.
///
/// # Safety
/// 1. `num_rows` is one element, at most `max_rows`, which is at most `8 * TILES_M`; the output holds
///    that many rows at its stride; `bias` and `residual` are null or hold as much as the output asks
///    for. The output is `out_f32`, or `out` if that is null.
/// 2. `weight_map` is of `weight`, in boxes of `tile_columns` rows and 64 columns, `x_map` of x,
///    `max_rows` rows in boxes of as many and 64 columns, both swizzled by 128 bytes; where x is
///    normed, it holds `max_rows` rows of `k` elements at multiples of 16 bytes.
/// 3. The output is `residual`, or overlaps nothing that is read.
/// 4. `num_copied` is at most `num_ahead`, and that at most `num_stages`.
#[kernel(
    launch_bounds(WARPS as u32 * warp::WARP_SIZE, min_blocks(TILES_M)),
    target(sm_90a),
    overlaps,
    instances(
        gemm_f16_streamed_m8_n8_w16 = <f16, 1, 1, 16, false, false>,
        gemm_f16_streamed_m8_n16_w16 = <f16, 1, 2, 16, false, false>,
        gemm_f16_streamed_m8_n32_w8 = <f16, 1, 4, 8, false, false>,
        gemm_f16_streamed_m8_n16_w16_norm = <f16, 1, 2, 16, true, false>,
        gemm_f16_streamed_m8_n32_w8_norm = <f16, 1, 4, 8, true, false>,
        gemm_f16_streamed_m8_n8_w16_norm_silu = <f16, 1, 2, 16, true, true>,
        gemm_f16_streamed_m8_n16_w8_norm_silu = <f16, 1, 4, 8, true, true>,
        gemm_f16_streamed_m16_n16_w16 = <f16, 2, 2, 16, false, false>,
        gemm_f16_streamed_m16_n32_w8 = <f16, 2, 4, 8, false, false>,
        gemm_f16_streamed_m32_n8_w16 = <f16, 4, 1, 16, false, false>,
        gemm_f16_streamed_m32_n16_w16 = <f16, 4, 2, 16, false, false>,
        gemm_f16_streamed_m32_n24_w8 = <f16, 4, 3, 8, false, false>,
        gemm_f16_streamed_m32_n32_w8 = <f16, 4, 4, 8, false, false>,
        gemm_f16_streamed_m32_n40_w8 = <f16, 4, 5, 8, false, false>,
        gemm_f16_streamed_m32_n48_w8 = <f16, 4, 6, 8, false, false>,
        gemm_bf16_streamed_m8_n8_w16 = <bf16, 1, 1, 16, false, false>,
        gemm_bf16_streamed_m8_n16_w16 = <bf16, 1, 2, 16, false, false>,
        gemm_bf16_streamed_m8_n32_w8 = <bf16, 1, 4, 8, false, false>,
        gemm_bf16_streamed_m8_n16_w16_norm = <bf16, 1, 2, 16, true, false>,
        gemm_bf16_streamed_m8_n32_w8_norm = <bf16, 1, 4, 8, true, false>,
        gemm_bf16_streamed_m8_n8_w16_norm_silu = <bf16, 1, 2, 16, true, true>,
        gemm_bf16_streamed_m8_n16_w8_norm_silu = <bf16, 1, 4, 8, true, true>,
        gemm_bf16_streamed_m16_n16_w16 = <bf16, 2, 2, 16, false, false>,
        gemm_bf16_streamed_m16_n32_w8 = <bf16, 2, 4, 8, false, false>,
        gemm_bf16_streamed_m32_n8_w16 = <bf16, 4, 1, 16, false, false>,
        gemm_bf16_streamed_m32_n16_w16 = <bf16, 4, 2, 16, false, false>,
        gemm_bf16_streamed_m32_n24_w8 = <bf16, 4, 3, 8, false, false>,
        gemm_bf16_streamed_m32_n32_w8 = <bf16, 4, 4, 8, false, false>,
        gemm_bf16_streamed_m32_n40_w8 = <bf16, 4, 5, 8, false, false>,
        gemm_bf16_streamed_m32_n48_w8 = <bf16, 4, 6, 8, false, false>
    )
)]
pub unsafe fn gemm_16_streamed<
    E: Operand16,
    const TILES_M: usize,
    const TILES_N: usize,
    const WARPS: usize,
    const NORMED: bool,
    const GATED: bool,
>(
    num_rows: Global<u32>,
    max_rows: u32,
    n: u32,
    k: u32,
    tile_columns: u32,
    num_stages: u32,
    num_copied: u32,
    num_ahead: u32,
    x: Global<f32>,
    x_stride: u32,
    norm_weight: Global<f32>,
    k_reciprocal: f32,
    eps: f32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<u16>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
    // Behind the others, which share few lines of the constant cache so: 896 x 896 takes 1 % less.
    weight: Global<u16>,
    weight_stride: u32,
    x_map: TensorMap,
    weight_map: TensorMap,
) {
    const { assert!(!NORMED || TILES_M == 1, "a block has shared memory for one tile's rows") };
    let num_parts = num_parts(GATED) as u32;
    let boxes = Boxes {
        weight: Weight { elems: weight, stride: weight_stride, rows: num_parts * n, k },
        weight_map,
        tile_columns,
        num_parts,
        n,
        x: x_map,
        x_rows: if NORMED { 0 } else { max_rows },
    };
    // SAFETY: the launch gives shared memory for the rings, the barriers, the sums and the normed
    // rows, in this order. Rows past the last one have results that nobody stores.
    unsafe {
        // 1. What no launch before this one writes.
        let stages = dynamic_shared_mem::<u16>();
        let barriers = stages.offset(Ring::<WARPS>::num_elems(&boxes, num_stages)).cast::<u64>();
        let sums = barriers.offset(Ring::<WARPS>::num_words(num_stages)).cast::<f32>();
        let mut ring = Ring::<WARPS>::new(boxes, k, stages, barriers, num_stages);
        ring.start(num_copied, num_ahead);
        let shape = Shape { k, reciprocal: k_reciprocal, eps };
        let norm = NORMED.then(|| Norm::<WARPS>::new(norm_weight, shape));
        let num_rows = num_rows.get(0);

        // 2. What they may.
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let num_filled = ring.fill(num_ahead);
        if num_rows == 0 {
            ring.drain(num_filled);
            return;
        }
        let normed = norm.map(|norm| {
            let smem = sums.offset(num_sums(TILES_M, TILES_N, GATED, WARPS));
            norm.rows::<E, TILES_M>((x, x_stride), num_rows, smem)
        });

        // 3. Tile after tile.
        let loads = LaneLoads::<TILES_M, TILES_N>::new(&boxes, num_rows);
        let x_order = if NORMED { TileOrder::AsStored } else { TileOrder::Swizzled };
        let out = Destination { half: out.cast::<E>(), single: out_f32, stride: out_stride };
        let mut column = thread::block_idx_x() * tile_columns;
        let mut is_first = true;
        ring.wait_for_copies();
        while column < n {
            let orders = [x_order, TileOrder::Swizzled];
            let end = n.min(column + tile_columns);
            let outputs = Outputs::<TILES_M, TILES_N, WARPS, GATED>::new(column, end, n, orders);
            let bias = outputs.bias(bias);
            let mut added = [0.0; MAX_OUTPUTS];
            if !NORMED {
                added = outputs.residual(num_rows, residual, residual_stride);
            }
            let mut acc = [[[0.0; 4]; TILES_N]; TILES_M];
            let mut cursor = Cursor::new(k);
            while cursor.is_inside(0) {
                ring.wait();
                let load = |step| {
                    let x = match &normed {
                        Some(rows) => rows.load(cursor, step * STEP_K),
                        None => loads.x.map(|load| ring.load(load, step)),
                    };
                    (x, loads.weights.map(|load| ring.load(load, step)))
                };
                if const { releases_early(TILES_M, TILES_N) } {
                    let steps: [_; STEPS] = [load(0), load(1)];
                    ring.release();
                    for (x, weights) in &steps {
                        multiply_step::<E, TILES_M, TILES_N>(x, weights, &mut acc);
                    }
                } else {
                    for step in 0..STEPS as u32 {
                        let (x, weights) = load(step);
                        multiply_step::<E, TILES_M, TILES_N>(&x, &weights, &mut acc);
                    }
                    ring.release();
                }
                cursor.advance(WARPS as u32 * LINE_K);
            }
            if !is_first {
                // The sums of the tile before have been read.
                thread::sync_threads();
            }
            outputs.store(sums, num_rows, &acc, bias, &added, &out);
            is_first = false;
            column += thread::grid_dim_x() * tile_columns;
        }
    }
}
