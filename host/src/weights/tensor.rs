//! How a checkpoint describes a tensor.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use super::packed::Packed;
use crate::plan::Dtype;

/// The tensors of one file, by name.
pub type Tensors = BTreeMap<String, TensorInfo>;

/// A tensor in its file. The parsers have checked that `range` is inside the file and, for a
/// [`TensorDtype::Known`], that it is as long as shape and type make it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// How the elements are stored.
    pub dtype: TensorDtype,
    /// Bytes of the file that hold the data; empty for a GGUF format of unknown size.
    pub range: Range<usize>,
}

/// How a file stores a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorDtype {
    /// A type that halfwarp reads.
    Known(Dtype),
    /// One that it does not read: an error only where the tensor is needed.
    Other(String),
}

impl fmt::Display for TensorDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorDtype::Known(dtype) => dtype.fmt(f),
            TensorDtype::Other(name) => f.write_str(name),
        }
    }
}

/// A tensor of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct TensorEntry<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Dimensions, outermost first (for GGUF too).
    pub shape: &'a [usize],
    /// How the elements are stored.
    pub dtype: &'a TensorDtype,
    /// The stored data; empty for a GGUF format of unknown size.
    pub bytes: &'a [u8],
    /// The file that holds it.
    pub file: &'a Path,
    /// How it is dequantised, if it came quantised in safetensors.
    pub(super) packed: Option<Packed<'a>>,
}
