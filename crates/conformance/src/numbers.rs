//! 8- and 16-bit formats for oracles: values and rounding; and functions in f64 that oracles share.

/// A binary format of at most 16 bits: sign, exponent, fraction.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    exponent_bits: u32,
    fraction_bits: u32,
    /// Number of finite codes without a sign: the codes after them are infinity or NaN.
    num_finite: u32,
    /// Whether there is an infinity.
    has_infinity: bool,
}

/// binary16.
pub const F16: Format =
    Format { exponent_bits: 5, fraction_bits: 10, num_finite: 0x7c00, has_infinity: true };
/// bfloat16.
pub const BF16: Format =
    Format { exponent_bits: 8, fraction_bits: 7, num_finite: 0x7f80, has_infinity: true };
/// OCP FP8, E4M3.
pub const E4M3: Format =
    Format { exponent_bits: 4, fraction_bits: 3, num_finite: 0x7f, has_infinity: false };
/// OCP FP8, E5M2.
pub const E5M2: Format =
    Format { exponent_bits: 5, fraction_bits: 2, num_finite: 0x7c, has_infinity: true };

/// How a number that the format does not have is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// `.rn`: to nearest, ties to even codes; infinity beyond the largest number.
    Nearest,
    /// `.rz`: towards zero.
    Zero,
    /// `.rn.satfinite`: to nearest, ties to even codes, saturated to the largest number.
    NearestFinite,
}

impl Format {
    /// Bits of a code.
    pub const fn bits(self) -> u32 {
        1 + self.exponent_bits + self.fraction_bits
    }

    /// The sign bit, the number of codes without a sign.
    const fn sign(self) -> u32 {
        1 << (self.bits() - 1)
    }

    /// The codes of all finite numbers.
    pub fn finite(self) -> impl Iterator<Item = u16> {
        (0..self.num_finite).flat_map(move |code| [code as u16, (code | self.sign()) as u16])
    }

    /// The value of `code`.
    pub fn value(self, code: u16) -> f64 {
        let code = u32::from(code);
        let (negative, code) = (code & self.sign() != 0, code & (self.sign() - 1));
        let magnitude = if code < self.num_finite {
            self.magnitude(code)
        } else if code == self.num_finite && self.has_infinity {
            f64::INFINITY
        } else {
            f64::NAN
        };
        if negative { -magnitude } else { magnitude }
    }

    /// The value of a code without a sign, as if the format had unlimited exponents.
    fn magnitude(self, code: u32) -> f64 {
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let (exponent, fraction) = (code >> self.fraction_bits, code % (1 << self.fraction_bits));
        let leading = if exponent > 0 { 1 << self.fraction_bits } else { 0 };
        let scale = exponent.max(1) as i32 - bias - self.fraction_bits as i32;
        f64::from(leading + fraction) * 2f64.powi(scale)
    }

    /// The code of `x`; NaN is all ones without a sign.
    pub fn round(self, x: f64, rounding: Rounding) -> u16 {
        if x.is_nan() {
            return (self.sign() - 1) as u16;
        }
        let sign = if x.is_sign_negative() { self.sign() } else { 0 };
        let magnitude = x.abs();
        let (mut low, mut above) = (0, self.num_finite + 1);
        while above - low > 1 {
            let middle = (low + above) / 2;
            if self.magnitude(middle) <= magnitude {
                low = middle;
            } else {
                above = middle;
            }
        }
        // Exact: adjacent numbers have few bits.
        let middle = (self.magnitude(low) + self.magnitude(low + 1)) / 2.0;
        let goes_up = magnitude > middle || magnitude == middle && low % 2 == 1;
        let code = match rounding {
            Rounding::Zero if magnitude.is_finite() => low.min(self.num_finite - 1),
            Rounding::Zero | Rounding::Nearest => {
                (low + u32::from(goes_up && low < self.num_finite)).min(self.num_finite)
            }
            Rounding::NearestFinite => (low + u32::from(goes_up)).min(self.num_finite - 1),
        };
        (sign | code) as u16
    }

    /// For the codes without a sign of `of`: their values and the midpoints between them, each
    /// with the adjacent f32 numbers, which is where rounding changes.
    pub fn turns(self, of: impl Iterator<Item = u16>) -> Vec<f32> {
        let near = |code: u16| {
            let low = self.magnitude(code.into());
            let middle = (low + self.magnitude(u32::from(code) + 1)) / 2.0;
            [low as f32, middle as f32]
        };
        of.flat_map(near).flat_map(|x| [x.next_down(), x, x.next_up()]).collect()
    }
}

/// `a * b + c` for operands whose product is exact, rounded to odd, so that rounding it again to at
/// most 50 bits equals rounding once (Boldo and Melquiond, 2008).
pub fn fma([a, b, c]: [f64; 3]) -> f64 {
    let product = a * b;
    let sum = product + c;
    let rest = sum - product;
    let lost = (product - (sum - rest)) + (c - rest);
    if lost == 0.0 || !sum.is_finite() || sum.to_bits() % 2 == 1 {
        sum
    } else if (lost > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

/// `(e^2x - 1) / (e^2x + 1)`, for a positive `x` without overflow.
pub fn tanh(x: f64) -> f64 {
    let minus = (-2.0 * x.abs()).exp_m1();
    (minus / (2.0 + minus)).abs().copysign(x)
}

/// The largest power of two that is not above `x`.
pub fn binade(x: f64) -> f64 {
    if x == 0.0 { 0.0 } else { 2f64.powi(x.abs().log2().floor() as i32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_standards() {
        let largest = [(F16, 0x7bff, 65504.0), (E4M3, 0x7e, 448.0), (E5M2, 0x7b, 57344.0)];
        for (format, code, value) in largest {
            assert_eq!(format.value(code), value);
        }
        assert_eq!(BF16.value(0x3f80), 1.0);
        assert_eq!(F16.value(0x8001), -2f64.powi(-24));
        assert_eq!(E5M2.value(0xfc), f64::NEG_INFINITY);
        assert!(E4M3.value(0x7f).is_nan() && BF16.value(0x7fc0).is_nan());
    }

    #[test]
    fn every_number_rounds_to_itself_and_ties_to_even() {
        for format in [F16, BF16, E4M3, E5M2] {
            for code in format.finite() {
                for rounding in [Rounding::Nearest, Rounding::Zero, Rounding::NearestFinite] {
                    assert_eq!(format.round(format.value(code), rounding), code);
                }
            }
        }
        let nearest = |x| F16.round(x, Rounding::Nearest);
        assert_eq!([nearest(2049.0), nearest(2051.0)], [0x6800, 0x6802]);
        assert_eq!([nearest(65519.9), nearest(65520.0)], [0x7bff, 0x7c00]);
        assert_eq!(F16.round(1e9, Rounding::Zero), 0x7bff);
        assert_eq!(F16.round(f64::NEG_INFINITY, Rounding::Zero), 0xfc00);
        assert_eq!(E4M3.round(f64::INFINITY, Rounding::NearestFinite), 0x7e);
        assert_eq!(E5M2.round(1e9, Rounding::Nearest), 0x7c);
        assert_eq!(nearest(2f64.powi(-25)), 0);
        assert_eq!(nearest(f64::NAN), 0x7fff);
    }
}
