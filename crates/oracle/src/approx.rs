//! A result with its error bound.

use crate::Element;

/// Largest error of an f32 sum in any order, relative to the sum of its terms' magnitudes.
pub const SUM_ROUNDING: f64 = 1e-6;

/// What a result may be.
#[derive(Clone, Copy, Debug)]
pub struct Approx {
    /// The exact result.
    pub value: f64,
    /// How far off it may be.
    pub bound: f64,
}

impl Approx {
    /// `value`, or what is at most `bound` off.
    pub const fn new(value: f64, bound: f64) -> Self {
        Approx { value, bound }
    }

    /// `value` alone.
    pub fn exact(value: impl Into<f64>) -> Self {
        Approx { value: value.into(), bound: 0.0 }
    }

    /// `value` with a few roundings to f32.
    pub fn f32(value: f64) -> Self {
        Approx { value, bound: SUM_ROUNDING * value.abs() }
    }

    /// The sum with another term, in f32.
    #[must_use]
    pub fn plus(self, term: f64) -> Self {
        Approx { value: self.value + term, bound: self.bound + SUM_ROUNDING * term.abs() }
    }

    /// The result rounded to `E` once.
    #[must_use]
    pub fn stored<E: Element>(self) -> Self {
        let Approx { value, bound } = self;
        if value.abs() - bound > E::MAX * (1.0 + E::ROUNDING) {
            return Approx::exact(f64::INFINITY.copysign(value));
        }
        Approx { value, bound: bound + E::ROUNDING * value.abs() + E::SUBNORMAL }
    }

    /// Whether a kernel may have given `got`.
    pub fn accepts(self, got: f32) -> bool {
        let got = f64::from(got);
        got == self.value
            || (got.is_nan() && self.value.is_nan())
            || (got - self.value).abs() <= self.bound
    }
}
