//! GEMM of few rows and many columns on Hopper's tensor cores, its operands swapped ("swap A/B"):
//! the weight's rows are those of `wgmma`, 64 of them, and x's rows its columns, 8 to 32.
//!
//! Shapes, numerics    those of [`gemm_f16_sm90`](mod@super::gemm_f16_sm90), bit by bit.
//! Launch    grid of at most as many blocks as the GPU has SMs, block `(NUM_THREADS, 1, 1)`; the
//!           stages and their barriers in shared memory.
//! Bound     memory: the weight is read once, `2 * n * k` bytes.
//!
//! A tile is all rows and 64 to 128 columns; the host makes tiles of as many columns as leave all SMs equal
//! parts. One lane fills a ring of stages by TMA: 64 columns of k of x and of the tile's rows of the weight;
//! those of the first stages the others copy, see [`box_copy`]. Two warpgroups multiply: the first has the
//! first 64 columns of the tile, the second the last 64 of the stage, of which it stores those that the first
//! has not. No k is split, so no sums meet: what
//! [`gemm_16_streamed`](mod@crate::gemm::f16_small_m::gemm_16_streamed) spends on that is little for few
//! columns an SM, and much for many.
//!
//! # Prototypes
//! In CUDA C, of 32 rows, in us on an H200; in brackets without products and stores, which TMA alone
//! takes. Where x is `wgmma`'s 64 rows, half of its box does not exist: zeros that TMA fills in cost more
//! than rows that it reads (without x 14.4, 24.0, 43.2). On slower cards stages for all of the shared
//! memory cost up to 2 % more than eight, one warpgroup with all columns 0.1 us more than two.
//!
//! | n, k | x is `wgmma`'s rows | swapped | tiles of 36 to 64 columns | L2 promotion 256 B |
//! | --- | --- | --- | --- | --- |
//! | 9728, 896 | 7.1 (6.4) | 6.6 (5.9) | 6.9 | 6.7 |
//! | 9216, 3072 | 17.1 (16.2) | 15.5 (14.5) | 16.5 | 16.1 |
//! | 12288, 4096 | 27.3 (26.2) | 24.9 (24.0) | | 26.1 |
//! | 16384, 3072 | 27.4 (25.9) | 25.5 (24.7) | 25.0 | 26.6 |
//! | 22016, 4096 | 47.0 (44.5) | 42.5 (41.1) | | 44.7 |
//! | 151936, 896 | 68.4 (66.7) | 65.1 (60.1) | | 67.3 |
//!
//! For few columns an SM one chain of products is too slow, whatever the loads: 24 columns of 3072 x 8192
//! 17.5 (14.7), 8 of 896 x 4864 11.8 (9.0); four warpgroups that share k, each with a ring, 15.3 (14.2) and
//! 7.7 (5.3); streamed 15.0 and 5.6.
//!
//! Of this kernel, before threads copied the first boxes: 32000 x 4096 by three tiles of 88 columns a block
//! 60.9, by two of 128 63.0, of 32064 x 3072 both 48.1; 151936 x 896 with five stages 66.7, with eight 64.8,
//! and with outputs stored one by one, not in words, 0.9 more; 64 rows of x 76.8, by tiles 71.7.
//!
//! Prototypes again, of 32 rows where nothing else is said, in brackets the kernel that runs, on the same
//! card. (The prototypes' times are less those of a graph with one call, which finds some of its weight in L2:
//! up to 3 % too short.)
//!
//! - k shared by the blocks of a cluster, which send their sums by `st.async` to the one that stores them:
//!   896 x 4864 7.4 (5.8), 8 rows of 896 x 896 3.7 (2.5), of 3072 x 3072 9.4 (6.4). One block an SM, an H200
//!   holds 120 blocks in clusters of four and more, and what clusters hand over costs 0.8 us.
//! - Weights by loads of 16 warps, which store them to the stages: 12288 x 4096 27.2 (25.5), 22016 x 4096 47.1
//!   (43.9). The loads of eight warps alone take 25.8 and 43.3.
//! - Of 22016 x 4096 with boxes of 512 bytes a row prefetched to L2 ahead of those of the ring 51, without 44.4.
//! - x in shared memory throughout: 9728 x 896 7.6 for 6.5, 151936 x 896 1 % more.
//! - No faster, or up to 3 % slower: another first line of k in each block; several warps that ask for boxes;
//!   two teams of warpgroups, of which one stores while the other multiplies. This kernel with outputs of one
//!   type an instance, in 64 registers for 118: the same.

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

/// Columns of a warpgroup: rows of `wgmma`.
const WARPGROUP_COLUMNS: u32 = 64;

/// Warpgroups that multiply.
const NUM_CONSUMERS: u32 = 2;

/// Rows of 128 bytes after which their swizzle is the same again.
const SWIZZLE_ROWS: u32 = 8;

/// Threads of a block: the last warp copies.
const NUM_THREADS: u32 = NUM_CONSUMERS * warp::WARPGROUP_SIZE + warp::WARP_SIZE;

/// The barrier at which consumers wait for those of the stages.
const BARRIERS_ARE_MADE: u32 = 1;

/// The barrier at which consumers wait for each other's copies.
const COPIES_ARE_THERE: u32 = 2;

/// The sums of a warpgroup of so many rows of x.
type Rows8 = [Accumulator<4>; 1];
type Rows16 = [Accumulator<8>; 1];
type Rows32 = [Accumulator<16>; 1];

/// 64 columns of k of a tile.
#[derive(Clone, Copy)]
struct Line {
    /// First column of the tile; there is no such line if it is `n` or more.
    column: u32,
    /// First element along k.
    k: u32,
}

/// The ring of a block.
struct Ring<E> {
    /// x of all stages, and behind it the tile's rows of the weight.
    smem_x: Shared<E>,
    smem_weight: Shared<E>,
    pipeline: Pipeline,
    x: TensorMap,
    weight: TensorMap,
    /// Rows of x, and of the weight, that come into a stage.
    x_rows: u32,
    tile_columns: u32,
    k: u32,
}

/// Rows of the weight that a stage has room for: whole patterns of the swizzle. The last ones may be no columns,
/// and hold anything: nobody stores their sums.
const fn stage_columns(tile_columns: u32) -> u32 {
    tile_columns.next_multiple_of(SWIZZLE_ROWS)
}

impl<E: Operand16> Ring<E> {
    /// The line behind `line`.
    #[inline(always)]
    fn behind(&self, line: Line) -> Line {
        let k = line.k + BLOCK_K;
        if k < self.k {
            return Line { k, ..line };
        }
        Line { column: line.column + thread::grid_dim_x() * self.tile_columns, k: 0 }
    }

    /// Says that x comes into the stage, whose weights the consumers copy.
    #[inline(always)]
    fn expect_x(&self, stage: Stage) {
        self.pipeline.full_barrier(stage).arrive_expect_tx(self.x_rows * ROW_BYTES);
    }

    /// Starts the consumer's copies of the weights of the first `num_copied` lines, all of the first tile.
    ///
    /// # Safety
    /// 1. Nobody has used the stages; all consumers call this.
    #[inline(always)]
    unsafe fn copy_weights(&self, weight: Weight, first: Line, num_copied: u32) {
        let num_threads = NUM_CONSUMERS * warp::WARPGROUP_SIZE;
        let team = Team { num_threads, thread: thread::thread_idx_x() };
        for stage_idx in 0..num_copied {
            let origin = [first.k + stage_idx * BLOCK_K, first.column];
            let to = stage_idx * stage_columns(self.tile_columns);
            // SAFETY: the caller's promise.
            unsafe {
                weight.copy_box(team, origin, self.tile_columns, self.smem_weight.cast(), to);
            }
        }
        box_copy::end_copies();
    }

    /// Asks for the weights of `line`, which comes with x.
    ///
    /// # Safety
    /// 1. The stage is empty; one thread calls this, and [`Ring::load_x`] behind it.
    #[inline(always)]
    unsafe fn load_weight(&self, stage: Stage, line: Line) {
        let full_barrier = self.pipeline.full_barrier(stage);
        full_barrier.arrive_expect_tx((self.x_rows + self.tile_columns) * ROW_BYTES);
        let first_row = stage.stage_idx * stage_columns(self.tile_columns);
        let rows = self.smem_weight.offset(first_row * BLOCK_K);
        let origin = [line.k as i32, line.column as i32];
        // SAFETY: the caller's promise. Weights are read once.
        unsafe {
            bulk::tensor_load(rows, self.weight, origin, full_barrier, CacheHint::EvictFirst);
        }
    }

    /// Asks for x of `line`.
    ///
    /// # Safety
    /// 1. As [`Ring::load_weight`], and x is there.
    #[inline(always)]
    unsafe fn load_x(&self, stage: Stage, line: Line) {
        let full_barrier = self.pipeline.full_barrier(stage);
        let rows = self.smem_x.offset(stage.stage_idx * self.x_rows * BLOCK_K);
        // SAFETY: the caller's promise. All blocks read x.
        unsafe {
            let hint = CacheHint::EvictLast;
            bulk::tensor_load(rows, self.x, [line.k as i32, 0], full_barrier, hint);
        }
    }

    /// The products of a tile whose first stage is `stage`, in the warpgroup's columns, from
    /// `first_column` of the tile on; gives the stage behind them.
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
        let mut multiplied = stage;
        let mut k = 0;
        while k < self.k {
            self.pipeline.wait_full(stage);
            wgmma::fence();
            let first_row = stage.stage_idx * stage_columns(self.tile_columns) + first_column;
            let weight = weight.advance(first_row * ROW_BYTES);
            let x = x.advance(stage.stage_idx * self.x_rows * ROW_BYTES);
            // SAFETY: the stage is filled, and stays so until it is released.
            unsafe { A::multiply(&mut acc, weight, x) };
            wgmma::commit();
            // The products of this stage go on while those before are waited for.
            wgmma::wait_group::<1>();
            if k > 0 {
                self.release(multiplied);
            }
            multiplied = stage;
            stage = self.pipeline.next(stage);
            k += BLOCK_K;
        }
        let acc = A::wait(acc);
        self.release(multiplied);
        (acc, stage)
    }

    /// Tells the producer that the warp has read the stage.
    #[inline(always)]
    fn release(&self, stage: Stage) {
        if warp::lane_id() == 0 {
            self.pipeline.empty_barrier(stage).arrive();
        }
    }
}

/// Tiles of `tile_columns` columns, a block as many as it comes to.
///
/// # Safety
/// 1. `num_rows` is one element, at most the rows of x, that no launch writes which this one overlaps;
///    the output holds that many rows of `n` columns at its stride; `bias` and `residual` are null or
///    hold as much. The output is `out_f32`, or `out` if that is null.
/// 2. `x` is the map of at most `A::COLUMNS` rows in boxes of as many, `weight_map` of `weight`, `n` rows, in boxes
///    of `tile_columns`, a multiple of 2 from 64 to 128, both of `k > 0` columns in boxes of 64,
///    swizzled by 128 bytes.
/// 3. The output is `residual`, or overlaps nothing that is read.
/// 4. `num_copied` is at most `num_ahead`, that at most `num_stages`, and that at most the lines of a tile.
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
    // Behind the others, which share few lines of the constant cache so.
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
        // SAFETY: one thread makes the barriers, and all others wait for it.
        pipeline: unsafe { Pipeline::new(barriers, num_stages) },
        x,
        weight: weight_map,
        x_rows: A::COLUMNS,
        tile_columns,
        k,
    };
    let first = Line { column: thread::block_idx_x() * tile_columns, k: 0 };
    // SAFETY: one element, that no launch writes.
    let num_rows = unsafe { num_rows.get(0) };
    let warpgroup_idx = warp::warpgroup_idx();

    if warpgroup_idx == NUM_CONSUMERS {
        // 1. The producer: one lane.
        let is_producer = warp::lane_id() == 0;
        let (mut line, mut stage) = (first, Stage::FIRST);
        if is_producer {
            ring.pipeline.init(NUM_CONSUMERS * 4);
            // What no launch before this one writes.
            for stage_idx in 0..num_ahead {
                if stage_idx < num_copied {
                    ring.expect_x(stage);
                } else {
                    // SAFETY: nobody has used the stage.
                    unsafe { ring.load_weight(stage, line) };
                }
                line = ring.behind(line);
                stage = ring.pipeline.next(stage);
            }
        }
        warp::sync_warp();
        barrier::arrive::<BARRIERS_ARE_MADE, NUM_THREADS>();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        if is_producer {
            // SAFETY: the stages are empty, or have the weights of the same lines; x is there.
            unsafe {
                let (mut x_line, mut x_stage) = (first, Stage::FIRST);
                for _ in 0..num_ahead {
                    ring.load_x(x_stage, x_line);
                    x_line = ring.behind(x_line);
                    x_stage = ring.pipeline.next(x_stage);
                }
                while line.column < n {
                    ring.pipeline.wait_empty(stage);
                    ring.load_weight(stage, line);
                    ring.load_x(stage, line);
                    line = ring.behind(line);
                    stage = ring.pipeline.next(stage);
                }
            }
        }
    } else {
        // 2. The consumers: the first stages are theirs to fill, and each warpgroup has its columns of every
        // tile.
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
            // SAFETY: the consumers take the producer's tiles; columns are stored once, and inside.
            unsafe {
                let (acc, behind) = ring.multiply_tile::<A>(stage, first_column);
                stage = behind;
                let (first, start) = (column + first_column, column + in_tile);
                outputs.store(&Columns { first, start, end: n.min(column + tile_columns) }, acc);
            }
            column += thread::grid_dim_x() * tile_columns;
        }
    }
}
