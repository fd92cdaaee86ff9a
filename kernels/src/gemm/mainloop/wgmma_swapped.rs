//! The mainloop of swapped operands: stages of x and of weights, which the producer loads by TMA and
//! the consumers multiply, the weights as operand A.

use super::accumulators::Multiply;
use crate::activation::Gate;
use crate::gemm::config::wgmma::{BLOCK_K, ROW_BYTES};
use crate::tile::box_copy::{self, CopyThreads, GATE_ROWS, Weight};
use crate::tile::element::Operand16;
use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, MatrixDescriptor, Swizzle};

/// Consumer warpgroups.
pub const NUM_CONSUMERS: u32 = 2;

/// Period of the 128-byte swizzle, in rows.
pub const SWIZZLE_ROWS: u32 = 8;

/// A block of 64 columns of k of a tile.
#[derive(Clone, Copy)]
pub struct KBlock {
    /// First row of the weight of the tile; past the last tile no row of it.
    pub column: u32,
    /// First column of k.
    pub k: u32,
}

/// The stages of a block.
pub struct Ring<E> {
    /// x of all stages, followed by the weights of all stages.
    pub smem_x: Shared<E>,
    /// The weights.
    pub smem_weight: Shared<E>,
    /// Barriers of the stages.
    pub pipeline: Pipeline,
    /// x.
    pub x: TensorMap,
    /// The weight.
    pub weight: TensorMap,
    /// Rows of x that are loaded into a stage.
    pub x_rows: u32,
    /// Rows of the weight that are loaded into a stage.
    pub tile_columns: u32,
    /// Columns of x and of the weight.
    pub k: u32,
}

/// Rows of the weight that a stage has room for: whole periods of the swizzle. The last ones may
/// not be loaded: their accumulators are not stored.
pub const fn stage_columns(tile_columns: u32) -> u32 {
    tile_columns.next_multiple_of(SWIZZLE_ROWS)
}

impl<E: Operand16> Ring<E> {
    /// The block of k after this one: of the same tile, or the first of the next tile.
    #[inline(always)]
    pub fn next(&self, k_block: KBlock) -> KBlock {
        let k = k_block.k + BLOCK_K;
        if k < self.k {
            return KBlock { k, ..k_block };
        }
        KBlock { column: k_block.column + thread::grid_dim_x() * self.tile_columns, k: 0 }
    }

    /// Makes the stage's full barrier expect x alone: the consumers copy its weights.
    #[inline(always)]
    pub fn expect_x(&self, stage: Stage) {
        self.pipeline.full_barrier(stage).arrive_expect_tx(self.x_rows * ROW_BYTES);
    }

    /// Issues the consumer's copies of the weights of the first `num_copied` blocks of k, all of
    /// the first tile.
    ///
    /// # Safety
    /// 1. The stages are unused; all consumers call this.
    #[inline(always)]
    pub unsafe fn copy_weights(&self, weight: Weight, first: KBlock, num_copied: u32) {
        let num_threads = NUM_CONSUMERS * warp::WARPGROUP_SIZE;
        let threads = CopyThreads { num_threads, thread: thread::thread_idx_x() };
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
    pub unsafe fn load_weight<G: Gate>(&self, stage: Stage, k_block: KBlock) {
        let full_barrier = self.pipeline.full_barrier(stage);
        full_barrier.arrive_expect_tx((self.x_rows + self.tile_columns) * ROW_BYTES);
        let first_row = stage.stage_idx * stage_columns(self.tile_columns);
        let rows = self.smem_weight.offset(first_row * BLOCK_K);
        let (k, row, hint) = (k_block.k as i32, k_block.column, CacheHint::EvictFirst);
        // SAFETY: the caller's promise. Weights are read once.
        unsafe {
            if G::PARTS == 1 {
                bulk::tensor_load(rows, self.weight, [k, row as i32], full_barrier, hint);
            } else {
                let origin = [k, 0, 0, (row / (2 * GATE_ROWS)) as i32];
                bulk::tensor_load(rows, self.weight, origin, full_barrier, hint);
            }
        }
    }

    /// Issues the load of x of `k_block`.
    ///
    /// # Safety
    /// 1. As [`Ring::load_weight`], and x is written.
    #[inline(always)]
    pub unsafe fn load_x(&self, stage: Stage, k_block: KBlock) {
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
    pub unsafe fn multiply_tile<A: Multiply<E>>(
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
