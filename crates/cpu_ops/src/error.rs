//! What can go wrong before the first operation.

use plan::ReadWeightError;

/// An allocation that would end the process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} needs {needed_bytes} bytes, {free_bytes} are free")]
pub struct OutOfMemory {
    /// What was to be allocated.
    pub what: String,
    /// Bytes of the allocation.
    pub needed_bytes: usize,
    /// Bytes that were free.
    pub free_bytes: usize,
}

/// What can go wrong when weights and cache are laid out.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// There is not enough memory.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// A weight could not be read.
    #[error(transparent)]
    Weights(#[from] ReadWeightError),
    /// A weight is stored as none is here.
    #[error("{weight}: {why}")]
    Unsupported {
        /// The weight.
        weight: String,
        /// How it is stored.
        why: String,
    },
}
