//! The element types of tensor core operands.

#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::tensor_map;
use cuda_std::wgmma;
use cuda_std::{E4m3, Element};
use half::{bf16, f16};

use super::weight::WeightElement;
use crate::element::Half;

/// An element type that TMA loads and `wgmma` multiplies, K-major.
pub trait WgmmaOperand: Element + wgmma::Element {
    /// Type of the elements in tensor maps.
    #[cfg(not(target_arch = "nvptx64"))]
    const TENSOR_MAP: tensor_map::Element;
}

macro_rules! wgmma_operands {
    ($($element:ty = $tensor_map:ident;)*) => {$(
        impl WgmmaOperand for $element {
            #[cfg(not(target_arch = "nvptx64"))]
            const TENSOR_MAP: tensor_map::Element = tensor_map::Element::$tensor_map;
        }
    )*};
}

wgmma_operands! {
    f16 = F16;
    bf16 = Bf16;
    E4m3 = U8;
}

/// A 16-bit element type that `mma` and `wgmma` multiply.
pub trait Operand16: Half + WgmmaOperand + WeightElement<Self> {
    /// Operands of `wgmma` whose k are rows in shared memory.
    type MnMajor: wgmma::Major<Self>;
}

impl Operand16 for f16 {
    type MnMajor = wgmma::MnMajor;
}

impl Operand16 for bf16 {
    type MnMajor = wgmma::MnMajor;
}
