//! A consumer warpgroup: the attention of 64 queries.
//!
//! At FP8's rates the exponentials take as long as the MMAs: the warpgroups take turns to compute
//! those, and so are half a block apart.

use super::super::output::Output;
use super::super::pingpong;
use super::super::rows::Rows;
use super::super::tiles::WARPGROUP_ROWS;
use super::softmax::Softmax;
use super::stages::Stages;
use super::tiles::{Fp8Tile, STEP_BYTES};
use super::weights::{Weight, Weights};
use crate::attention::work::PrefillItem;
use crate::kv_cache::PAGE_SIZE;
use crate::tile::element::Operand16;
use crate::tile::softmax::RowSum;
use core::f32::consts::LOG2_E;
use core::mem::replace;
use cuda_std::E4m3;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, InFlight, KMajor, MatrixDescriptor, Swizzle};

/// The scales of the operands.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    /// `[num_heads]`.
    pub q: Global<f32>,
    /// `[num_kv_heads]`.
    pub k: Global<f32>,
    /// `[num_kv_heads]`.
    pub v: Global<f32>,
    pub softmax_scale: f32,
    pub num_heads: u32,
    pub num_kv_heads: u32,
}

impl Scales {
    /// What multiplies the scores of `head`, in base 2: above 0, so that a masked one stays minus
    /// infinity.
    #[inline(always)]
    fn scores(&self, head: u32) -> f32 {
        let kv_head = self.kv_head(head);
        // SAFETY: an item's heads are inside.
        let (q, k) = unsafe { (self.q.get(head as usize), self.k.get(kv_head as usize)) };
        math::max(q * k * (self.softmax_scale * LOG2_E), f32::MIN_POSITIVE)
    }

    /// A division an item: the quotient of the heads would take a register.
    #[inline(always)]
    fn kv_head(&self, head: u32) -> u32 {
        // SAFETY: launches have heads.
        unsafe { core::hint::assert_unchecked(self.num_heads > 0) };
        head * self.num_kv_heads / self.num_heads
    }

    /// What multiplies the values of `head`.
    #[inline(always)]
    fn values(&self, head: u32) -> f32 {
        // SAFETY: an item's heads are inside.
        unsafe { self.v.get(self.kv_head(head) as usize) }
    }
}

/// A consumer warpgroup.
pub(super) struct Consumer<const SCORE_REGS: usize, const OUT_REGS: usize> {
    stages: Stages,
    /// Index among the consumers.
    warpgroup: u32,
    /// Sliding window, in positions.
    window: u32,
    scales: Scales,
    scores: Accumulator<SCORE_REGS>,
    /// P V of all blocks so far.
    out: Accumulator<OUT_REGS>,
    /// Sums of the weights, in 8 equal columns, if the tensor cores add them.
    sum_acc: Accumulator<4>,
}

impl<const SCORE_REGS: usize, const OUT_REGS: usize> Consumer<SCORE_REGS, OUT_REGS> {
    #[inline(always)]
    pub fn new(stages: Stages, warpgroup: u32, window: u32, scales: Scales) -> Self {
        let scores = Accumulator::zero();
        let (out, sum_acc) = (Accumulator::zero(), Accumulator::zero());
        Consumer { stages, warpgroup, window, scales, scores, out, sum_acc }
    }

    /// Computes and stores the block's work items.
    ///
    /// # Safety
    /// 1. All threads of the consumers call this.
    /// 2. The output holds the items' rows.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn run<O: Operand16, T: Fp8Tile>(mut self, output: &Output) {
        while let Some(item) = self.stages.items.get() {
            let row_sums = self.compute_item::<T>(&item);
            // SAFETY: the caller's promise. The item is read again, as registers are short.
            unsafe {
                let item = self.stages.items.again();
                let first_row = self.warpgroup * WARPGROUP_ROWS;
                let out = replace(&mut self.out, Accumulator::zero());
                output.store::<O, OUT_REGS>(&item, first_row, out, row_sums.map(|sum| sum.lse));
            }
            self.stages.items.release();
        }
    }

    /// Leaves the normalised output of the warpgroup's queries in `out`.
    #[inline(always)]
    #[track_caller]
    fn compute_item<T: Fp8Tile>(&mut self, item: &PrefillItem) -> [RowSum; 2] {
        let rows = Rows::new(item, self.warpgroup);
        let warp_row = self.warpgroup * WARPGROUP_ROWS + warp::warp_idx() % 4 * 16;
        let has_rows = warp_row < item.queries;
        let scale = self.scales.scores(item.head);
        let mut softmax = Softmax::new(scale);
        (self.out, self.sum_acc) = (Accumulator::zero(), Accumulator::zero());
        let q = self.stages.q.wait_full().start;
        // Block 0 begins with the sequence's first key, whatever the item.
        let first_block = item.first_key / T::BLOCK_N;
        let mut block = item.end_key.div_ceil(T::BLOCK_N);

        // 1. The last block's scores.
        if block > first_block {
            block -= 1;
            let scores = self.multiply_qk::<T>(q);
            self.scores = scores.wait::<0>();
            self.stages.k.release();
            rows.mask(block * T::BLOCK_N, self.window, &mut self.scores);
            let (offsets, corrections) = softmax.raise::<T::Weight, SCORE_REGS>(&mut self.scores);
            softmax.weigh::<T::Weight, SCORE_REGS>(&mut self.scores, offsets, corrections);
            let (mut total, mut num_blocks) = (None, 0);
            let mut weights = T::Weight::fragments(&self.scores);

            // 2. The other blocks, from last to first: S of this block, and P V of the one before
            //    it, then softmax.
            while block > first_block {
                block -= 1;
                let scores = self.multiply_qk::<T>(q);
                let sum = self.multiply_pv::<T>(&weights);
                self.scores = scores.wait::<1>();
                self.stages.k.release();
                rows.mask(block * T::BLOCK_N, self.window, &mut self.scores);
                let (offsets, corrections) =
                    softmax.raise::<T::Weight, SCORE_REGS>(&mut self.scores);
                pingpong::wait(T::CONSUMERS, self.warpgroup);
                // In a branch ptxas leaves the exponentials where they are, before the wait for P V; else
                // it moves them after it, where they are rounded.
                if has_rows {
                    softmax.weigh::<T::Weight, SCORE_REGS>(&mut self.scores, offsets, corrections);
                }
                pingpong::pass_on(T::CONSUMERS, self.warpgroup);
                self.wait_pv(sum);
                weights = T::Weight::fragments(&self.scores);
                let grows = corrections != [1.0; 2];
                if warp::vote_any(warp::FULL_MASK, grows) {
                    self.out.scale_rows(corrections);
                    self.sum_acc.scale_rows(corrections);
                }
                num_blocks += 1;
                if T::FLUSH_BLOCKS > 0 && num_blocks == T::FLUSH_BLOCKS {
                    num_blocks = 0;
                    let maxima = softmax.maxima();
                    self.add_total(&total, maxima);
                    self.store_total(&mut total, maxima);
                }
            }
            self.stages.q.release();

            // 3. P V of the first block.
            let sum = self.multiply_pv::<T>(&weights);
            self.wait_pv(sum);
            if T::FLUSH_BLOCKS > 0 {
                self.add_total(&total, softmax.maxima());
            }
        } else {
            self.stages.q.release();
        }

        let weight_sums = if T::Weight::ADDS_ROUNDED {
            [0, 2].map(|i| self.sum_acc.sum(i))
        } else {
            softmax.weight_sums()
        };
        let row_sums = softmax.finish::<T::Weight>(weight_sums);
        let v_scale = self.scales.values(self.stages.items.again().head);
        self.out.scale_rows(row_sums.map(|sum| sum.inverse * v_scale));
        row_sums
    }

    /// Issues Q K^T of the next block of keys; `q` is the tile.
    #[inline(always)]
    #[track_caller]
    fn multiply_qk<T: Fp8Tile>(&mut self, q: Shared<u8>) -> InFlight<SCORE_REGS> {
        let k = self.stages.k.wait_full().start;
        let first_row = self.warpgroup * WARPGROUP_ROWS;
        let q = descriptor::<E4m3>(q.offset(first_row * T::PANEL), T::SWIZZLE);
        let k = descriptor::<E4m3>(k, T::SWIZZLE);
        let mut scores = replace(&mut self.scores, Accumulator::zero()).start();
        unroll!(step in 0..8, {
            if (step as u32) < T::WIDTH / STEP_BYTES {
                let steps_per_panel = T::PANEL / STEP_BYTES;
                let (panel, in_panel) =
                    (step as u32 / steps_per_panel, step as u32 % steps_per_panel * STEP_BYTES);
                let q = q.advance(panel * T::BLOCK_M * T::PANEL + in_panel);
                let k = k.advance(panel * T::BLOCK_N * T::PANEL + in_panel);
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
    fn multiply_pv<T: Fp8Tile>(&mut self, weights: &Weights<T::Weight>) -> Products<OUT_REGS> {
        let v = descriptor::<T::Weight>(self.stages.v.wait_full().start, T::Weight::SWIZZLE);
        let ones = descriptor::<T::Weight>(self.stages.ones, Swizzle::B32);
        let mut out = replace(&mut self.out, Accumulator::zero()).start();
        let mut sum_acc = replace(&mut self.sum_acc, Accumulator::zero()).start();
        unroll!(step in 0..8, {
            if let Some(weights) = &weights[step] {
                let steps_per_page = PAGE_SIZE / T::Weight::STEP_KEYS;
                let (page, in_page) =
                    (step as u32 / steps_per_page, step as u32 % steps_per_page * STEP_BYTES);
                let v = v.advance(page * T::V_PAGE_BYTES + in_page);
                // SAFETY: the tile is full until it is released, which is after the wait; `start`
                // is a fence.
                unsafe {
                    out.mma_rs(weights, v, true);
                    if T::Weight::ADDS_ROUNDED {
                        sum_acc.mma_rs(weights, ones, true);
                    }
                }
            }
        });
        wgmma::commit();
        Products { out, sum_acc }
    }

    /// The thread's part of P V in shared memory: vectors a row of threads apart.
    #[inline(always)]
    fn total_vec(&self, index: u32) -> Shared<f32> {
        let threads = self.warpgroup * (OUT_REGS as u32 / 4) + index;
        self.stages
            .total
            .offset(4 * (threads * warp::WARPGROUP_SIZE + thread::thread_idx_x() % 128))
    }

    /// Adds the total to P V, which is relative to `maxima`.
    #[inline(always)]
    #[track_caller]
    fn add_total(&mut self, total: &Option<Total>, maxima: [f32; 2]) {
        let Some(total) = total else { return };
        let factors = [0, 1].map(|row| math::exp2_approx(total.maxima[row] - maxima[row]));
        let mut vec = [0.0; 4];
        let at = self.total_vec(0);
        self.out.for_each(|i, out| {
            if i % 4 == 0 {
                // SAFETY: the thread's own; it has written them.
                vec = unsafe { at.get_vec(4 * warp::WARPGROUP_SIZE * (i as u32 / 4)) };
            }
            *out = math::fma(vec[i % 4], factors[i / 2 % 2], *out);
        });
        self.sum_acc.for_each(|i, sum| {
            *sum = math::fma(total.weight_sums[i / 2], factors[i / 2], *sum);
        });
    }

    /// Moves P V to shared memory.
    #[inline(always)]
    #[track_caller]
    fn store_total(&mut self, total: &mut Option<Total>, maxima: [f32; 2]) {
        let at = self.total_vec(0);
        let mut vec = [0.0; 4];
        self.out.for_each(|i, out| {
            vec[i % 4] = replace(out, 0.0);
            if i % 4 == 3 {
                // SAFETY: the thread's own.
                unsafe { at.set_vec(4 * warp::WARPGROUP_SIZE * (i as u32 / 4), vec) };
            }
        });
        let sum_acc = replace(&mut self.sum_acc, Accumulator::zero());
        *total = Some(Total { maxima, weight_sums: [0, 2].map(|i| sum_acc.sum(i)) });
    }

    /// Waits for P V of a block and releases V.
    #[inline(always)]
    #[track_caller]
    fn wait_pv(&mut self, products: Products<OUT_REGS>) {
        self.out = products.out.wait::<0>();
        self.sum_acc = products.sum_acc.wait::<0>();
        self.stages.v.release();
    }
}

/// What of P V is in shared memory.
#[derive(Clone, Copy)]
struct Total {
    /// The rows' maxima that it is relative to.
    maxima: [f32; 2],
    /// Sums of the rows' weights.
    weight_sums: [f32; 2],
}

/// The products of weights.
struct Products<const OUT_REGS: usize> {
    out: InFlight<OUT_REGS>,
    sum_acc: InFlight<4>,
}

/// The operand at `start` whose k are contiguous.
#[inline(always)]
fn descriptor<E: wgmma::Element>(
    start: Shared<u8>,
    swizzle: Swizzle,
) -> MatrixDescriptor<E, KMajor> {
    MatrixDescriptor::k_major(start.cast::<E>(), swizzle)
}
