//! The element types of tensor core operands.

#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::tensor_map;
use cuda_std::wgmma;
use half::{bf16, f16};

use super::weight::WeightElement;
use crate::element::Half;

/// A 16-bit element type that `mma` and `wgmma` multiply.
pub trait Operand16: Half + wgmma::Element + WeightElement<Self> {
    /// Operands of `wgmma` whose k are rows in shared memory.
    type MnMajor: wgmma::Major<Self>;

    /// Its type in tensor maps.
    #[cfg(not(target_arch = "nvptx64"))]
    const TENSOR_MAP: tensor_map::Element;
}

impl Operand16 for f16 {
    type MnMajor = wgmma::MnMajor;

    #[cfg(not(target_arch = "nvptx64"))]
    const TENSOR_MAP: tensor_map::Element = tensor_map::Element::F16;
}

impl Operand16 for bf16 {
    type MnMajor = wgmma::MnMajor;

    #[cfg(not(target_arch = "nvptx64"))]
    const TENSOR_MAP: tensor_map::Element = tensor_map::Element::Bf16;
}
