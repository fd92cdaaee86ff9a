//! Timing of kernels, and of whole steps.

pub mod attention;
pub mod decode;
pub mod gemm;
pub mod kernels;
pub mod mission;
pub(crate) mod random;
pub mod record;
