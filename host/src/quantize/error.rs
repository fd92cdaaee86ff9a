//! Why a model cannot be quantised.

use std::io;

use crate::text::TextError;
use crate::weights::{EncodeError, WeightsError};

/// Why a model cannot be written as GGUF, with its weights in another type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A tensor of the model cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A tensor's values cannot be stored in the type.
    #[error("{source}{}", advice(source))]
    Encode {
        /// What is wrong.
        #[from]
        source: EncodeError,
    },
    /// The tokenizer cannot be written as GGUF.
    #[error(transparent)]
    Text(#[from] TextError),
    /// Something about the model that GGUF has no key for.
    #[error("the model has {0}, which GGUF has no key for")]
    NoKey(&'static str),
    /// The output cannot be written.
    #[error(transparent)]
    Write(#[from] io::Error),
}

/// What to do about a value that is too large.
fn advice(error: &EncodeError) -> &'static str {
    match error {
        EncodeError::Value { value, .. } if value.is_finite() => {
            "\nchoose another type: F16 holds up to 65504, Q8_0 up to 8 million"
        }
        _ => "",
    }
}
