//! What the machine's time goes into: timing of kernels.

pub mod gemm;
