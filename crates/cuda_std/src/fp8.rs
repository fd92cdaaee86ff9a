//! 8-bit floating point: the OCP 8-bit Floating Point Specification (OFP8), revision 1.0.
//!
//! The device has no arithmetic on them: only conversions ([`convert`](crate::convert)) and MMAs.

#[cfg(not(target_arch = "nvptx64"))]
use crate::rounding::{Format, Rounding};

/// Four bits of exponent, three of fraction: up to 448, no infinity, one NaN of each sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E4m3(u8);

/// Five bits of exponent, two of fraction: up to 57,344, infinities and NaN as in f16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E5m2(u8);

macro_rules! fp8 {
    ($($ty:ident: $format:expr;)*) => {$(
        impl $ty {
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
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl $ty {
            const FORMAT: Format = $format;

            /// Rounds to nearest, ties to even, saturated to the largest number; NaN becomes
            /// `0x7f`. Host only.
            pub fn from_f32(x: f32) -> Self {
                $ty(Self::FORMAT.round(f64::from(x), Rounding::NearestFinite) as u8)
            }

            /// Exact. Host only.
            pub fn to_f32(self) -> f32 {
                let code = u16::from(self.0);
                let magnitude = code & !Self::FORMAT.sign;
                if magnitude <= Self::FORMAT.max {
                    Self::FORMAT.value(code) as f32
                } else if Some(magnitude) == Self::FORMAT.infinity {
                    f32::INFINITY.copysign(if magnitude == code { 1.0 } else { -1.0 })
                } else {
                    f32::NAN
                }
            }
        }
    )*};
}

fp8! {
    E4m3: Format {
        fraction_bits: 3, min_exponent: -6, max: 0x7e, infinity: None, nan: 0x7f, sign: 0x80,
    };
    E5m2: Format {
        fraction_bits: 2, min_exponent: -14, max: 0x7b, infinity: Some(0x7c), nan: 0x7f, sign: 0x80,
    };
}
