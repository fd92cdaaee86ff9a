//! Linear layers: `out = x * weight^T (+ bias) (+ residual)`.

pub mod f16_small_m;
pub mod f32;
pub mod f32_small_m;

#[cfg(not(target_arch = "nvptx64"))]
mod linear;
#[cfg(not(target_arch = "nvptx64"))]
pub use linear::{Linear, LinearOperands};
