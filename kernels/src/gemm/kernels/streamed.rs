//! Small-batch GEMM on sm_90a with the weight by TMA; the bits are those of
//! [`gemm_16_small_m`](super::small_m::gemm_16_small_m()).
//!
//! Launch    grid of at most one block an SM, block `(32 * WARPS, 1, 1)`; shared memory holds the
//!           warps' rings of stages, their partial sums and the normed x.
//! Bound     memory: the weight is read once.
//!
//! A block is persistent: it computes output tile after output tile. The host chooses a tile width
//! that gives all SMs equal parts: 24 of 3,072 columns, where blocks of 8 or 32 would leave a
//! partial last wave. Figures, where the time goes, and what was tried and rejected:
//! `docs/measurements/gemm_small_m.md`.

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;

use crate::activation::{GATES, Gate, NoGate};
use crate::gemm::epilogue::stream::{MAX_OUTPUTS, Outputs, num_partials};
use crate::gemm::epilogue::{Epilogue, Matrix, Out};
use crate::gemm::mainloop::stream::{
    Cursor, KTileAcc, STEP_K, STEPS, TILE_K, TileOrder, multiply_step,
};
use crate::gemm::operand::normed::{Norm, NormParams};
use crate::gemm::operand::ring::{Boxes, LaneLoads, ResidentLoads, Ring, XPlace};
use crate::gemm::operand::rows::Input;
use crate::tile::box_copy::Weight;
use crate::tile::element::Operand16;
use crate::tile::weight::{MAX_VECS, Scales, WeightElement};
use cuda_std::E4m3;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Blocks that should fit on an SM: one of this launch and one of the next, which prefetches its
/// weights before this launch has ended.
const fn min_blocks(tiles_m: usize) -> u32 {
    if tiles_m == 1 { 2 } else { 1 }
}

/// Whether a stage is released before its MMAs: where these take long, or where there are few of
/// them between two waits (`docs/measurements/gemm_small_m.md`).
const fn releases_early(tiles_m: usize, tiles_n: usize) -> bool {
    tiles_m >= 4 || tiles_n == 1
}

/// A block computes one output tile after another, up to `8 * TILES_M` rows by `8 * TILES_N`
/// columns; its `WARPS` warps split k.
///
/// # Safety
/// 1. `num_rows` is one element, at most `max_rows`, which is at most `8 * TILES_M`. The output and
///    `residual` hold `num_rows` rows at their strides; `bias` holds one element a row of `weight`.
///    `bias` and `residual` may be null. The output is `out_f32`, or `out` if `out_f32` is null.
/// 2. `weight_map` maps `weight` in boxes of `tile_columns` rows and 64 columns, `x_map` maps x in
///    boxes of `max_rows` rows and 64 columns, both with the 128-byte swizzle. If `NORMED`, `x`
///    holds `max_rows` rows of `k` elements, 16-byte aligned.
/// 3. The output is `residual`, or overlaps nothing that is read.
/// 4. In E4M3 units of 16 bits of `weight` are the elements of its map, `k` is a multiple of 16,
///    and `scales` are those of `weight`: a row of blocks has `scale_stride` of them, and an output
///    tile is in one; if that is 0, a row of the weight has one.
/// 5. `num_copied` is at most `num_ahead`, and that at most `num_stages`.
#[kernel(
    launch_bounds(WARPS as u32 * warp::WARP_SIZE, min_blocks(TILES_M)),
    target(sm_90a),
    overlaps,
    instances(
        E in [f16, bf16],
        A in GATES,
        gemm_{E}_streamed_m8_n8_w16 = <E, E, 1, 1, 16, false, NoGate>,
        gemm_{E}_streamed_m8_n16_w16 = <E, E, 1, 2, 16, false, NoGate>,
        gemm_{E}_streamed_m8_n32_w8 = <E, E, 1, 4, 8, false, NoGate>,
        gemm_{E}_streamed_m8_n16_w16_norm = <E, E, 1, 2, 16, true, NoGate>,
        gemm_{E}_streamed_m8_n32_w8_norm = <E, E, 1, 4, 8, true, NoGate>,
        gemm_{E}_streamed_m8_n8_w16_norm_{A} = <E, E, 1, 2, 16, true, A>,
        gemm_{E}_streamed_m8_n16_w8_norm_{A} = <E, E, 1, 4, 8, true, A>,
        gemm_{E}_streamed_m8_n8_w16_{A} = <E, E, 1, 2, 16, false, A>,
        gemm_{E}_streamed_m8_n16_w8_{A} = <E, E, 1, 4, 8, false, A>,
        gemm_{E}_streamed_m16_n16_w16 = <E, E, 2, 2, 16, false, NoGate>,
        gemm_{E}_streamed_m16_n32_w8 = <E, E, 2, 4, 8, false, NoGate>,
        gemm_{E}_streamed_m32_n8_w16 = <E, E, 4, 1, 16, false, NoGate>,
        gemm_{E}_streamed_m32_n16_w16 = <E, E, 4, 2, 16, false, NoGate>,
        gemm_{E}_streamed_m32_n24_w8 = <E, E, 4, 3, 8, false, NoGate>,
        gemm_{E}_streamed_m32_n32_w8 = <E, E, 4, 4, 8, false, NoGate>,
        gemm_{E}_streamed_m32_n40_w8 = <E, E, 4, 5, 8, false, NoGate>,
        gemm_{E}_streamed_m32_n48_w8 = <E, E, 4, 6, 8, false, NoGate>,
        gemm_f16_e4m3_streamed_m8_n32_w8 = <f16, E4m3, 1, 4, 8, false, NoGate>,
        gemm_f16_e4m3_streamed_m8_n32_w8_norm = <f16, E4m3, 1, 4, 8, true, NoGate>,
        gemm_f16_e4m3_streamed_m8_n16_w8_norm_{A} = <f16, E4m3, 1, 4, 8, true, A>,
        gemm_f16_e4m3_streamed_m8_n16_w8_{A} = <f16, E4m3, 1, 4, 8, false, A>,
        gemm_f16_e4m3_streamed_m16_n32_w8 = <f16, E4m3, 2, 4, 8, false, NoGate>
    )
)]
pub unsafe fn gemm_16_streamed<
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
    out: GlobalMut<E>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
    // Last, so that the parameters above share fewer lines of the constant cache.
    weight: Global<W>,
    weight_stride: u32,
    scales: Global<f32>,
    scale_stride: u32,
    x_map: TensorMap,
    weight_map: TensorMap,
) {
    const { assert!(!NORMED || TILES_M == 1, "a block has shared memory for one tile's rows") };
    let num_parts = A::PARTS as u32;
    // In units of 16 bits.
    let (weight_k, weight_stride) = (k / W::VECS as u32, weight_stride / W::VECS as u32);
    let is_resident = !NORMED && W::VECS > 1;
    let boxes = Boxes {
        weight: Weight {
            elems: weight.cast(),
            stride: weight_stride,
            rows: num_parts * n,
            k: weight_k,
            is_gated: false,
        },
        weight_map,
        tile_columns,
        num_parts,
        n,
        x: x_map,
        x_rows: if NORMED { 0 } else { max_rows },
        x_place: if is_resident {
            XPlace::Resident { box_rows: ResidentLoads::<TILES_M>::BOX_ROWS, k: weight_k }
        } else {
            XPlace::Stages
        },
    };
    // SAFETY: the launch gives shared memory for the rings, the barriers, the partial sums and the
    // normed rows, in this order. Results of rows past the last one are not stored.
    unsafe {
        // 1. Before the previous launch has ended: loads of what it does not write.
        let stages = dynamic_shared_mem::<u16>();
        let barriers = stages.offset(Ring::<WARPS>::num_elems(&boxes, num_stages)).cast::<u64>();
        let partials = barriers.offset(Ring::<WARPS>::num_words(num_stages)).cast::<f32>();
        let mut ring = Ring::<WARPS>::new(boxes, weight_k, stages, barriers, num_stages);
        ring.prefetch_weights(num_copied, num_ahead);
        let params = NormParams { k, reciprocal: k_reciprocal, eps, vecs: W::VECS };
        let norm = NORMED.then(|| Norm::<WARPS>::new(norm_weight, params));
        let num_rows = num_rows.get(0);

        // 2. After it.
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let num_filled = ring.fill(num_ahead);
        if num_rows == 0 {
            ring.drain(num_filled);
            return;
        }
        let normed = norm.map(|norm| {
            let smem = partials.offset(num_partials(TILES_M, TILES_N, A::PARTS, WARPS));
            norm.rows::<E, TILES_M>((x, x_stride), num_rows, smem)
        });

        // 3. One output tile after another.
        let loads = LaneLoads::<TILES_M, TILES_N>::new(&boxes, num_rows);
        let resident_loads = ResidentLoads::<TILES_M>::new(num_rows);
        let is_stored = NORMED || is_resident;
        let x_order = if is_stored { TileOrder::AsStored } else { TileOrder::Swizzled };
        let residual = Matrix { ptr: residual, row_stride: residual_stride };
        let out = Matrix { ptr: Out { half: out, f32: out_f32 }, row_stride: out_stride };
        let epilogue = Epilogue { num_rows, n, bias, residual, out };
        let scales = Scales { scales, stride: scale_stride };
        let mut column = thread::block_idx_x() * tile_columns;
        let mut is_first = true;
        ring.wait_for_copies();
        while column < n {
            let orders = [x_order, TileOrder::Swizzled];
            let end = n.min(column + tile_columns);
            let outputs = Outputs::<TILES_M, TILES_N, WARPS, A>::new(column, end, n, orders);
            let bias = outputs.bias(bias);
            let tile_scales = outputs.tile_scales(scales);
            let row_scales = outputs.scales::<E, W>(scales);
            let mut residual_values = [0.0; MAX_OUTPUTS];
            if !NORMED {
                residual_values = outputs.residual(&epilogue);
            }
            let mut acc = [[[0.0; 4]; TILES_N]; TILES_M];
            let mut cursor = Cursor::new(weight_k);
            while cursor.is_inside(0) {
                let block_scales = tile_scales.load::<E, W, TILES_N>(cursor, 0);
                ring.wait();
                let load = |step| {
                    let mut x = [[[0; 4]; TILES_M]; MAX_VECS];
                    for vec in 0..W::VECS {
                        x[vec] = match &normed {
                            Some(rows) => rows.load(cursor, step * STEP_K, [vec, W::VECS]),
                            None if is_resident => {
                                ring.load_resident(&resident_loads, cursor.unit(0), step, vec)
                            }
                            None => loads.x.map(|load| ring.load(load, step)),
                        };
                    }
                    (x, loads.weights.map(|load| ring.load(load, step)))
                };
                let mut k_tile_acc = KTileAcc::new::<E, W>(&acc);
                if const { releases_early(TILES_M, TILES_N) } {
                    let steps: [_; STEPS] = [load(0), load(1)];
                    ring.release();
                    for (x, weights) in &steps {
                        multiply_step::<E, W, TILES_M, TILES_N>(x, weights, &mut k_tile_acc);
                    }
                } else {
                    for step in 0..STEPS as u32 {
                        let (x, weights) = load(step);
                        multiply_step::<E, W, TILES_M, TILES_N>(&x, &weights, &mut k_tile_acc);
                    }
                    ring.release();
                }
                k_tile_acc.add_to::<E, W>(block_scales, tile_scales.part_tiles, &mut acc);
                cursor.advance(WARPS as u32 * TILE_K);
            }
            if !is_first {
                // All threads have read the partial sums of the previous tile.
                thread::sync_threads();
            }
            outputs.store(partials, &acc, row_scales, bias, &residual_values, &epilogue);
            is_first = false;
            column += thread::grid_dim_x() * tile_columns;
        }
    }
}
