//! Why an importance matrix cannot be used.

use crate::weights::{WeightsError, shown};
use std::io;

/// Why an importance matrix cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImatrixError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no GGUF file that can be read.
    #[error(transparent)]
    Gguf(#[from] WeightsError),
    /// It is no importance matrix.
    #[error("not an importance matrix: {0}\nhalfwarp imatrix -f TEXT makes one")]
    Format(String),
    /// A sum of squares that is none.
    #[error("{}: {value} is no sum of squares", shown(.tensor))]
    Value {
        /// The weight.
        tensor: String,
        /// What is there.
        value: f64,
    },
    /// Two files of different models.
    #[error("{} has other sizes than in the file before: it is of another model", shown(.tensor))]
    Mismatch {
        /// The weight.
        tensor: String,
    },
}
