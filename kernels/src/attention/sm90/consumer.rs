//! A consumer warpgroup: the attention of 64 queries.
//!
//! While the tensor cores multiply the next block's Q K^T and this block's P V, the other
//! warpgroups compute exponentials: named barriers make the warpgroups take turns.

use super::stages::Stages;
use super::tiles::{PrefillTile, WARPGROUP_ROWS};
use crate::attention::work::PrefillItem;
use crate::tile::element::Operand16;
use crate::tile::smem::SmemTile;
use crate::tile::softmax::{OnlineSoftmax, RowSum};
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, FragmentA, InFlight, KMajor, MatrixDescriptor};

/// Keys, or columns, of a k-step of an MMA.
const STEP: u32 = 16;

/// Most k-steps of a block of keys.
const MAX_STEPS: usize = 16;

/// Columns that a quad of lanes stores together: 16 bytes a lane.
const STORE_COLUMNS: usize = 32;

/// Where the output goes.
#[derive(Clone, Copy)]
pub(super) struct Output {
    /// `[tokens, num_heads * head_dim]`.
    pub out: GlobalMut<u32>,
    /// Row stride, in elements.
    pub row_stride: u32,
    pub head_dim: u32,
    /// `[tokens, num_heads]`, or null.
    pub lse: GlobalMut<f32>,
    pub num_heads: u32,
}

/// A consumer warpgroup.
pub(super) struct Consumer<E, const SCORE_REGS: usize> {
    pub stages: Stages<E>,
    /// Index among the consumers.
    pub warpgroup: u32,
    /// Sliding window, in positions.
    pub window: u32,
    /// Multiplies the scores: `softmax_scale * log2(e)`.
    pub scale: f32,
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
    /// 2. The output holds the items' rows.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn run<T: PrefillTile, const OUT_REGS: usize>(mut self, output: &Output) {
        while let Some(item) = self.stages.items.get() {
            let (out, sums) = self.compute_item::<T, OUT_REGS>(&item);
            // SAFETY: the caller's promise. The item is read again, as registers are short.
            unsafe {
                let item = self.stages.items.again();
                output.store::<E, OUT_REGS>(&item, self.warpgroup * WARPGROUP_ROWS, out, sums);
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
        let tile_q = self.stages.q.wait_full();
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
            rows.mask(block * T::BLOCK_N, self.window, &mut self.scores);
            softmax.update(&mut self.scores);
            let mut weights = self.weights();

            // 2. The other blocks, from last to first: S of this block, and P V of the one before
            //    it, then softmax.
            while block > first_block {
                block -= 1;
                wait_turn::<T>(self.warpgroup);
                let scores = self.multiply_qk::<T>(tile_q, q);
                let sum = self.multiply_pv::<T, OUT_REGS>(&weights, out);
                end_turn::<T>(self.warpgroup);
                self.scores = scores.wait::<1>();
                self.stages.k.release();
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

        let sums = softmax.finish();
        out.scale_rows(sums.map(|sum| sum.inverse));
        (out, sums)
    }

    /// Issues Q K^T of the next block of keys.
    #[inline(always)]
    #[track_caller]
    fn multiply_qk<T: PrefillTile>(
        &mut self,
        tile_q: SmemTile<E>,
        q: MatrixDescriptor<E, KMajor>,
    ) -> InFlight<SCORE_REGS> {
        let tile_k = self.stages.k.wait_full();
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
        let tile_v = self.stages.v.wait_full();
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

/// Waits until it is this warpgroup's turn to issue MMAs.
#[inline(always)]
#[track_caller]
fn wait_turn<T: PrefillTile>(warpgroup: u32) {
    match (T::CONSUMERS, warpgroup) {
        (_, 0) => barrier::sync::<1, 256>(),
        (2, _) | (_, 1) => barrier::sync::<2, 256>(),
        _ => barrier::sync::<3, 256>(),
    }
}

/// Lets the next warpgroup issue its MMAs.
#[inline(always)]
#[track_caller]
fn end_turn<T: PrefillTile>(warpgroup: u32) {
    match (T::CONSUMERS, warpgroup) {
        (_, 0) => barrier::arrive::<2, 256>(),
        (3, 1) => barrier::arrive::<3, 256>(),
        _ => barrier::arrive::<1, 256>(),
    }
}

/// Gives the first turn to the first warpgroup: the last one calls this once.
#[inline(always)]
#[track_caller]
pub(super) fn start_turns() {
    barrier::arrive::<1, 256>();
}

/// The warpgroup's queries, and the keys that they see.
#[derive(Clone, Copy)]
struct Rows {
    /// Position of the first query.
    position: u32,
    /// End of the item's keys.
    end: u32,
}

/// The first of a thread's two rows among those of its warpgroup; the other one is 8 further.
#[inline(always)]
fn thread_row() -> u32 {
    warp::warp_idx() % 4 * STEP + warp::lane_id() / 4
}

impl Rows {
    #[inline(always)]
    fn new(item: &PrefillItem, warpgroup: u32) -> Self {
        Rows { position: item.first_position + warpgroup * WARPGROUP_ROWS, end: item.end_key }
    }

    /// End of the keys that query `row` sees.
    #[inline(always)]
    fn end(&self, row: u32) -> u32 {
        (self.position + row + 1).min(self.end)
    }

    /// Start of the keys that query `row` sees.
    #[inline(always)]
    fn start(&self, row: u32, window: u32) -> u32 {
        (self.position + row + 1).saturating_sub(window)
    }

    /// Sets the scores of keys that their query does not see to minus infinity. `first_key` is that
    /// of the block.
    #[inline(always)]
    fn mask<const REGS: usize>(&self, first_key: u32, window: u32, scores: &mut Accumulator<REGS>) {
        // From the thread's first column.
        let from = |key: u32| key as i32 - (first_key + warp::lane_id() % 4 * 2) as i32;
        let rows = [thread_row(), thread_row() + 8];
        if first_key + 2 * REGS as u32 > self.end(0) {
            let ends = rows.map(|row| from(self.end(row)));
            scores.for_each(|i, score| {
                if column(i) >= ends[i / 2 % 2] {
                    *score = f32::NEG_INFINITY;
                }
            });
        }
        if first_key < self.start(WARPGROUP_ROWS - 1, window) {
            let starts = rows.map(|row| from(self.start(row, window)));
            scores.for_each(|i, score| {
                if column(i) < starts[i / 2 % 2] {
                    *score = f32::NEG_INFINITY;
                }
            });
        }
    }
}

impl Output {
    /// Stores a warpgroup's rows, as far as they exist, in vectors of 16 bytes: a quad of lanes
    /// transposes its columns.
    ///
    /// # Safety
    /// 1. The output holds the item's rows.
    #[inline(always)]
    #[track_caller]
    unsafe fn store<E: Operand16, const OUT_REGS: usize>(
        &self,
        item: &PrefillItem,
        first_row: u32,
        out: Accumulator<OUT_REGS>,
        sums: [RowSum; 2],
    ) {
        let values = out.values();
        let lane = warp::lane_id() % 4;
        unroll!(row in 0..2, {
            let tile_row = first_row + thread_row() + 8 * row as u32;
            let token = item.first_token as usize + tile_row as usize;
            let is_there = tile_row < item.queries;
            let start = token * self.row_stride as usize + (item.head * self.head_dim) as usize;
            unroll!(group in 0..8, {
                if group < OUT_REGS * 2 / STORE_COLUMNS {
                    let pair = |j: usize| {
                        let at = group * 16 + j * 4 + row * 2;
                        E::pack(values[at], values[at + 1])
                    };
                    let words = transpose_quad(lane, [pair(0), pair(1), pair(2), pair(3)]);
                    let column = group as u32 * STORE_COLUMNS as u32 + lane * 8;
                    if is_there && column < self.head_dim {
                        // SAFETY: the caller's promise; elements are pairs in words.
                        unsafe { self.out.set_vec((start + column as usize) / 2, words) };
                    }
                }
            });
            if is_there && lane == 0 && self.lse.address() != 0 {
                let at = token * self.num_heads as usize + item.head as usize;
                // SAFETY: the caller's promise.
                unsafe { self.lse.set(at, sums[row].lse) };
            }
        });
    }
}

/// Column of value `i` of an accumulator, from the thread's first.
#[inline(always)]
const fn column(i: usize) -> i32 {
    (i / 4 * 8 + i % 2) as i32
}

/// Transposes the 4 x 4 words of a quad of lanes: word `i` becomes word `lane` of the quad's lane
/// `i`.
#[inline(always)]
fn transpose_quad(lane: u32, words: [u32; 4]) -> [u32; 4] {
    let [a, b, c, d] = words;
    let is_odd = lane & 1 != 0;
    let [a, b] = exchange(is_odd, [a, b], 1);
    let [c, d] = exchange(is_odd, [c, d], 1);
    let is_high = lane & 2 != 0;
    let [a, c] = exchange(is_high, [a, c], 2);
    let [b, d] = exchange(is_high, [b, d], 2);
    [a, b, c, d]
}

/// Swaps the second word of the lower lane with the first word of the lane `distance` further.
#[inline(always)]
fn exchange(is_upper: bool, [first, second]: [u32; 2], distance: u32) -> [u32; 2] {
    let received = warp::shuffle_xor(if is_upper { first } else { second }, distance);
    if is_upper { [received, second] } else { [first, received] }
}
