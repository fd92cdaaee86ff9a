//! A consumer warpgroup: the attention of 64 queries.
//!
//! While the tensor cores multiply the next block's Q K^T and this block's P V, the other
//! warpgroups compute exponentials: named barriers make the warpgroups take turns.

use super::output::{GROUP_REGS, Output};
use super::partials::{Partials, WARP_ROWS};
use super::pingpong;
use super::rows::Rows;
use super::stages::Stages;
use super::tiles::{PrefillTile, WARPGROUP_ROWS};
use crate::attention::work::{Part, PrefillItem};
use crate::softcap::tanh;
use crate::tile::element::Operand16;
use crate::tile::smem::SmemTile;
use crate::tile::softmax::{OnlineSoftmax, RowSum};
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, FragmentA, InFlight, KMajor, MatrixDescriptor};

/// Keys, or columns, of a k-step of an MMA.
const STEP: u32 = 16;

/// Most k-steps of a block of keys.
const MAX_STEPS: usize = 16;

/// A consumer warpgroup.
pub(super) struct Consumer<E, const SCORE_REGS: usize> {
    pub stages: Stages<E>,
    /// Index among the consumers.
    pub warpgroup: u32,
    /// Sliding window, in positions.
    pub window: u32,
    /// Multiplies the scores: `softmax_scale * log2(e)`.
    pub scale: f32,
    /// A score of each query head that has no value; or null.
    pub sinks: Global<f32>,
    /// Scores are `tanh(softcap * score)` before they are scaled; 0 where they are not bent.
    pub softcap: f32,
    /// The scores' registers.
    pub scores: Accumulator<SCORE_REGS>,
}

/// The weights of a block's keys, as operands of P V.
type Weights<E> = [Option<FragmentA<E>>; MAX_STEPS];

impl<E: Operand16, const SCORE_REGS: usize> Consumer<E, SCORE_REGS> {
    /// Computes and stores the block's work items.
    ///
    /// # Safety
    /// 1. All threads of the consumers call this.
    /// 2. The output holds the items' rows, and there are partial results for their parts.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn run<T: PrefillTile, const OUT_REGS: usize>(
        mut self,
        output: &Output,
        partials: &Partials,
    ) {
        while let Some(item) = self.stages.items.get() {
            let (out, row_sums) = self.compute_item::<T, OUT_REGS>(&item);
            let lse = row_sums.map(|sum| sum.lse);
            let first_row = self.warpgroup * WARPGROUP_ROWS;
            // The item is read again, as registers are short.
            let item = self.stages.items.again();
            // SAFETY: the caller's promise.
            unsafe {
                if !T::SPLITS_KEYS || item.part == Part::WHOLE {
                    output.store::<E, OUT_REGS>(&item, first_row, out, lse);
                } else if first_row + warp::warp_idx() % 4 * WARP_ROWS < item.queries
                    && partials.store(item.part, out, lse)
                {
                    let rows = partials.combined::<OUT_REGS>(item.part);
                    for group in 0..OUT_REGS / GROUP_REGS {
                        let values = partials.values::<OUT_REGS>(item.part, &rows, group);
                        unroll!(row in 0..2, {
                            output.store_group::<E>(&item, first_row, row, group as u32, values);
                        });
                    }
                    unroll!(row in 0..2, {
                        output.store_lse(&item, first_row, row, rows.lse[row]);
                    });
                }
            }
            self.stages.items.release();
        }
    }

    /// The normalised output of the warpgroup's queries.
    #[inline(always)]
    #[track_caller]
    fn compute_item<T: PrefillTile, const OUT_REGS: usize>(
        &mut self,
        item: &PrefillItem,
    ) -> (Accumulator<OUT_REGS>, [RowSum; 2]) {
        let rows = Rows::new(item, self.warpgroup);
        let mut softmax = OnlineSoftmax::new(self.scale);
        let mut out = Accumulator::<OUT_REGS>::zero();
        let tile_q = self.stages.q.wait_full().tile;
        let q = tile_q.k_major(self.warpgroup * WARPGROUP_ROWS);
        // Block 0 begins with the sequence's first key, whatever the item.
        let first_block = item.first_key / T::BLOCK_N;
        let mut block = item.end_key.div_ceil(T::BLOCK_N);

        // 1. The last block's scores.
        if block > first_block {
            block -= 1;
            let scores = self.multiply_qk::<T>(tile_q, q);
            self.scores = scores.wait::<0>();
            self.stages.k.release();
            self.cap();
            rows.mask(block * T::BLOCK_N, self.window, &mut self.scores);
            softmax.update(&mut self.scores);
            let mut weights = self.weights();

            // 2. The other blocks, from last to first: S of this block, and P V of the one before
            //    it, then softmax.
            while block > first_block {
                block -= 1;
                pingpong::wait(T::CONSUMERS, self.warpgroup);
                let scores = self.multiply_qk::<T>(tile_q, q);
                let sum = self.multiply_pv::<T, OUT_REGS>(&weights, out);
                pingpong::pass_on(T::CONSUMERS, self.warpgroup);
                self.scores = scores.wait::<1>();
                self.stages.k.release();
                self.cap();
                rows.mask(block * T::BLOCK_N, self.window, &mut self.scores);
                let corrections = softmax.update(&mut self.scores);
                out = sum.wait::<0>();
                self.stages.v.release();
                weights = self.weights();
                out.scale_rows(corrections);
            }
            self.stages.q.release();

            // 3. P V of the first block.
            let sum = self.multiply_pv::<T, OUT_REGS>(&weights, out);
            out = sum.wait::<0>();
            self.stages.v.release();
        } else {
            self.stages.q.release();
        }

        // Of parts the first has it.
        let mut sink = f32::NEG_INFINITY;
        if !self.sinks.is_null() {
            let item = self.stages.items.again();
            if item.part.split() == 0 {
                // SAFETY: there is one for each query head.
                sink = unsafe { self.sinks.get(item.head as usize) } * LOG2_E;
            }
        }
        let row_sums = softmax.finish(sink);
        out.scale_rows(row_sums.map(|sum| sum.inverse));
        (out, row_sums)
    }

    /// Caps the block's scores.
    #[inline(always)]
    fn cap(&mut self) {
        if self.softcap > 0.0 {
            let softcap = self.softcap;
            self.scores.for_each(|_, score| *score = tanh(*score * softcap));
        }
    }

    /// Issues Q K^T of the next block of keys.
    #[inline(always)]
    #[track_caller]
    fn multiply_qk<T: PrefillTile>(
        &mut self,
        tile_q: SmemTile<E>,
        q: MatrixDescriptor<E, KMajor>,
    ) -> InFlight<SCORE_REGS> {
        let tile_k = self.stages.k.wait_full().tile;
        let k = tile_k.k_major(0);
        let registers = core::mem::replace(&mut self.scores, Accumulator::zero());
        let mut scores = registers.start();
        unroll!(step in 0..16, {
            if (step as u32) < T::WIDTH / STEP {
                let q = q.advance(tile_q.column_step(step as u32));
                let k = k.advance(tile_k.column_step(step as u32));
                // SAFETY: both tiles are full until they are released, which is after the wait.
                unsafe { scores.mma(q, k, step != 0) };
            }
        });
        wgmma::commit();
        scores
    }

    /// Issues P V of the next block of values.
    #[inline(always)]
    #[track_caller]
    fn multiply_pv<T: PrefillTile, const OUT_REGS: usize>(
        &mut self,
        weights: &Weights<E>,
        out: Accumulator<OUT_REGS>,
    ) -> InFlight<OUT_REGS> {
        let tile_v = self.stages.v.wait_full().tile;
        let v = tile_v.mn_major();
        let mut sum = out.start();
        unroll!(step in 0..16, {
            if let Some(weights) = &weights[step] {
                let v = v.advance(tile_v.row_step(step as u32));
                // SAFETY: the tile is full until it is released, which is after the wait; `start`
                // is a fence.
                unsafe { sum.mma_rs(weights, v, true) };
            }
        });
        wgmma::commit();
        sum
    }

    /// The scores, which are weights by now, rounded.
    #[inline(always)]
    fn weights(&self) -> Weights<E> {
        let mut weights = [const { None }; MAX_STEPS];
        self.scores.for_each_16_columns(|step, [a, b, c, d, e, f, g, h]| {
            let registers = [E::pack(a, b), E::pack(c, d), E::pack(e, f), E::pack(g, h)];
            weights[step] = Some(FragmentA::new(registers));
        });
        weights
    }
}
