//! Rounding of f64 to 16-bit formats. Host only.

use half::{bf16, f16};

/// A binary format of 16 bits: sign, exponent, fraction.
pub(crate) struct Format {
    /// Bits of the fraction.
    pub fraction_bits: u32,
    /// Exponent of the smallest normal number.
    pub min_exponent: i32,
    /// Code of the largest finite number.
    pub max: u16,
    /// Code of the infinity.
    pub infinity: u16,
}

/// Code of the device's canonical NaN.
const NAN: u16 = 0x7fff;

/// The sign bit.
const SIGN: u16 = 0x8000;

/// binary16.
pub(crate) const F16: Format =
    Format { fraction_bits: 10, min_exponent: -14, max: 0x7bff, infinity: 0x7c00 };

/// bfloat16.
pub(crate) const BF16: Format =
    Format { fraction_bits: 7, min_exponent: -126, max: 0x7f7f, infinity: 0x7f80 };

/// How a number that the format does not have is rounded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// `.rn`: to nearest, ties to even; infinity beyond the largest number.
    Nearest,
    /// `.rz`: towards zero; infinity only from infinity.
    Zero,
}

impl Format {
    /// The code of `x`.
    pub fn round(&self, x: f64, rounding: Rounding) -> u16 {
        if x.is_nan() {
            return NAN;
        }
        let magnitude = x.abs();
        let is_infinite = rounding == Rounding::Nearest || magnitude.is_infinite();
        let overflow = if is_infinite { self.infinity } else { self.max };
        // `units` is the number in units of its last place; subnormals have the smallest exponent.
        let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(self.min_exponent);
        let units = magnitude / power_of_two(exponent - self.fraction_bits as i32);
        let units = match rounding {
            Rounding::Zero => units.trunc(),
            Rounding::Nearest => units.round_ties_even(),
        };
        // The leading one of `units` is implicit in the code: it increments the exponent field, as
        // does a carry.
        let binade = ((exponent - self.min_exponent) as u64) << self.fraction_bits;
        let code = binade.saturating_add(units as u64);
        let code = if code > u64::from(self.max) { overflow } else { code as u16 };
        if x.is_sign_negative() { code | SIGN } else { code }
    }
}

fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

/// `x` in f16; NaN becomes the device's.
pub(crate) fn to_f16(x: f64, rounding: Rounding) -> f16 {
    f16::from_bits(F16.round(x, rounding))
}

/// `x` in bf16; NaN becomes the device's.
pub(crate) fn to_bf16(x: f64, rounding: Rounding) -> bf16 {
    bf16::from_bits(BF16.round(x, rounding))
}

/// `a * b + c` rounded to odd, for operands whose product is exact: the last bit records that bits
/// were lost, so that rounding again, to at most 51 bits, equals rounding once.
pub(crate) fn fma_to_odd([a, b, c]: [f64; 3]) -> f64 {
    let product = a * b;
    let sum = product + c;
    let product_in_sum = sum - c;
    let lost = (product - product_in_sum) + (c - (sum - product_in_sum));
    if lost == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        sum
    } else if lost > 0.0 {
        sum.next_up()
    } else {
        sum.next_down()
    }
}

/// The larger operand: of two zeros the positive one; if one operand is NaN, the other one.
pub(crate) fn max([a, b]: [f64; 2]) -> f64 {
    if a == b && a.is_sign_negative() { b } else { a.max(b) }
}

/// The smaller operand: of two zeros the negative one; if one operand is NaN, the other one.
pub(crate) fn min([a, b]: [f64; 2]) -> f64 {
    if a == b && b.is_sign_negative() { b } else { a.min(b) }
}
