//! Packed pairs of 8- or 16-bit numbers.

use gpu_types::{E4m3, E5m2};
use half::{bf16, f16};

macro_rules! pairs {
    ($($(#[$meta:meta])* $pair:ident($word:ty) of $element:ident($code:ty);)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $pair($word);

        impl $pair {
            /// The pair; `lo` comes first in memory.
            #[inline(always)]
            pub const fn new(lo: $element, hi: $element) -> Self {
                $pair(lo.to_bits() as $word | (hi.to_bits() as $word) << <$code>::BITS)
            }

            /// The same number twice.
            #[inline(always)]
            pub const fn splat(value: $element) -> Self {
                Self::new(value, value)
            }

            /// The number in the lower half.
            #[inline(always)]
            pub const fn lo(self) -> $element {
                $element::from_bits(self.0 as $code)
            }

            /// The number in the upper half.
            #[inline(always)]
            pub const fn hi(self) -> $element {
                $element::from_bits((self.0 >> <$code>::BITS) as $code)
            }

            /// The pair of these bits.
            #[inline(always)]
            pub const fn from_bits(bits: $word) -> Self {
                $pair(bits)
            }

            /// The pair's bits.
            #[inline(always)]
            pub const fn to_bits(self) -> $word {
                self.0
            }
        }
    )*};
}

pairs! {
    /// Two f16. CUDA C `__half2`.
    F16x2(u32) of f16(u16);
    /// Two bf16. CUDA C `__nv_bfloat162`.
    Bf16x2(u32) of bf16(u16);
    /// Two [`E4m3`]. CUDA C `__nv_fp8x2_e4m3`.
    E4m3x2(u16) of E4m3(u8);
    /// Two [`E5m2`]. CUDA C `__nv_fp8x2_e5m2`.
    E5m2x2(u16) of E5m2(u8);
}

/// Negates both 16-bit floats by flipping their sign bits.
macro_rules! neg {
    ($($pair:ty),*) => {$(
        impl core::ops::Neg for $pair {
            type Output = Self;

            #[inline(always)]
            fn neg(self) -> Self {
                Self::from_bits(self.to_bits() ^ 0x8000_8000)
            }
        }
    )*};
}

neg!(F16x2, Bf16x2);
