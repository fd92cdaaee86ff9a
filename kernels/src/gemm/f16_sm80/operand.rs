//! The 16-bit floats that the tensor cores multiply.

use cuda_std::mma::Multiplicand;
use cuda_std::{Element, convert};
use half::{bf16, f16};

/// A 16-bit float of operands: `f16` or `bf16`.
pub trait Operand16: Element + Multiplicand {
    /// The name in symbols.
    const NAME: &str;

    /// The nearest number, of two the even one.
    fn from_f32(value: f32) -> Self;

    /// Both values as [`Operand16::from_f32`] has them, `lo` in the lower half of the word.
    fn pack(lo: f32, hi: f32) -> u32;
}

impl Operand16 for f16 {
    const NAME: &str = "f16";

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        convert::f32_to_f16(value)
    }

    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        convert::f32_to_f16x2(lo, hi).to_bits()
    }
}

impl Operand16 for bf16 {
    const NAME: &str = "bf16";

    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        convert::f32_to_bf16(value)
    }

    #[inline(always)]
    fn pack(lo: f32, hi: f32) -> u32 {
        convert::f32_to_bf16x2(lo, hi).to_bits()
    }
}
