//! Linear layers: `out = x * weight^T (+ bias) (+ residual)`. A kernel is an `operand` source, a
//! `mainloop` and an `epilogue`; [`Linear`] (f32) and [`Linear16`] (16-bit operands) choose
//! among them. Weights that stay quantised are [`quantised`].

pub mod config;
mod epilogue;
pub mod experts;
pub mod fp8;
pub mod kernels;
mod mainloop;
mod operand;
pub mod quantised;

#[cfg(not(target_arch = "nvptx64"))]
pub mod layer;
#[cfg(not(target_arch = "nvptx64"))]
mod problem;
#[cfg(not(target_arch = "nvptx64"))]
mod select;
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) use config::dynamic_shared_bytes;
#[cfg(not(target_arch = "nvptx64"))]
pub use fp8::{Fp8Accumulate, LinearFp8, LinearFp8Operands, WeightScales};
#[cfg(not(target_arch = "nvptx64"))]
pub use gpu_types::{Accumulate, Target};
#[cfg(not(target_arch = "nvptx64"))]
pub use kernels::epilogue::{GemmEpilogue, GemmEpilogueOperands, OutputOf};
#[cfg(not(target_arch = "nvptx64"))]
pub use kernels::{gemv::Gemv16, small_m::SmallM16, swapped::Swapped16};
#[cfg(not(target_arch = "nvptx64"))]
pub use problem::{
    Gpu, Input16, Linear, Linear16, Linear16Operands, LinearOperands, MAX_FUSED_ROWS, Out16,
    SumOrder, Summation,
};
