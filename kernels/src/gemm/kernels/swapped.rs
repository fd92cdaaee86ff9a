//! GEMM of small batches and many columns on Hopper's tensor cores, with swapped operands ("swap
//! A/B"): the weight's rows are the 64 rows of `wgmma`, the rows of x its 8 to 32 columns.
//!
//! Shapes    those of [`gemm_f16_sm90`](mod@super::sm90::gemm_f16_sm90), also with a gate; at most 32
//!           rows.
//! Launch    persistent: at most one block an SM, block `(NUM_THREADS, 1, 1)`; the stages and their
//!           barriers in dynamic shared memory.
//! Numerics  those of `gemm_f16_sm90` without split-K, bit by bit.
//! Bound     memory: the weight is read once, `2 * n * k` bytes.
//! Source    CUTLASS and DeepGEMM ("swap A/B").
//!
//! A tile is all rows of x and 64 to 128 columns of the output; the host chooses the columns so
//! that all SMs get equal shares. One producer lane fills the stages by TMA: 64 columns of k of x
//! and of the tile's rows of the weight, with a gate eight of gate and eight of up in turn: a thread
//! has accumulators of both. The consumers copy the weights of the first stages
//! themselves, see [`box_copy`]. Two consumer warpgroups: the first has the first 64 columns of the
//! tile; the second the last 64 rows of the stage, of which it stores those that the first one does
//! not. No warps split k, so there are no partial sums to reduce: that reduction is what makes
//! [`gemm_16_streamed`](mod@super::streamed::gemm_16_streamed) slower where an SM has many
//! columns.
//!
//! Measurements, prototypes and rejected variants: `docs/measurements/gemm_sm90_swapped.md`.

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Swapped16;

use crate::activation::{GATES, Gate, NoGate};
use crate::gemm::config::wgmma::BLOCK_K;
use crate::gemm::epilogue::wgmma_swapped::Columns;
use crate::gemm::epilogue::{Epilogue, Matrix, Out};
use crate::gemm::mainloop::accumulators::Multiply;
use crate::gemm::mainloop::wgmma_swapped::{KBlock, NUM_CONSUMERS, Ring, stage_columns};
use crate::tile::box_copy::{self, Weight};
use crate::tile::element::Operand16;
use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;
use half::{bf16, f16};

/// Rows of the weight of a warpgroup: the rows of `wgmma`.
const WARPGROUP_COLUMNS: u32 = 64;

/// Threads of a block: the last warp is the producer.
const NUM_THREADS: u32 = NUM_CONSUMERS * warp::WARPGROUP_SIZE + warp::WARP_SIZE;

/// The named barrier after which the pipeline's barriers are initialised.
const BARRIERS_ARE_MADE: u32 = 1;

/// The named barrier at which consumers wait for each other's copies.
const COPIES_ARE_THERE: u32 = 2;

// The accumulators of a warpgroup, by rows of x.
type Rows8 = [Accumulator<4>; 1];
type Rows16 = [Accumulator<8>; 1];
type Rows32 = [Accumulator<16>; 1];

/// Tiles of `tile_columns` rows of the weight, of which block `i` has every `grid`-th from `i` on.
///
/// # Safety
/// 1. `num_rows` is one element, at most the rows of x, written by no launch that this one
///    overlaps; the output holds that many rows of `n` columns at its stride; `bias` is null or
///    holds an element for each row of the weight, `residual` is null or as the output. The output
///    is `out_f32`, or `out` if that is null.
/// 2. `x` is the tensor map of at most `A::COLUMNS` rows in boxes of as many; `weight_map` that of
///    `weight`, `n` rows in boxes of `tile_columns`, a multiple of 2 from 64 to 128; both
///    of `k > 0` columns in boxes of 64, with 128-byte swizzle. With a gate `weight` has `2 * n`
///    rows, of which boxes have [`GATE_ROWS`](box_copy::GATE_ROWS) of gate and of up in turn; `n`
///    is a multiple of them and `tile_columns` of twice as many; the output is `out`, and
///    `residual` is null.
/// 3. The output is `residual`, or overlaps nothing that is read.
/// 4. `num_copied` <= `num_ahead` <= `num_stages` <= the blocks of k of a tile.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    target(sm_90a),
    overlaps,
    instances(
        E in [f16, bf16],
        G in GATES,
        gemm_{E}_swapped_m8 = <E, Rows8, NoGate>,
        gemm_{E}_swapped_m16 = <E, Rows16, NoGate>,
        gemm_{E}_swapped_m32 = <E, Rows32, NoGate>,
        gemm_{E}_swapped_m16_{G} = <E, Rows16, G>,
        gemm_{E}_swapped_m32_{G} = <E, Rows32, G>
    )
)]
pub unsafe fn gemm_16_swapped<E: Operand16, A: Multiply<E>, G: Gate>(
    num_rows: Global<u32>,
    n: u32,
    k: u32,
    tile_columns: u32,
    num_stages: u32,
    num_copied: u32,
    num_ahead: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<E>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
    weight: Global<E>,
    weight_stride: u32,
    // Last, so that the other parameters share few lines of the constant cache.
    x: TensorMap,
    weight_map: TensorMap,
) {
    // SAFETY: the launch gives shared memory for the stages and the barriers.
    let smem_x = unsafe { dynamic_shared_mem::<E>() };
    let smem_weight = smem_x.offset(num_stages * A::COLUMNS * BLOCK_K);
    let barriers = smem_weight.offset(num_stages * stage_columns(tile_columns) * BLOCK_K).cast();
    let ring = Ring {
        smem_x,
        smem_weight,
        // SAFETY: one thread initialises the barriers, and all others wait for it.
        pipeline: unsafe { Pipeline::new(barriers, num_stages) },
        x,
        weight: weight_map,
        x_rows: A::COLUMNS,
        tile_columns,
        k,
    };
    let first = KBlock { column: thread::block_idx_x() * tile_columns, k: 0 };
    let weight_rows = n * G::PARTS as u32;
    // SAFETY: one element, that no launch writes.
    let num_rows = unsafe { num_rows.get(0) };
    let warpgroup_idx = warp::warpgroup_idx();

    if warpgroup_idx == NUM_CONSUMERS {
        // 1. The producer: one lane.
        let is_producer = warp::lane_id() == 0;
        let (mut k_block, mut stage) = (first, Stage::FIRST);
        if is_producer {
            ring.pipeline.init(NUM_CONSUMERS * 4);
            // Weights, which no previous launch writes, before the wait for it.
            for stage_idx in 0..num_ahead {
                if stage_idx < num_copied {
                    ring.expect_x(stage);
                } else {
                    // SAFETY: the stage is unused.
                    unsafe { ring.load_weight::<G>(stage, k_block) };
                }
                k_block = ring.next(k_block);
                stage = ring.pipeline.next(stage);
            }
        }
        warp::sync_warp();
        barrier::arrive::<BARRIERS_ARE_MADE, NUM_THREADS>();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        if is_producer {
            // SAFETY: the stages are empty, or hold the weights of the same blocks of k; x is
            // written.
            unsafe {
                let (mut x_k_block, mut x_stage) = (first, Stage::FIRST);
                for _ in 0..num_ahead {
                    ring.load_x(x_stage, x_k_block);
                    x_k_block = ring.next(x_k_block);
                    x_stage = ring.pipeline.next(x_stage);
                }
                while k_block.column < weight_rows {
                    ring.pipeline.wait_empty(stage);
                    ring.load_weight::<G>(stage, k_block);
                    ring.load_x(stage, k_block);
                    k_block = ring.next(k_block);
                    stage = ring.pipeline.next(stage);
                }
            }
        }
    } else {
        // 2. The consumers: they copy the weights of the first stages, then each warpgroup computes
        //    its columns of every tile.
        let (elems, stride) = (weight.cast(), weight_stride);
        let weight = Weight { elems, stride, rows: weight_rows, k, is_gated: G::PARTS == 2 };
        // SAFETY: the stages are empty.
        unsafe { ring.copy_weights(weight, first, num_copied) };
        barrier::sync::<BARRIERS_ARE_MADE, NUM_THREADS>();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        box_copy::wait_for_copies();
        barrier::sync::<COPIES_ARE_THERE, { NUM_CONSUMERS * warp::WARPGROUP_SIZE }>();
        let residual = Matrix { ptr: residual, row_stride: residual_stride };
        let out = Matrix { ptr: Out { half: out, f32: out_f32 }, row_stride: out_stride };
        let epilogue = Epilogue { num_rows, n, bias, residual, out };
        let in_tile = warpgroup_idx * WARPGROUP_COLUMNS;
        let first_column = in_tile.min(stage_columns(tile_columns) - WARPGROUP_COLUMNS);
        let (mut column, mut stage) = (first.column, Stage::FIRST);
        while column < weight_rows {
            // SAFETY: the consumers run through the producer's tiles; each column is stored once,
            // and is inside.
            unsafe {
                let (acc, next_stage) = ring.multiply_tile::<A>(stage, first_column);
                stage = next_stage;
                let (first, start) = (column + first_column, column + in_tile);
                let end = weight_rows.min(column + tile_columns);
                epilogue.store_swapped::<_, G>(&Columns { first, start, end }, acc);
            }
            column += thread::grid_dim_x() * tile_columns;
        }
    }
}
