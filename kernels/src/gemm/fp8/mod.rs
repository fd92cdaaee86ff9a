//! Linear layers whose weight is in FP8, E4M3: rows `[n, k]` as files have them.

pub mod dequantise;

#[cfg(not(target_arch = "nvptx64"))]
mod small;
#[cfg(not(target_arch = "nvptx64"))]
pub use small::{LinearFp8Small, LinearFp8SmallOperands};

#[cfg(not(target_arch = "nvptx64"))]
pub use super::kernels::fp8::{Fp8Accumulate, LinearFp8, LinearFp8Operands};

#[cfg(not(target_arch = "nvptx64"))]
use super::problem::ScaleParams;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::{DevicePtr, LaunchError, arg_u32};

/// Rows of a weight, and elements of a row, that share a scale where blocks have scales.
pub use crate::tile::weight::SCALE_BLOCK;

/// What the elements of a weight `[n, k]` are multiplied by.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightScales {
    /// A scale of each row: `[n]`.
    Rows(DevicePtr<f32>),
    /// A scale of each block of [`SCALE_BLOCK`] rows by [`SCALE_BLOCK`] elements of k, row-major:
    /// `[n / SCALE_BLOCK, k / SCALE_BLOCK]`, both rounded up.
    Blocks(DevicePtr<f32>),
}

#[cfg(not(target_arch = "nvptx64"))]
impl WeightScales {
    /// The kernel arguments, for a weight of `k` columns.
    fn args(&self, k: usize) -> Result<ScaleParams, LaunchError> {
        Ok(match *self {
            WeightScales::Rows(ptr) => ScaleParams { ptr, stride: 0 },
            WeightScales::Blocks(ptr) => {
                ScaleParams { ptr, stride: arg_u32("k", k.div_ceil(SCALE_BLOCK as usize))? }
            }
        })
    }
}
