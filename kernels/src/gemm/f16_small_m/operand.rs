//! Stands in for `crate::tile::element::Operand16` and the operands of `linear16` until they merge.

use cuda_std::{Element, convert, mma::Multiplicand};
use half::{bf16, f16};

/// An element of 16 bits: `f16` or `bf16`.
pub trait Operand16: Element + Multiplicand {
    /// The name in symbols.
    const NAME: &str;

    /// The nearest element, of two the even one; infinity beyond the largest.
    fn narrow(value: f32) -> Self;
}

impl Operand16 for f16 {
    const NAME: &str = "f16";

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        convert::f32_to_f16(value)
    }
}

impl Operand16 for bf16 {
    const NAME: &str = "bf16";

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        convert::f32_to_bf16(value)
    }
}

/// The operands of a linear layer.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug)]
pub struct Linear16Operands<E> {
    /// `[rows, k]`.
    pub x: crate::Rows<E>,
    /// `[n, k]`.
    pub weight: crate::Rows<E>,
    /// `[n]`.
    pub bias: Option<cuda_std::launch::DevicePtr<f32>>,
    /// `[rows, n]`.
    pub residual: Option<crate::Rows<f32>>,
    /// `[rows, n]`; may be the residual.
    pub out: Out16<E>,
}

/// Where a linear layer writes.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug)]
pub enum Out16<E> {
    /// Rounded to the operands' element.
    Half(crate::Rows<E>),
    /// As summed.
    F32(crate::Rows<f32>),
}
