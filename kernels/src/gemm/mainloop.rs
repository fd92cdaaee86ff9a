//! The mainloops: products of operands in registers, over k.

pub mod accumulators;
pub mod fma;
pub mod fma_small_m;
pub mod gemv;
pub mod mma;
pub mod stream;
pub mod wgmma;
pub mod wgmma_swapped;
