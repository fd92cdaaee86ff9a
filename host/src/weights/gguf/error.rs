//! What can be wrong with a GGUF file.

use crate::plan::Dtype;
use crate::weights::{TensorDtype, shown};

/// What can be wrong with a GGUF file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// Not a GGUF file.
    #[error(
        "not a GGUF file (it does not begin with \"GGUF\"); give a .gguf file, or a Hugging Face \
         model directory"
    )]
    Magic,
    /// Written for big-endian machines.
    #[error(
        "a big-endian GGUF file; halfwarp reads little-endian ones: convert it with \
         gguf_convert_endian.py"
    )]
    BigEndian,
    /// A version other than 2 and 3.
    #[error(
        "GGUF version {0}; halfwarp reads 2 and 3: convert the model again with a current llama.cpp"
    )]
    Version(u32),
    /// A file of a split model that doesn't fit the others.
    #[error("one of the files of a split model, but {0}")]
    Split(String),
    /// The file ends too early.
    #[error(
        "{reading} needs {needed_bytes} bytes at {offset}, the file has {left_bytes} more: \
         truncated or corrupt, fetch it again"
    )]
    Truncated {
        /// What was being read.
        reading: String,
        /// Where.
        offset: usize,
        /// Bytes that it takes.
        needed_bytes: u64,
        /// Bytes that were left.
        left_bytes: usize,
    },
    /// A count that exceeds what the rest of the file can hold, or the limit on array elements.
    #[error(
        "{reading} states a count of {count}; at most {limit} are possible: corrupt, fetch it again"
    )]
    Count {
        /// What was being read.
        reading: String,
        /// The count.
        count: u64,
        /// The most that could be there.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{reading} is not UTF-8")]
    Utf8 {
        /// What was being read.
        reading: String,
    },
    /// A value type that GGUF does not have.
    #[error("{reading} is of type {type_id}; GGUF has the types 0 to 12")]
    ValueType {
        /// What was being read.
        reading: String,
        /// The type's number.
        type_id: u32,
    },
    /// An array of arrays.
    #[error("{reading} is an array of arrays, which no model has")]
    NestedArray {
        /// What was being read.
        reading: String,
    },
    /// A key or a tensor that appears twice.
    #[error("{0} appears twice")]
    Duplicate(String),
    /// `general.alignment` is not usable.
    #[error(
        "general.alignment should be a power of two below 2^32, it is {}",
        .0.map_or(String::from("not one"), |stated| stated.to_string())
    )]
    Alignment(Option<u64>),
    /// More dimensions than ggml has.
    #[error("tensor {} has {num_dims} dimensions; GGUF has at most 4", shown(tensor))]
    NumDims {
        /// The tensor.
        tensor: String,
        /// Number of dimensions.
        num_dims: u32,
    },
    /// A dimension of zero, or more elements than can be counted.
    #[error(
        "tensor {} has shape {shape:?} (outermost first), which no tensor can have",
        shown(tensor)
    )]
    Shape {
        /// The tensor.
        tensor: String,
        /// Shape of the tensor, outermost first.
        shape: Vec<u64>,
    },
    /// Rows that are not a whole number of blocks.
    #[error(
        "tensor {} of {dtype} has rows of {row_elems} elements, which is not a multiple of its block of {}",
        shown(tensor), dtype.block_elems()
    )]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Format of the tensor.
        dtype: Dtype,
        /// Elements of a row.
        row_elems: usize,
    },
    /// Data that does not start at a multiple of the alignment.
    #[error(
        "tensor {} starts at {offset}, which is not a multiple of the alignment {alignment}",
        shown(tensor)
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Offset of the tensor in the data.
        offset: u64,
        /// The file's alignment.
        alignment: u32,
    },
    /// Data beyond the end of the file.
    #[error(
        "tensor {} of {dtype} has {bytes} bytes of data at {offset}, the file has {data_bytes}: \
         truncated or corrupt, fetch it again",
        shown(tensor)
    )]
    PastEnd {
        /// The tensor.
        tensor: String,
        /// Format of the tensor.
        dtype: TensorDtype,
        /// Offset of the tensor in the data.
        offset: u64,
        /// Length of the data of the tensor.
        bytes: usize,
        /// Bytes of data in the file.
        data_bytes: usize,
    },
    /// Two tensors that share bytes.
    #[error(
        "tensors {} and {} share bytes of the file: corrupt, fetch it again",
        shown(first),
        shown(second)
    )]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
}
