//! The type of accumulators.

/// Type of the accumulators of matrix products on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Accumulate {
    /// f32.
    #[default]
    F32,
    /// f16, for operands in f16: half of the registers, and twice the MMA rate on GeForce GPUs. An
    /// accumulator is rounded to 11 bits every 16 products and is infinite beyond 65504.
    /// Small-batch kernels are bound by memory and accumulate in f32 all the same.
    F16,
}
