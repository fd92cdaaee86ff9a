//! GEMM of small batches and many columns on Hopper's tensor cores, with swapped operands ("swap
//! A/B"): the weight's rows are the 64 rows of `wgmma`, the rows of x its 8 to 32 columns.
//!
//! Shapes    those of [`gemm_f16_sm90`](mod@super::gemm_f16_sm90), at most 32 rows.
//! Launch    persistent: at most one block an SM, block `(NUM_THREADS, 1, 1)`; the stages and their
//!           barriers in dynamic shared memory.
//! Numerics  those of `gemm_f16_sm90` without split-K, bit by bit.
//! Bound     memory: the weight is read once, `2 * n * k` bytes.
//! Source    CUTLASS and DeepGEMM ("swap A/B").
//!
//! A tile is all rows of x and 64 to 128 columns of the output; the host chooses the columns so
//! that all SMs get equal shares. One producer lane fills the stages by TMA: 64 columns of k of x
//! and of the tile's rows of the weight. The consumers copy the weights of the first stages
//! themselves, see [`box_copy`]. Two consumer warpgroups: the first has the first 64 columns of the
//! tile; the second the last 64 rows of the stage, of which it stores those that the first one does
//! not. No warps split k, so there are no partial sums to reduce: that reduction is what makes
//! [`gemm_16_streamed`](mod@crate::gemm::f16_small_m::gemm_16_streamed) slower where an SM has many
//! columns.
//!
//! Measurements, prototypes and rejected variants: `docs/measurements/gemm_sm90_swapped.md`.

mod epilogue;
#[cfg(not(target_arch = "nvptx64"))]
mod launcher;

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::Swapped16;

use super::accumulators::{Accumulators, Multiply};
use super::tiles::{BLOCK_K, ROW_BYTES};
use crate::tile::box_copy::{self, CopyThreads as Team, Weight};
use crate::tile::element::Operand16;
use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, MatrixDescriptor, Swizzle};
use epilogue::{Columns, Outputs};
use half::{bf16, f16};

/// Output columns of a warpgroup: the rows of `wgmma`.
const WARPGROUP_COLUMNS: u32 = 64;

/// Consumer warpgroups.
const NUM_CONSUMERS: u32 = 2;

/// Period of the 128-byte swizzle, in rows.
const SWIZZLE_ROWS: u32 = 8;

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

/// A block of 64 columns of k of a tile.
#[derive(Clone, Copy)]
struct KBlock {
    /// First column of the tile; `n` or more past the last tile.
    column: u32,
    /// First column of k.
    k: u32,
}

/// The stages of a block.
struct Ring<E> {
    /// x of all stages, followed by the weights of all stages.
    smem_x: Shared<E>,
    smem_weight: Shared<E>,
    pipeline: Pipeline,
    x: TensorMap,
    weight: TensorMap,
    /// Rows of x, and of the weight, that are loaded into a stage.
    x_rows: u32,
    tile_columns: u32,
    k: u32,
}

/// Rows of the weight that a stage has room for: whole periods of the swizzle. The last ones may
/// not be loaded: their accumulators are not stored.
const fn stage_columns(tile_columns: u32) -> u32 {
    tile_columns.next_multiple_of(SWIZZLE_ROWS)
}

impl<E: Operand16> Ring<E> {
    /// The block of k after this one: of the same tile, or the first of the next tile.
    #[inline(always)]
    fn next(&self, k_block: KBlock) -> KBlock {
        let k = k_block.k + BLOCK_K;
        if k < self.k {
            return KBlock { k, ..k_block };
        }
        KBlock { column: k_block.column + thread::grid_dim_x() * self.tile_columns, k: 0 }
    }

    /// Makes the stage's full barrier expect x alone: the consumers copy its weights.
    #[inline(always)]
    fn expect_x(&self, stage: Stage) {
        self.pipeline.full_barrier(stage).arrive_expect_tx(self.x_rows * ROW_BYTES);
    }

    /// Issues the consumer's copies of the weights of the first `num_copied` blocks of k, all of
    /// the first tile.
    ///
    /// # Safety
    /// 1. The stages are unused; all consumers call this.
    #[inline(always)]
    unsafe fn copy_weights(&self, weight: Weight, first: KBlock, num_copied: u32) {
        let num_threads = NUM_CONSUMERS * warp::WARPGROUP_SIZE;
        let threads = Team { num_threads, thread: thread::thread_idx_x() };
        for stage_idx in 0..num_copied {
            let origin = [first.k + stage_idx * BLOCK_K, first.column];
            let to = stage_idx * stage_columns(self.tile_columns);
            // SAFETY: the caller's promise.
            unsafe {
                weight.copy_box(threads, origin, self.tile_columns, self.smem_weight.cast(), to);
            }
        }
        box_copy::end_copies();
    }

    /// Issues the load of the weights of `k_block`. The full barrier expects x too.
    ///
    /// # Safety
    /// 1. The stage is empty; one thread calls this, and then [`Ring::load_x`].
    #[inline(always)]
    unsafe fn load_weight(&self, stage: Stage, k_block: KBlock) {
        let full_barrier = self.pipeline.full_barrier(stage);
        full_barrier.arrive_expect_tx((self.x_rows + self.tile_columns) * ROW_BYTES);
        let first_row = stage.stage_idx * stage_columns(self.tile_columns);
        let rows = self.smem_weight.offset(first_row * BLOCK_K);
        let origin = [k_block.k as i32, k_block.column as i32];
        // SAFETY: the caller's promise. Weights are read once.
        unsafe {
            bulk::tensor_load(rows, self.weight, origin, full_barrier, CacheHint::EvictFirst);
        }
    }

    /// Issues the load of x of `k_block`.
    ///
    /// # Safety
    /// 1. As [`Ring::load_weight`], and x is written.
    #[inline(always)]
    unsafe fn load_x(&self, stage: Stage, k_block: KBlock) {
        let full_barrier = self.pipeline.full_barrier(stage);
        let rows = self.smem_x.offset(stage.stage_idx * self.x_rows * BLOCK_K);
        // SAFETY: the caller's promise. All blocks read x.
        unsafe {
            let hint = CacheHint::EvictLast;
            bulk::tensor_load(rows, self.x, [k_block.k as i32, 0], full_barrier, hint);
        }
    }

    /// Multiplies a tile whose first stage is `stage`, for the warpgroup's columns from
    /// `first_column` of the tile on; returns the accumulators and the next stage.
    ///
    /// # Safety
    /// 1. All threads of all consumers call this, for the same tiles as the producer.
    #[inline(always)]
    unsafe fn multiply_tile<A: Multiply<E>>(
        &self,
        mut stage: Stage,
        first_column: u32,
    ) -> (A, Stage) {
        let weight = MatrixDescriptor::k_major(self.smem_weight, Swizzle::B128);
        let x = MatrixDescriptor::k_major(self.smem_x, Swizzle::B128);
        let mut acc = A::start();
        let mut previous = stage;
        let mut k = 0;
        while k < self.k {
            self.pipeline.wait_full(stage);
            wgmma::fence();
            let first_row = stage.stage_idx * stage_columns(self.tile_columns) + first_column;
            let weight = weight.advance(first_row * ROW_BYTES);
            let x = x.advance(stage.stage_idx * self.x_rows * ROW_BYTES);
            // SAFETY: the stage is full, and stays so until it is released.
            unsafe { A::multiply(&mut acc, weight, x) };
            wgmma::commit();
            // The MMAs of this stage are in flight while those of the previous one are waited for.
            wgmma::wait_group::<1>();
            if k > 0 {
                self.release(previous);
            }
            previous = stage;
            stage = self.pipeline.next(stage);
            k += BLOCK_K;
        }
        let acc = A::wait(acc);
        self.release(previous);
        (acc, stage)
    }

    /// Arrives, for the warp, on the stage's empty barrier.
    #[inline(always)]
    fn release(&self, stage: Stage) {
        if warp::lane_id() == 0 {
            self.pipeline.empty_barrier(stage).arrive();
        }
    }
}

/// Tiles of `tile_columns` columns, of which block `i` has every `grid`-th one from `i` on.
///
/// # Safety
/// 1. `num_rows` is one element, at most the rows of x, written by no launch that this one
///    overlaps; the output holds that many rows of `n` columns at its stride; `bias` and `residual`
///    are null or hold as much. The output is `out_f32`, or `out` if that is null.
/// 2. `x` is the tensor map of at most `A::COLUMNS` rows in boxes of as many; `weight_map` that of
///    `weight`, `n` rows in boxes of `tile_columns`, a multiple of 2 from 64 to 128; both
///    of `k > 0` columns in boxes of 64, with 128-byte swizzle.
/// 3. The output is `residual`, or overlaps nothing that is read.
/// 4. `num_copied` <= `num_ahead` <= `num_stages` <= the blocks of k of a tile.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    target(sm_90a),
    overlaps,
    instances(
        gemm_f16_swapped_m8 = <f16, Rows8>,
        gemm_f16_swapped_m16 = <f16, Rows16>,
        gemm_f16_swapped_m32 = <f16, Rows32>,
        gemm_bf16_swapped_m8 = <bf16, Rows8>,
        gemm_bf16_swapped_m16 = <bf16, Rows16>,
        gemm_bf16_swapped_m32 = <bf16, Rows32>
    )
)]
pub unsafe fn gemm_16_swapped<E: Operand16, A: Multiply<E>>(
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
    out: GlobalMut<u16>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
    weight: Global<u16>,
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
                    unsafe { ring.load_weight(stage, k_block) };
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
                while k_block.column < n {
                    ring.pipeline.wait_empty(stage);
                    ring.load_weight(stage, k_block);
                    ring.load_x(stage, k_block);
                    k_block = ring.next(k_block);
                    stage = ring.pipeline.next(stage);
                }
            }
        }
    } else {
        // 2. The consumers: they copy the weights of the first stages, then each warpgroup computes
        //    its columns of every tile.
        let weight = Weight { elems: weight, stride: weight_stride, rows: n, k };
        // SAFETY: the stages are empty.
        unsafe { ring.copy_weights(weight, first, num_copied) };
        barrier::sync::<BARRIERS_ARE_MADE, NUM_THREADS>();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        box_copy::wait_for_copies();
        barrier::sync::<COPIES_ARE_THERE, { NUM_CONSUMERS * warp::WARPGROUP_SIZE }>();
        let (half, single, stride) = (out.cast::<E>(), out_f32, out_stride);
        let outputs = Outputs { num_rows, bias, residual, residual_stride, half, single, stride };
        let in_tile = warpgroup_idx * WARPGROUP_COLUMNS;
        let first_column = in_tile.min(stage_columns(tile_columns) - WARPGROUP_COLUMNS);
        let (mut column, mut stage) = (first.column, Stage::FIRST);
        while column < n {
            // SAFETY: the consumers run through the producer's tiles; each column is stored once,
            // and is inside.
            unsafe {
                let (acc, next_stage) = ring.multiply_tile::<A>(stage, first_column);
                stage = next_stage;
                let (first, start) = (column + first_column, column + in_tile);
                outputs.store(&Columns { first, start, end: n.min(column + tile_columns) }, acc);
            }
            column += thread::grid_dim_x() * tile_columns;
        }
    }
}
