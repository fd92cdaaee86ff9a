//! Online softmax whose exponents are relative to a whole number, the rounded maximum.
//!
//! As [`crate::tile::softmax`], with three differences for FP8's rates. The factors of earlier
//! weights are powers of two, exact, and often 1 for all rows of a warp, which then skips the
//! rescaling. Weights are multiplied by a power of two. A share of the exponentials is computed by
//! polynomials, so that the FMA pipe and the special function units, of 16 a clock, work side by
//! side.
//!
//! Source    FlashAttention-4 (polynomials); Cody and Waite (the reduction).

use crate::tile::softmax::RowSum;
use core::f32::consts::LN_2;
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;

/// `1.5 * 2^23`: added to a number under 2^22, it leaves the nearest whole number in the lowest
/// bits.
const ROUND: f32 = 12_582_912.0;

/// Below this, in base 2, polynomials give a weight that counts as 0.
const LOWEST: f32 = -100.0;

/// `2^f` for `|f| <= 1/2`, minimax: relative errors of 1.7e-3 and 7.5e-5.
const COEFFICIENTS_2: [f32; 3] = [1.000_443_1, 0.703_448, 0.238_428_94];
const COEFFICIENTS_3: [f32; 4] = [0.999_928_06, 0.693_261, 0.242_611_12, 0.055_171_67];

/// How weights are computed.
pub(super) trait Exponentials {
    /// Weights are multiplied by 2 to this power.
    const SHIFT: f32;
    /// Every so many weights one is a polynomial; 0: none.
    const POLYNOMIAL_EVERY: usize;
    /// Whether a polynomial is of the second degree, not the third.
    const IS_COARSE: bool;
    /// Whether the weights are added as they are computed.
    const ADDS_WEIGHTS: bool;
}

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

    /// Takes the maxima of the next keys' scores. Returns how their exponents are computed, and the
    /// factors by which the rows' earlier weights, and all that was multiplied by them, shrink.
    #[inline(always)]
    pub fn raise<X: Exponentials, const REGS: usize>(
        &mut self,
        scores: &mut Accumulator<REGS>,
    ) -> ([ExponentRow; 2], [f32; 2]) {
        // Two chains a row, for latency.
        let mut max = [[f32::NEG_INFINITY; 2]; 2];
        scores.for_each(|i, score| {
            let chain = &mut max[i / 2 % 2][i % 2];
            *chain = math::max(*chain, *score);
        });
        let scale = self.scale;
        let lowest = if X::POLYNOMIAL_EVERY > 0 { math::rcp_approx(scale) } else { 0.0 };
        let mut corrections = [0.0; 2];
        let mut rows = [ExponentRow { scale, offset: 0.0, lowest: 0.0 }; 2];
        for row in 0..2 {
            let block_max = reduce_quad(math::max(max[row][0], max[row][1]), math::max);
            let max = math::max(self.max[row], round(block_max * scale));
            let finite_max = finite(max);
            rows[row].offset = X::SHIFT - finite_max;
            rows[row].lowest = (LOWEST + finite_max) * lowest;
            corrections[row] = math::exp2_approx(self.max[row] - finite_max);
            self.max[row] = max;
        }
        (rows, corrections)
    }

    /// Replaces the scores from eighth `FIRST` to `END` of a block by their weights.
    #[inline(always)]
    pub fn weigh<X: Exponentials, const REGS: usize>(
        &mut self,
        scores: &mut Accumulator<REGS>,
        rows: [ExponentRow; 2],
        corrections: [f32; 2],
        eighths: core::ops::Range<usize>,
    ) {
        let mut sum = [[0.0; 2]; 2];
        scores.for_each(|i, score| {
            if eighths.contains(&(i * 8 / REGS)) {
                let row = i / 2 % 2;
                *score = rows[row].exponential::<X>(i, *score);
                if X::ADDS_WEIGHTS {
                    sum[row][i % 2] += *score;
                }
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
    pub fn sums(&self) -> [f32; 2] {
        self.sum.map(|sum| reduce_quad(sum, |a, b| a + b))
    }

    /// The factor that makes the rows' weights, of these sums, sum to 1, 0 for a row without a key,
    /// and the natural logarithm of the sum of the exponentials of its scores.
    #[inline(always)]
    pub fn finish<X: Exponentials>(&self, sums: [f32; 2]) -> [RowSum; 2] {
        [0, 1].map(|row| {
            let sum = sums[row];
            let is_empty = sum == 0.0;
            RowSum {
                inverse: if is_empty { 0.0 } else { math::rcp_approx(sum) },
                lse: if is_empty {
                    f32::NEG_INFINITY
                } else {
                    LN_2 * (self.max[row] + (math::log2_approx(sum) - X::SHIFT))
                },
            }
        })
    }
}

/// What the exponents of a row have in common.
#[derive(Clone, Copy)]
pub(super) struct ExponentRow {
    scale: f32,
    /// A whole number.
    offset: f32,
    /// The lowest score that polynomials take.
    lowest: f32,
}

impl ExponentRow {
    /// `2^(score * scale + offset)` of score `i`.
    #[inline(always)]
    fn exponential<X: Exponentials>(&self, i: usize, score: f32) -> f32 {
        let &ExponentRow { scale, offset, lowest } = self;
        let is_polynomial = X::POLYNOMIAL_EVERY > 0 && i % X::POLYNOMIAL_EVERY == 0;
        if !is_polynomial {
            return math::exp2_approx(math::fma(score, scale, offset));
        }
        let score = math::max(score, lowest);
        let whole = math::fma(score, scale, offset + ROUND);
        let fraction = math::fma(score, scale, (offset + ROUND) - whole);
        let value = if X::IS_COARSE {
            let [a, b, c] = COEFFICIENTS_2;
            math::fma(math::fma(c, fraction, b), fraction, a)
        } else {
            let [a, b, c, d] = COEFFICIENTS_3;
            math::fma(math::fma(math::fma(d, fraction, c), fraction, b), fraction, a)
        };
        f32::from_bits(value.to_bits().wrapping_add(whole.to_bits() << 23))
    }
}
