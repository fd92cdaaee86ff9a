//! How a model computes: said once, when a plan is made.

use super::{Dtype, Fusion, PlanError, Precision};

/// How a model computes. A plan is built for it and keeps it
/// ([`Plan::numerics`](super::Plan::numerics)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Numerics {
    /// Element types of weights, KV cache and activations.
    pub precision: Precision,
    /// Type of the accumulators of matrix products on a GPU.
    pub accumulate: Accumulate,
    /// Whether a row of every activation has the same bits whatever other rows share the step, and
    /// whatever the plan's bounds: all decode plans agree, and so do all prompt plans.
    pub batch_invariant: bool,
    /// Which neighbouring operations an executor may fuse.
    pub fusion: Fusion,
    /// How attention is computed.
    pub attention: AttentionForm,
}

impl Numerics {
    /// Whether its parts fit each other.
    ///
    /// # Errors
    /// [`PlanError::Accumulate`] for accumulators in f16 of other operands than f16.
    pub fn check(&self) -> Result<(), PlanError> {
        let operand = self.precision.operand();
        match self.accumulate {
            Accumulate::F16 if operand != Dtype::F16 => Err(PlanError::Accumulate { operand }),
            _ => Ok(()),
        }
    }
}

impl From<Precision> for Numerics {
    /// The default numerics in `precision`.
    fn from(precision: Precision) -> Self {
        Numerics { precision, ..Numerics::default() }
    }
}

/// How attention is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AttentionForm {
    /// In one operation that stores no score: an online softmax over tiles of keys
    /// (arXiv:2205.14135).
    #[default]
    Flash,
    /// In three operations, which store the scores, then their softmax, as activations: for each
    /// token and head so many as the context has positions.
    Materialized,
}

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
