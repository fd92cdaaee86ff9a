//! The weights of a block's keys as operands of P V.

use cuda_std::E4m3;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, FragmentA, Swizzle};
use half::f16;

/// Most k-steps of a block of keys.
pub(super) const MAX_STEPS: usize = 8;

/// Fragments of the weights, one a k-step.
pub(super) type Weights<W> = [Option<FragmentA<W>>; MAX_STEPS];

/// An element of the weights: f16, exact enough for any use, or E4M3.
pub(super) trait Weight: wgmma::Element {
    /// Keys of a k-step.
    const STEP_KEYS: u32;
    /// Weights are multiplied by 2 to this power.
    const SHIFT: f32;
    /// Whether the tensor cores add the weights, as they are rounded for V.
    const ADDS_ROUNDED: bool;
    /// Swizzle of the rows of V, the positions of a page.
    const SWIZZLE: Swizzle;

    /// The weights, rounded.
    fn fragments<const REGS: usize>(scores: &Accumulator<REGS>) -> Weights<Self>;
}

impl Weight for f16 {
    const STEP_KEYS: u32 = 16;
    const SHIFT: f32 = 0.0;
    const ADDS_ROUNDED: bool = false;
    const SWIZZLE: Swizzle = Swizzle::B128;

    #[inline(always)]
    fn fragments<const REGS: usize>(scores: &Accumulator<REGS>) -> Weights<f16> {
        let mut weights = [const { None }; MAX_STEPS];
        scores.for_each_16_columns(|step, [a, b, c, d, e, f, g, h]| {
            let pairs = [(a, b), (c, d), (e, f), (g, h)];
            let registers = pairs.map(|(lo, hi)| convert::f32_to_f16x2(lo, hi).to_bits());
            weights[step] = Some(FragmentA::new(registers));
        });
        weights
    }
}

impl Weight for E4m3 {
    const STEP_KEYS: u32 = 32;
    /// The largest weight is 2^8.5, of at most 448; the smallest that is not 0 is 2^-18 of it.
    const SHIFT: f32 = 8.0;
    /// The rounding of equal weights is then no error.
    const ADDS_ROUNDED: bool = true;
    const SWIZZLE: Swizzle = Swizzle::B64;

    #[inline(always)]
    fn fragments<const REGS: usize>(scores: &Accumulator<REGS>) -> Weights<E4m3> {
        let mut halves = [[0; 2]; 2 * MAX_STEPS];
        scores.for_each_16_columns(|group, [a, b, c, d, e, f, g, h]| {
            halves[group] = [[a, b, e, f], [c, d, g, h]].map(convert::f32_to_e4m3x4);
        });
        let mut weights = [const { None }; MAX_STEPS];
        unroll!(step in 0..8, {
            if step < REGS / 16 {
                let ([a, b], [c, d]) = (halves[2 * step], halves[2 * step + 1]);
                weights[step] = Some(FragmentA::new([a, b, c, d]));
            }
        });
        weights
    }
}
