//! Where an executor reads weights from.

use super::{Dtype, Weight};
use std::error::Error;

/// Gives an executor the weights of a plan, packed and in the storage types that the plan says.
pub trait WeightSource: Sync {
    /// In what type the tensor called `source` is stored; `None` where that is not known, or it is
    /// none of [`Dtype`].
    fn stored(&self, _source: &str) -> Option<Dtype> {
        None
    }

    /// Writes the rows of `weight`, one after another, to `out`, which is `weight.bytes()` long, and
    /// the scales of E4M3 after them, at [`Weight::scales_at`]: the layout is [`WeightLayout::Rows`](super::WeightLayout::Rows).
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
