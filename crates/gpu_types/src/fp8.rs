//! 8-bit floating point in software: the OCP 8-bit Floating Point Specification (OFP8), revision 1.0.

/// Four bits of exponent, three of fraction: up to 448, no infinity, one NaN of each sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E4m3(u8);

/// Five bits of exponent, two of fraction: up to 57,344, infinities and NaN as in f16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E5m2(u8);

macro_rules! fp8 {
    ($($ty:ident: fraction of $fraction_bits:literal bits, bias $bias:literal,
        largest $largest:literal of code $largest_code:literal, then $special:expr;)*) => {$(
        impl $ty {
            /// The largest number.
            pub const MAX: f32 = $largest;

            /// Bits of the fraction of f32 that there is no room for.
            const LOST_BITS: u32 = 23 - $fraction_bits;
            /// From the bias of the exponent to that of f32.
            const REBIAS: u32 = 127 - $bias;

            /// The number of this code.
            #[inline(always)]
            pub const fn from_bits(bits: u8) -> Self {
                $ty(bits)
            }

            /// The code.
            #[inline(always)]
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// Rounds to nearest, ties to even, saturated to the largest number; NaN becomes
            /// `0x7f`. The device rounds by `cuda_std::convert`.
            #[inline(always)]
            pub const fn from_f32(x: f32) -> Self {
                // Its unit in the last place is the smallest subnormal number.
                const SUBNORMAL: f32 = f32::from_bits((127 + 24 - $fraction_bits - $bias) << 23);
                const MIN_NORMAL: f32 = f32::from_bits((127 + 1 - $bias) << 23);
                let (sign, magnitude) = (x.to_bits() >> 24 & 0x80, x.abs());
                let bits = magnitude.min(Self::MAX).to_bits();
                let half = (1 << (Self::LOST_BITS - 1)) - 1 + (bits >> Self::LOST_BITS & 1);
                let normal = (bits + half) >> Self::LOST_BITS;
                let normal = normal.wrapping_sub(Self::REBIAS << $fraction_bits);
                let subnormal = (magnitude + SUBNORMAL).to_bits() & 0xff;
                let code = if magnitude < MIN_NORMAL { subnormal } else { normal };
                $ty(if x.is_nan() { 0x7f } else { (sign | code) as u8 })
            }

            /// Exact. Code without branches, which compilers vectorise.
            #[inline(always)]
            pub const fn to_f32(self) -> f32 {
                // The bits of an f32, but for the bias: subnormal numbers are so in both.
                const SCALE: f32 = f32::from_bits((127 + 127 - $bias) << 23);
                let (sign, magnitude) = ((self.0 as u32 >> 7) << 31, self.0 as u32 & 0x7f);
                if magnitude > $largest_code {
                    return f32::from_bits(sign | $special(magnitude).to_bits());
                }
                f32::from_bits(sign | magnitude << Self::LOST_BITS) * SCALE
            }
        }
    )*};
}

const fn nan(_: u32) -> f32 {
    f32::NAN
}

const fn infinity_or_nan(magnitude: u32) -> f32 {
    if magnitude == 0x7c { f32::INFINITY } else { f32::NAN }
}

fp8! {
    E4m3: fraction of 3 bits, bias 7, largest 448.0 of code 0x7e, then nan;
    E5m2: fraction of 2 bits, bias 15, largest 57_344.0 of code 0x7b, then infinity_or_nan;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of a code that is finite, by the formula of the specification.
    fn value(code: u8, fraction_bits: i32, bias: i32) -> f64 {
        let magnitude = i32::from(code & 0x7f);
        let (exponent, fraction) =
            (magnitude >> fraction_bits, f64::from(magnitude % (1 << fraction_bits)));
        let fraction = fraction / f64::from(1 << fraction_bits);
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
        };
        if code >= 0x80 { -magnitude } else { magnitude }
    }

    /// Checks every code, and the rounding of every upper half of an f32 with the lower halves at
    /// which a comparison may go wrong.
    fn check(
        [fraction_bits, bias]: [i32; 2],
        largest: u8,
        to_f32: fn(u8) -> f32,
        from_f32: fn(f32) -> u8,
    ) {
        let numbers: Vec<f64> =
            (0..=largest).map(|code| value(code, fraction_bits, bias)).collect();
        for code in (0..=u8::MAX).filter(|code| code & 0x7f <= largest) {
            let want = value(code, fraction_bits, bias);
            let got = f64::from(to_f32(code));
            assert_eq!((got, got.is_sign_negative()), (want, code >= 0x80), "{code:#x}");
        }
        for bits in (0..=u16::MAX).flat_map(|upper| {
            [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|lower| u32::from(upper) << 16 | lower)
        }) {
            let x = f32::from_bits(bits);
            let magnitude = f64::from(x.abs()).min(numbers[usize::from(largest)]);
            // The last number that is not above, or the next one; of two as near the even one.
            let below = numbers.partition_point(|number| *number <= magnitude).saturating_sub(1);
            let above = (below + 1).min(usize::from(largest));
            let [to_below, to_above] = [magnitude - numbers[below], numbers[above] - magnitude];
            let is_below = to_below < to_above || to_below == to_above && below % 2 == 0;
            let nearest = if is_below { below } else { above } as u8;
            let sign = if x.is_sign_negative() { 0x80 } else { 0 };
            let want = if x.is_nan() { 0x7f } else { sign | nearest };
            assert_eq!(from_f32(x), want, "{x:e}");
        }
    }

    #[test]
    fn every_number_is_that_of_the_specification() {
        let e4m3 = |code| E4m3::from_bits(code).to_f32();
        let e5m2 = |code| E5m2::from_bits(code).to_f32();
        check([3, 7], 0x7e, e4m3, |x| E4m3::from_f32(x).to_bits());
        check([2, 15], 0x7b, e5m2, |x| E5m2::from_f32(x).to_bits());
        assert_eq!([E4m3::MAX, E5m2::MAX], [e4m3(0x7e), e5m2(0x7b)]);
        assert!([0x7f, 0xff].iter().all(|&code| e4m3(code).is_nan()));
        assert!((0x7d..=0x7f).all(|code| e5m2(code).is_nan() && e5m2(code | 0x80).is_nan()));
        assert_eq!([e5m2(0x7c), e5m2(0xfc)], [f32::INFINITY, f32::NEG_INFINITY]);
    }
}
