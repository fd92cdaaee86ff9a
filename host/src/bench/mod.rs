//! Timing of kernels, and of whole models.

pub mod all_reduce;
pub mod attention;
pub mod attention_fp8;
pub mod end_to_end;
pub mod fp8;
pub mod fp8_small;
pub mod fusion;
pub mod gemm;
pub mod kernels;
pub mod long_context;
pub mod mission;
pub mod quantised;
pub(crate) mod random;
pub mod record;
mod stored;
