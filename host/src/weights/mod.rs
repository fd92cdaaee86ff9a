//! Checkpoints on disk: Hugging Face directories (safetensors) and GGUF files, memory-mapped.
//!
//! Files are untrusted: a parser works on `&[u8]`, allocates at most in proportion to the file's own
//! size, and returns a typed error that names the tensor, the value and what would be right.

mod checkpoint;
mod encode;
mod error;
pub mod gguf;
pub mod index;
mod map;
mod pack;
mod packed;
mod progress;
mod quantize;
pub mod safetensors;
mod tensor;

pub(crate) use checkpoint::is_hugging_face_dir;
pub use checkpoint::{Checkpoint, Origin};
pub use error::WeightsError;
pub(crate) use gguf::split::PartName;
pub(crate) use pack::permuted_row;
pub use progress::{BrokenOff, Progress};
pub use quantize::{EncodeError, encode_rows};
pub use tensor::{TensorDtype, TensorEntry, TensorInfo, Tensors};

/// A name from a file, for an error: quoted, with control characters escaped, and truncated.
pub(crate) fn shown(name: &str) -> String {
    const MAX_CHARS: usize = 80;
    let cut = if name.chars().nth(MAX_CHARS).is_some() { ".." } else { "" };
    let name: String = name.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    format!("`{name}{cut}`")
}
