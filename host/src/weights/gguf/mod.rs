//! GGUF v2 and v3, little-endian.
//!
//! `"GGUF"`, version u32, tensor count u64, key count u64; the key-value pairs; the tensor
//! descriptions; then, at the next multiple of `general.alignment`, the data.
//!
//! Source: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod error;
mod metadata;
mod reader;
pub(super) mod split;
mod tensors;
mod value;
mod write;

pub use error::GgufError;
pub use metadata::{Metadata, Value};
pub use write::{Description as TensorDescription, Writer};

use super::Tensors;
use reader::Reader;
use tensors::Description;

/// The alignment of data in a file that states none.
const DEFAULT_ALIGNMENT: u32 = 32;

/// The parts of a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct Gguf {
    /// The key-value part.
    pub metadata: Metadata,
    /// The tensors.
    pub tensors: Tensors,
}

/// Reads the metadata and the tensor descriptions of a GGUF file, or of one of several that a model
/// is split over, and checks them against the file's length.
///
/// # Errors
/// Any [`GgufError`].
pub fn parse(bytes: &[u8]) -> Result<Gguf, GgufError> {
    let mut reader = Reader::new(bytes);
    if !bytes.starts_with(b"GGUF") {
        return Err(GgufError::Magic);
    }
    reader.u32()?;
    match reader.u32()? {
        2 | 3 => {}
        version if matches!(version.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
        version => return Err(GgufError::Version(version)),
    }
    reader.reading = String::from("the number of tensors");
    let num_tensors = reader.count(Description::MIN_BYTES, u64::MAX)?;
    let metadata = value::read_metadata(&mut reader)?;
    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(value) => {
            let stated = value.as_u64();
            let alignment = stated.and_then(|stated| u32::try_from(stated).ok());
            let alignment = alignment.filter(|alignment| alignment.is_power_of_two());
            alignment.ok_or(GgufError::Alignment(stated))?
        }
    };
    let mut descriptions = Vec::new();
    for index in 0..num_tensors {
        reader.reading = format!("tensor {index} of {num_tensors}");
        descriptions.push(Description::read(&mut reader)?);
    }
    let tensors = tensors::place(descriptions, alignment, reader.offset(), bytes.len())?;
    Ok(Gguf { metadata, tensors })
}
