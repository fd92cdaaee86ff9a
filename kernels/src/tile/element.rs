//! The elements of operands: 16 bits in memory and on the tensor cores, f32 in between.

#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::tensor_map;
use cuda_std::{Bf16x2, F16x2, convert, mma, wgmma};
use half::{bf16, f16};

/// An element of 16 bits: `f16` or `bf16`. Two of them, the first in the lower half, are a word.
///
/// Conversions from f32 round to nearest, of two to the even one.
pub trait Operand16: cuda_std::Element + mma::Multiplicand + wgmma::Element {
    /// The element of tensor maps.
    #[cfg(not(target_arch = "nvptx64"))]
    const TENSOR_MAP: tensor_map::Element;

    /// The nearest element; infinity beyond the largest.
    fn narrow(value: f32) -> Self;

    /// The element, exactly.
    fn widen(self) -> f32;

    /// Two nearest elements in a word.
    fn narrow_pair(lo: f32, hi: f32) -> u32;

    /// The elements of a word, exactly.
    fn widen_pair(word: u32) -> [f32; 2];
}

macro_rules! operand {
    ($element:ident, $pair:ident, $map:ident, $from:ident, $from_pair:ident, $to:ident) => {
        impl Operand16 for $element {
            #[cfg(not(target_arch = "nvptx64"))]
            const TENSOR_MAP: tensor_map::Element = tensor_map::Element::$map;

            #[inline(always)]
            fn narrow(value: f32) -> Self {
                convert::$from(value)
            }

            #[inline(always)]
            fn widen(self) -> f32 {
                convert::$to(self)
            }

            #[inline(always)]
            fn narrow_pair(lo: f32, hi: f32) -> u32 {
                convert::$from_pair(lo, hi).to_bits()
            }

            #[inline(always)]
            fn widen_pair(word: u32) -> [f32; 2] {
                let pair = $pair::from_bits(word);
                [convert::$to(pair.lo()), convert::$to(pair.hi())]
            }
        }
    };
}

operand!(f16, F16x2, F16, f32_to_f16, f32_to_f16x2, f16_to_f32);
operand!(bf16, Bf16x2, Bf16, f32_to_bf16, f32_to_bf16x2, bf16_to_f32);
