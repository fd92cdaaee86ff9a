//! Checkpoints on disk: Hugging Face directories (safetensors) and GGUF files, memory-mapped.
//!
//! Everything here treats a file as hostile: a parser works on `&[u8]`, allocates nothing that the
//! file's own bytes do not pay for, and returns a typed error that names the tensor, the value and
//! what would be right.

mod blocks;
mod checkpoint;
mod encode;
mod error;
pub mod gguf;
pub mod index;
mod map;
mod pack;
mod progress;
pub mod safetensors;
mod tensor;

pub(crate) use checkpoint::is_hugging_face_dir;
pub use checkpoint::{Checkpoint, Origin};
pub use error::WeightsError;
pub use progress::Progress;
pub use tensor::{TensorDtype, TensorEntry, TensorInfo, Tensors};

/// A name out of a file, for an error: quoted, control characters escaped, cut where it would fill
/// the terminal.
pub(crate) fn shown(name: &str) -> String {
    const MAX_CHARS: usize = 80;
    let cut = if name.chars().nth(MAX_CHARS).is_some() { ".." } else { "" };
    let name: String = name.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    format!("`{name}{cut}`")
}
