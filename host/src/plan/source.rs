//! Where an executor reads weights from.

use super::Weight;
use std::error::Error;

/// Gives an executor the weights of a plan, packed and in the storage type that the plan says.
pub trait WeightSource: Sync {
    /// Writes `weight` to `out`, which is `weight.bytes()` long.
    ///
    /// # Errors
    /// [`ReadWeightError`] if a part is missing, has another shape, or cannot be read.
    fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError>;
}

/// A weight that its [`WeightSource`] could not read.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ReadWeightError(Box<dyn Error + Send + Sync>);

impl ReadWeightError {
    /// The source's own error, or a text.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        ReadWeightError(error.into())
    }

    /// The source's own error, if it is an `E`.
    pub fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.0.downcast_ref()
    }
}
