//! What can be wrong with a checkpoint.

use std::io;
use std::path::PathBuf;

use super::gguf::GgufError;
use super::index::IndexError;
use super::safetensors::SafetensorsError;
use super::{TensorDtype, shown};
use crate::files::LFS_ADVICE;
use crate::plan::{Dtype, ReadWeightError};

/// What can be wrong with a checkpoint; every variant names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// A file or directory could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A pipe, device or directory where a file should be.
    #[error("{}: not a regular file", path.display())]
    NotAFile {
        /// What was to be read.
        path: PathBuf,
    },
    /// A Git LFS pointer in the place of a file that was not downloaded.
    #[error("{}: {LFS_ADVICE}", path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// A directory without a model.
    #[error(
        "{}: holds neither model.safetensors nor model.safetensors.index.json; give a Hugging \
         Face model directory or a GGUF file",
        path.display()
    )]
    NoModel {
        /// The directory.
        path: PathBuf,
    },
    /// A file of a model that is split over several.
    #[error("{}: is not there; it is file {number} of {count} of a split model", path.display())]
    MissingPart {
        /// The file.
        path: PathBuf,
        /// Number of the file, from one.
        number: usize,
        /// How many files there are.
        count: usize,
    },
    /// `config.json` is not JSON.
    #[error("{}: not valid JSON: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A malformed safetensors file.
    #[error("{}: {source}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: SafetensorsError,
    },
    /// A malformed shard index.
    #[error("{}: {source}", path.display())]
    Index {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: IndexError,
    },
    /// A malformed GGUF file.
    #[error("{}: {source}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: GgufError,
    },
    /// The index places a tensor in a shard that lacks it.
    #[error(
        "{}: tensor {} is not in this shard, where model.safetensors.index.json places it: fetch \
         the model again",
        shard.display(), shown(tensor)
    )]
    NotInShard {
        /// The shard.
        shard: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Weights that came quantised in a way that is not read, or that do not fit it.
    #[error("{}: {reason}", path.display())]
    Quantization {
        /// The checkpoint.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor that the model needs is not there.
    #[error("{}: tensor {} is missing", path.display(), shown(tensor))]
    MissingTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor's shape is not the one that the configuration implies.
    #[error(
        "{}: tensor {} has shape {shape:?}, the model's configuration makes it {expected:?}",
        path.display(), shown(tensor)
    )]
    WrongShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape of the tensor, outermost first.
        shape: Vec<usize>,
        /// The shape that would be right.
        expected: Vec<usize>,
    },
    /// A needed tensor is stored in a type that halfwarp does not read.
    #[error(
        "{}: tensor {} is stored as {dtype}; halfwarp reads F32, F16, BF16 and, from GGUF, Q4_0, \
         Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, IQ1_S to IQ4_XS, TQ1_0, TQ2_0 and MXFP4",
        path.display(), shown(tensor)
    )]
    UnsupportedDtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// How it is stored.
        dtype: TensorDtype,
    },
    /// The rows of a tensor are not whole heads whose halves can be put back for RoPE.
    #[error(
        "{}: tensor {} has {rows} rows of {dtype}, which are not {num_heads} heads of an even \
         number of rows",
        path.display(), shown(tensor)
    )]
    NotHeads {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Rows of the tensor.
        rows: usize,
        /// How it is stored.
        dtype: TensorDtype,
        /// Heads that the configuration gives it.
        num_heads: usize,
    },
    /// A tensor that is divided among devices inside of its blocks.
    #[error(
        "{}: tensor {} is stored as {dtype} in blocks of {block} elements, which these devices cannot \
         share evenly\nrun it on fewer",
        path.display(), shown(tensor)
    )]
    SplitBlocks {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// How it is stored.
        dtype: TensorDtype,
        /// Elements of a block.
        block: usize,
    },
    /// A number that has no place in the type that the plan wants.
    #[error(
        "{}: tensor {} holds {value}, beyond what {storage} can hold\n{}",
        path.display(), shown(tensor), wider(*storage)
    )]
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The number.
        value: f32,
        /// The type that the plan wants.
        storage: Dtype,
    },
    /// A block whose scale is NaN or infinite.
    #[error(
        "{}: tensor {} of {dtype} has the scale {scale} in block {block}: damaged, fetch it again",
        path.display(), shown(tensor)
    )]
    Scale {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Format of the tensor.
        dtype: Dtype,
        /// The block, counted from the tensor's start.
        block: usize,
        /// Scale of the block.
        scale: f32,
    },
    /// The plan wants a storage type that a tensor is not converted to.
    #[error(
        "tensor {} is planned as {storage}; weights are kept as they are stored, or as F32, F16 \
         or BF16",
        shown(tensor)
    )]
    UnsupportedStorage {
        /// The tensor.
        tensor: String,
        /// The type that the plan wants.
        storage: Dtype,
    },
}

/// What to do about a number beyond `storage`.
fn wider(storage: Dtype) -> &'static str {
    match storage {
        Dtype::F16 => "run the model in bf16, which has the range of f32",
        _ => "run the model in f32",
    }
}

impl From<WeightsError> for ReadWeightError {
    fn from(error: WeightsError) -> Self {
        ReadWeightError::new(error)
    }
}
