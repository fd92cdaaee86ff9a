//! Why a model cannot be quantised.

use std::io;

use crate::ModelError;
use crate::plan::{Dtype, ReadWeightError};
use crate::text::TextError;
use crate::weights::{EncodeError, WeightsError, shown};

/// Why a model cannot be written as GGUF, with its weights in another type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    /// A tensor of the model cannot be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A matrix of an expert cannot be read.
    #[error(transparent)]
    Matrix(#[from] ReadWeightError),
    /// The model cannot be computed as it is.
    #[error(transparent)]
    Model(#[from] ModelError),
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
    /// Something about the model that is not written as GGUF here.
    #[error("the model has {0}, which cannot be written as GGUF yet: quantise a GGUF file of it")]
    NotWritten(&'static str),
    /// A tensor of a type that is of no use without an importance matrix.
    #[error(
        "tensor {} would be {dtype}, which needs an importance matrix\n\
         give one that has the tensor, or choose another type",
        shown(tensor)
    )]
    NeedsImportance {
        /// The tensor.
        tensor: String,
        /// Type of the tensor.
        dtype: Dtype,
    },
    /// An importance matrix of another model.
    #[error(
        "the importance matrix has {found} values for tensor {}, which has {expected} columns: it is \
         that of another model",
        shown(tensor)
    )]
    ImportanceShape {
        /// The tensor.
        tensor: String,
        /// Values of the matrix.
        found: usize,
        /// Columns of the tensor, of all its experts.
        expected: usize,
    },
    /// A value of an importance matrix that is no mean square.
    #[error(
        "the importance matrix has {value} for a column of tensor {}, where a number from 0 on \
         should be",
        shown(tensor)
    )]
    ImportanceValue {
        /// The tensor.
        tensor: String,
        /// The value.
        value: f32,
    },
    /// A pattern of tensor names that cannot be tried in sensible time.
    #[error("the pattern `{}` takes too long: write a simpler one", .0.escape_debug())]
    Pattern(String),
    /// A model that is not GGUF cannot stay split as GGUF is.
    #[error("only a GGUF model stays split: this one comes from a Hugging Face directory")]
    NotGguf,
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
