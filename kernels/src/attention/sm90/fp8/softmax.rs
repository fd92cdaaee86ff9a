//! Online softmax whose exponents are relative to a whole number, the rounded maximum.
//!
//! As [`crate::tile::softmax`], but the factors of earlier weights are powers of two, exact, and
//! often 1 for all rows of a warp, which then skips the rescaling; and weights are multiplied by a
//! power of two.

use super::weights::Weight;
use crate::tile::softmax::RowSum;
use core::f32::consts::LN_2;
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;

/// `1.5 * 2^23`: added to a number under 2^22, it leaves the nearest whole number in the lowest
/// bits.
const ROUND: f32 = 12_582_912.0;

/// The state of a thread's two rows.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    /// Multiplies the scores: `softmax_scale * log2(e)` and the scales of Q and K. Above 0.
    scale: f32,
    /// Largest scaled score of the row so far, rounded.
    max: [f32; 2],
    /// Sum of the thread's own weights so far.
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

/// The nearest whole number, of numbers that have fractions.
#[inline(always)]
fn round(x: f32) -> f32 {
    let rounded = (x + ROUND) - ROUND;
    if x.abs() < 4_194_304.0 { rounded } else { x }
}

/// A row with masked keys alone has the maximum minus infinity: any finite one gives weights of 0.
#[inline(always)]
fn finite(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

impl Softmax {
    /// No key yet.
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        Softmax { scale, max: [f32::NEG_INFINITY; 2], sum: [0.0; 2] }
    }

    /// Takes the maxima of the next keys' scores. Returns what is added to the rows' exponents, and
    /// the factors by which their earlier weights, and all that was multiplied by them, shrink.
    #[inline(always)]
    pub fn raise<W: Weight, const REGS: usize>(
        &mut self,
        scores: &mut Accumulator<REGS>,
    ) -> ([f32; 2], [f32; 2]) {
        // Two chains a row, for latency.
        let mut max = [[f32::NEG_INFINITY; 2]; 2];
        scores.for_each(|i, score| {
            let chain = &mut max[i / 2 % 2][i % 2];
            *chain = math::max(*chain, *score);
        });
        let (mut offsets, mut corrections) = ([0.0; 2], [0.0; 2]);
        for row in 0..2 {
            let block_max = reduce_quad(math::max(max[row][0], max[row][1]), math::max);
            let max = math::max(self.max[row], round(block_max * self.scale));
            offsets[row] = W::SHIFT - finite(max);
            corrections[row] = math::exp2_approx(self.max[row] - finite(max));
            self.max[row] = max;
        }
        (offsets, corrections)
    }

    /// Replaces the scores by their weights.
    #[inline(always)]
    pub fn weigh<W: Weight, const REGS: usize>(
        &mut self,
        scores: &mut Accumulator<REGS>,
        offsets: [f32; 2],
        corrections: [f32; 2],
    ) {
        let mut sum = [[0.0; 2]; 2];
        let scale = self.scale;
        scores.for_each(|i, score| {
            let row = i / 2 % 2;
            *score = math::exp2_approx(math::fma(*score, scale, offsets[row]));
            if !W::ADDS_ROUNDED {
                sum[row][i % 2] += *score;
            }
        });
        for row in 0..2 {
            let block_sum = sum[row][0] + sum[row][1];
            self.sum[row] = math::fma(self.sum[row], corrections[row], block_sum);
        }
    }

    /// The rows' maxima, from which exponents count; finite.
    #[inline(always)]
    pub fn maxima(&self) -> [f32; 2] {
        self.max.map(finite)
    }

    /// The sums of the rows' weights, if those are added as they are computed.
    #[inline(always)]
    pub fn weight_sums(&self) -> [f32; 2] {
        self.sum.map(|sum| reduce_quad(sum, |a, b| a + b))
    }

    /// The factor that makes the rows' weights, of these sums, sum to 1, 0 for a row without a key,
    /// and the natural logarithm of the sum of the exponentials of its scores.
    #[inline(always)]
    pub fn finish<W: Weight>(&self, weight_sums: [f32; 2]) -> [RowSum; 2] {
        [0, 1].map(|row| {
            let sum = weight_sums[row];
            let is_empty = sum == 0.0;
            RowSum {
                inverse: if is_empty { 0.0 } else { math::rcp_approx(sum) },
                lse: if is_empty {
                    f32::NEG_INFINITY
                } else {
                    LN_2 * (self.max[row] + (math::log2_approx(sum) - W::SHIFT))
                },
            }
        })
    }
}
