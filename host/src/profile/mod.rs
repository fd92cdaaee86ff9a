//! What the machine's time goes into: timing of kernels, and of whole steps.

pub mod decode;
pub mod gemm;
