//! Linear layers: `out = x * weight^T (+ bias) (+ residual)`. One module a family of kernels;
//! [`Linear`] (f32) and [`Linear16`] (16-bit operands) choose among them. Weights that stay
//! quantised are [`quantised`].

pub mod epilogue;
pub mod f16_gemv;
pub mod f16_sm80;
pub mod f16_sm90;
pub mod f16_small_m;
pub mod f32;
pub mod f32_small_m;
pub mod quantised;

#[cfg(not(target_arch = "nvptx64"))]
mod linear;
#[cfg(not(target_arch = "nvptx64"))]
mod linear16;
#[cfg(not(target_arch = "nvptx64"))]
pub use epilogue::{GemmEpilogue, GemmEpilogueOperands, OutputOf};
#[cfg(not(target_arch = "nvptx64"))]
pub use linear::{Linear, LinearOperands};
#[cfg(not(target_arch = "nvptx64"))]
pub use linear16::{
    Accumulate, Gpu, Input16, Linear16, Linear16Operands, MAX_FUSED_ROWS, Out16, SumOrder,
    Summation, Target,
};

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of linear layers.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    let by_family = [
        linear::dynamic_shared_bytes,
        f16_sm80::dynamic_shared_bytes,
        f16_sm90::dynamic_shared_bytes,
    ];
    by_family.into_iter().find_map(|of| of(symbol))
}
