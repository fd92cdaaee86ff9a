//! Online softmax over the rows of an accumulator.
//!
//! A thread holds two rows of its warp's 16, as the accumulators of `mma.m16n8k16` and `wgmma` lay
//! them out: value `i` is of row `i / 2 % 2`. Four adjacent lanes, a quad, share the two rows.
//!
//! Source    arXiv:1805.02867, arXiv:2205.14135.

use core::f32::consts::LN_2;
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;

/// A thread's scores of its two rows, in registers.
pub trait Scores {
    /// Calls `f` with the index and the value of each score, unrolled.
    fn for_each(&mut self, f: impl FnMut(usize, &mut f32));
}

impl<const REGS: usize> Scores for Accumulator<REGS> {
    #[inline(always)]
    fn for_each(&mut self, f: impl FnMut(usize, &mut f32)) {
        Accumulator::for_each(self, f);
    }
}

/// The state of a thread's two rows: the scores are `log2` of the weights, once they are multiplied
/// by `scale`.
#[derive(Clone, Copy)]
pub struct OnlineSoftmax {
    /// Multiplies the scores: `softmax_scale * log2(e)`.
    scale: f32,
    /// Largest score of the row so far, not scaled.
    max: [f32; 2],
    /// Sum of `exp2(scale * (score - max))` over the thread's own keys so far.
    sum: [f32; 2],
}

/// Reduces `value` over the quad that shares a row.
#[inline(always)]
fn reduce_quad(mut value: f32, f: fn(f32, f32) -> f32) -> f32 {
    for bit in 0..2 {
        value = f(value, warp::shuffle_xor(value, 1 << bit));
    }
    value
}

impl OnlineSoftmax {
    /// No key yet.
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        OnlineSoftmax { scale, max: [f32::NEG_INFINITY; 2], sum: [0.0; 2] }
    }

    /// Replaces the scores of the next keys by their weights relative to the new maximum. Returns
    /// the factors by which the rows' earlier weights, and all that was multiplied by them, shrink.
    #[inline(always)]
    pub fn update(&mut self, scores: &mut impl Scores) -> [f32; 2] {
        // Two chains a row, for latency.
        let mut max = [[f32::NEG_INFINITY; 2]; 2];
        scores.for_each(|i, score| {
            let chain = &mut max[i / 2 % 2][i % 2];
            *chain = math::max(*chain, *score);
        });
        let mut corrections = [0.0; 2];
        let mut offsets = [0.0; 2];
        for row in 0..2 {
            let max = reduce_quad(math::max(max[row][0], max[row][1]), math::max);
            let max = math::max(self.max[row], max);
            // A row with masked keys alone has the maximum minus infinity: any finite one gives
            // weights of 0.
            let finite_max = if max == f32::NEG_INFINITY { 0.0 } else { max };
            offsets[row] = -finite_max * self.scale;
            // Exactly 1 where the maximum stays: masked keys change no bit.
            corrections[row] = math::exp2_approx((self.max[row] - finite_max) * self.scale);
            self.max[row] = max;
        }
        let mut sum = [[0.0; 2]; 2];
        let scale = self.scale;
        scores.for_each(|i, score| {
            let row = i / 2 % 2;
            *score = math::exp2_approx(math::fma(*score, scale, offsets[row]));
            sum[row][i % 2] += *score;
        });
        for row in 0..2 {
            self.sum[row] = math::fma(self.sum[row], corrections[row], sum[row][0] + sum[row][1]);
        }
        corrections
    }

    /// The factor that makes the rows' weights sum to 1, 0 for a row without a key, and the
    /// natural logarithm of the sum of the exponentials of its scores. `sink` is one more score, in
    /// base 2, that has no value; minus infinity where there is none.
    #[inline(always)]
    pub fn finish(&self, sink: f32) -> [RowSum; 2] {
        [0, 1].map(|row| {
            let of_sink = math::exp2_approx(math::fma(-self.max[row], self.scale, sink));
            // Not a number for a row without a key.
            let of_sink = if self.max[row] == f32::NEG_INFINITY { 0.0 } else { of_sink };
            let sum = reduce_quad(self.sum[row], |a, b| a + b) + of_sink;
            let is_empty = sum == 0.0;
            RowSum {
                inverse: if is_empty { 0.0 } else { math::rcp_approx(sum) },
                lse: if is_empty {
                    f32::NEG_INFINITY
                } else {
                    LN_2 * math::fma(self.max[row], self.scale, math::log2_approx(sum))
                },
            }
        })
    }
}

/// What [`OnlineSoftmax::finish`] knows of a row.
#[derive(Clone, Copy)]
pub struct RowSum {
    /// Normalises the row.
    pub inverse: f32,
    /// Logarithm of the sum of exponentials.
    pub lse: f32,
}
