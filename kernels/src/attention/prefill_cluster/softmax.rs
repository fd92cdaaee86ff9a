//! Softmax of the warpgroup's scores, in its accumulators' layout: a thread has two rows, 8 apart,
//! and the four threads of a quad share them.

use super::copy::query_of_row;
use super::{BLOCK_M, BLOCK_N, MMA_N, SCORE_REGS};
use crate::attention::work::PrefillItem;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator};

/// The thread's row `half`, 0 or 1, in the tile.
#[inline(always)]
pub fn row(half: u32) -> u32 {
    wgmma::row(thread::thread_idx_x(), 2 * half)
}

/// Reduces `value` by `f` over the quad.
#[inline(always)]
fn reduce_row(mut value: f32, f: fn(f32, f32) -> f32) -> f32 {
    for bit in 0..2 {
        value = f(value, warp::shuffle_xor(value, 1 << bit));
    }
    value
}

/// `max`, or 0 for a row that has no visible key yet: then all its probabilities are 0.
#[inline(always)]
pub fn finite(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Which keys of a chunk the thread's rows see.
pub struct Mask {
    /// The chunk's keys that each row sees start and end here, relative to the thread's column 0.
    starts: [i32; 2],
    ends: [i32; 2],
    /// Where the keys start and end that all rows of the tile see, relative to the chunk.
    all_start: u32,
    all_end: u32,
}

impl Mask {
    /// The mask of the chunk whose first key is `key`, in the block of this rank, whose keys end
    /// at `end_key`.
    #[inline(always)]
    pub fn new(item: &PrefillItem, window: u32, rank: u32, key: u32, end_key: u32) -> Self {
        // A row sees the keys before its position + 1, at most `window` of them.
        let end = |query: u32| item.first_position + query + 1;
        let in_chunk = |at: u32| at.saturating_sub(key).min(BLOCK_N);
        let column = wgmma::column(thread::thread_idx_x(), 0) as i32;
        let ends = [0, 1].map(|half| end(query_of_row(row(half), rank)));
        Mask {
            starts: ends.map(|end| in_chunk(end.saturating_sub(window)) as i32 - column),
            ends: ends.map(|end| in_chunk(end.min(end_key)) as i32 - column),
            all_start: in_chunk(end(BLOCK_M - 1).saturating_sub(window)),
            all_end: in_chunk(end(0).min(end_key)),
        }
    }

    /// Sets scores of keys that a row does not see to minus infinity. `scores` are those of the
    /// keys from `first` of the chunk on. Where all rows see all of these keys nothing is done.
    #[inline(always)]
    pub fn apply(&self, scores: &mut Accumulator<SCORE_REGS>, first: u32) {
        if self.all_start <= first && self.all_end >= first + MMA_N {
            return;
        }
        // A bit for each of the thread's scores in a row: a comparison for each is twice the code,
        // whose fetching takes longer than the arithmetic.
        let visible = [0, 1].map(|half| {
            scores_before(self.ends[half] - first as i32)
                & !scores_before(self.starts[half] - first as i32)
        });
        scores.for_each(|i, score| {
            if visible[i / 2 % 2] & 1 << (i / 4 * 2 + i % 2) == 0 {
                *score = f32::NEG_INFINITY;
            }
        });
    }
}

/// The thread's scores of a row of an accumulator whose columns are before `end`, which counts from
/// the thread's column 0: bits, of which two are for every eight columns.
#[inline(always)]
fn scores_before(end: i32) -> u32 {
    let end = end.max(0) as u32;
    let count = end / 8 * 2 + (end % 8).min(2);
    1u32.checked_shl(count).unwrap_or(0).wrapping_sub(1)
}

/// The state of the thread's two rows.
pub struct Softmax {
    /// Multiplies scores before `exp2`.
    scale: f32,
    /// Probabilities are multiplied by 2 to this power.
    shift: f32,
    /// Largest score so far, not scaled.
    max: [f32; 2],
    /// The same, scaled, or 0, less the shift: what is subtracted.
    scaled_max: [f32; 2],
    /// Sums of the probabilities so far: of the thread's keys, and of all keys.
    thread_sum: [f32; 2],
    sum: [f32; 2],
}

impl Softmax {
    /// The state before any key; `scale`, above 0, includes `log2(e)`. Probabilities and their sums
    /// are multiplied by 2 to the power `shift`.
    #[inline(always)]
    pub fn new(scale: f32, shift: f32) -> Self {
        let max = [f32::NEG_INFINITY; 2];
        Softmax { scale, shift, max, scaled_max: [0.0; 2], thread_sum: [0.0; 2], sum: [0.0; 2] }
    }

    /// Largest scores of the thread's rows among its keys.
    #[inline(always)]
    pub fn max_of(scores: &mut Accumulator<SCORE_REGS>) -> [f32; 2] {
        // Two chains a row, for the latency of each maximum.
        let mut max = [f32::NEG_INFINITY; 4];
        scores.for_each(|i, score| {
            let chain = i / 2 % 4;
            max[chain] = math::max(max[chain], *score);
        });
        [math::max(max[0], max[2]), math::max(max[1], max[3])]
    }

    /// Raises the maxima to those of the chunk's halves; returns the factors for what was
    /// accumulated before.
    #[inline(always)]
    #[track_caller]
    pub fn raise_max(&mut self, first: [f32; 2], second: [f32; 2]) -> [f32; 2] {
        let mut corrections = [0.0; 2];
        for row in 0..2 {
            let max = reduce_row(math::max(first[row], second[row]), math::max);
            let max = math::max(self.max[row], max);
            self.scaled_max[row] = finite(max) * self.scale - self.shift;
            let before = math::fma(self.max[row], self.scale, -self.scaled_max[row]);
            corrections[row] = math::exp2_approx(before - self.shift);
            self.thread_sum[row] *= corrections[row];
            self.max[row] = max;
        }
        corrections
    }

    /// The probabilities of 16 keys, whose scores are registers `first ..` of an accumulator: pairs
    /// of neighbours, of the first row and of the second one, of the first eight keys and of the
    /// last ones. Adds them to the rows' sums.
    #[inline(always)]
    pub fn probabilities(&mut self, scores: &[f32; SCORE_REGS], first: usize) -> [[f32; 2]; 4] {
        [0, 1, 2, 3].map(|pair| {
            let row = pair % 2;
            let pair = [0, 1].map(|i| {
                let score = scores[first + 2 * pair + i];
                math::exp2_approx(math::fma(score, self.scale, -self.scaled_max[row]))
            });
            self.thread_sum[row] += pair[0];
            self.thread_sum[row] += pair[1];
            pair
        })
    }

    /// Sums the probabilities over the quad.
    #[inline(always)]
    #[track_caller]
    pub fn sum_rows(&mut self) {
        self.sum = self.thread_sum.map(|sum| reduce_row(sum, |a, b| a + b));
    }

    /// For each row the factor that normalises its output, and its `lse` in base 2: 0 and minus
    /// infinity for a row without a visible key.
    #[inline(always)]
    pub fn finish(&self) -> ([f32; 2], [f32; 2]) {
        let scales = self.sum.map(|sum| if sum > 0.0 { math::rcp_approx(sum) } else { 0.0 });
        let lse = [0, 1].map(|row| self.scaled_max[row] + math::log2_approx(self.sum[row]));
        (scales, lse)
    }
}
