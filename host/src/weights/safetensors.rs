//! The header of a safetensors file.
//!
//! Eight bytes of header length, a JSON object from tensor names to type, shape and offsets, then
//! the data, without holes. The `safetensors` crate is not used: its errors name neither
//! tensor nor value, it accepts a name that appears twice, and it rejects the whole file
//! for one tensor of an unknown type.
//!
//! Source: <https://github.com/huggingface/safetensors#format>.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::json;

use super::{TensorDtype, TensorInfo, Tensors, shown};
use crate::plan::Dtype;

/// The format's own limit of the header's length.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The header of a file of tensors in this order: name, type and shape, and bytes of the data. It is padded with spaces, so
/// that the data is aligned in a mapped file.
pub fn header<'a>(
    tensors: impl IntoIterator<Item = ((&'a str, &'a str, &'a [usize]), usize)>,
) -> Vec<u8> {
    let mut end = 0;
    let entries = tensors.into_iter().map(|((name, dtype, shape), bytes)| {
        let start = end;
        end += bytes;
        let offsets = [start, end];
        (name.to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}))
    });
    let mut json = serde_json::Value::Object(entries.collect()).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    [&(json.len() as u64).to_le_bytes(), &*json].concat()
}

/// What can be wrong with a safetensors file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// Fewer than the eight bytes of the header's length.
    #[error("{0} bytes are too few for a safetensors file: fetch it again")]
    TooShort(usize),
    /// The header's length is beyond the file or the format's limit.
    #[error(
        "the header should be {header_bytes} bytes, the file has {file_bytes} in all and a header \
         at most 100 MB: no safetensors file, or truncated"
    )]
    HeaderLength {
        /// Length that the file states.
        header_bytes: u64,
        /// Length of the file.
        file_bytes: usize,
    },
    /// The header is not a JSON object of tensors.
    #[error("the header is not what safetensors says: {0}")]
    Header(#[from] serde_json::Error),
    /// A name appears twice in the header.
    #[error("tensor {} appears twice in the header", shown(.0))]
    Duplicate(String),
    /// Elements or bytes that no machine can count.
    #[error("tensor {} has shape {shape:?}, too large to be true", shown(tensor))]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// Shape of the tensor.
        shape: Vec<u64>,
    },
    /// The length of the data is not that of shape and type.
    #[error(
        "tensor {} has {bytes} bytes of data, its shape {shape:?} of {dtype} makes {expected}",
        shown(tensor)
    )]
    WrongLength {
        /// The tensor.
        tensor: String,
        /// Shape of the tensor.
        shape: Vec<usize>,
        /// Type of the elements.
        dtype: Dtype,
        /// Bytes between its offsets.
        bytes: u64,
        /// Bytes that would be right.
        expected: usize,
    },
    /// Offsets that decrease, overlap the previous tensor, leave a gap, or exceed the file.
    #[error(
        "tensor {} has its data at {start}..{end}; the data before it ends at {expected_start}, \
         the file's at {data_bytes}: truncated or corrupt, fetch it again",
        shown(tensor)
    )]
    Offsets {
        /// The tensor.
        tensor: String,
        /// First byte, from the end of the header.
        start: u64,
        /// Byte past the last.
        end: u64,
        /// Where it should start.
        expected_start: u64,
        /// Bytes of data in the file.
        data_bytes: u64,
    },
    /// Data after the last tensor.
    #[error("{0} bytes after the last tensor belong to no tensor: corrupt, fetch it again")]
    TrailingBytes(u64),
}

/// Reads the header of a safetensors file and checks it against the file's length.
///
/// # Errors
/// Any [`SafetensorsError`].
pub fn parse(bytes: &[u8]) -> Result<Tensors, SafetensorsError> {
    let too_short = SafetensorsError::TooShort(bytes.len());
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or(too_short)?;
    let header_bytes = u64::from_le_bytes(*length);
    let (header, data) = usize::try_from(header_bytes)
        .ok()
        .filter(|_| header_bytes <= MAX_HEADER_BYTES)
        .and_then(|length| rest.split_at_checked(length))
        .ok_or(SafetensorsError::HeaderLength { header_bytes, file_bytes: bytes.len() })?;
    let Header(mut entries) = serde_json::from_slice(header)?;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);

    let data_start = bytes.len() - data.len();
    let data_bytes = data.len() as u64;
    let mut expected_start = 0;
    let mut tensors = Tensors::new();
    for (tensor, entry) in entries {
        if tensors.contains_key(&tensor) {
            return Err(SafetensorsError::Duplicate(tensor));
        }
        let (start, end) = entry.data_offsets;
        if start != expected_start || end < start || end > data_bytes {
            return Err(SafetensorsError::Offsets {
                tensor,
                start,
                end,
                expected_start,
                data_bytes,
            });
        }
        expected_start = end;
        let (shape, dtype) = check_length(&tensor, entry)?;
        // Both are within the file's length, and so within `usize`.
        let range = data_start + start as usize..data_start + end as usize;
        tensors.insert(tensor, TensorInfo { shape, dtype, range });
    }
    match data_bytes - expected_start {
        0 => Ok(tensors),
        trailing => Err(SafetensorsError::TrailingBytes(trailing)),
    }
}

/// The shape and type of `entry`, whose data is as long as they make it.
fn check_length(tensor: &str, entry: Entry) -> Result<(Vec<usize>, TensorDtype), SafetensorsError> {
    let dtype = match entry.dtype.as_str() {
        "F32" => TensorDtype::Known(Dtype::F32),
        "F16" => TensorDtype::Known(Dtype::F16),
        "BF16" => TensorDtype::Known(Dtype::BF16),
        _ => TensorDtype::Other(entry.dtype),
    };
    let dims: Option<Vec<usize>> = entry.shape.iter().map(|&dim| dim.try_into().ok()).collect();
    let counted = dims.and_then(|shape| {
        let elems = shape.iter().try_fold(1usize, |elems, &dim| elems.checked_mul(dim))?;
        let expected = match dtype {
            TensorDtype::Known(dtype) => Some((dtype, dtype.bytes(elems)?)),
            TensorDtype::Other(_) => None,
        };
        Some((shape, expected))
    });
    let Some((shape, expected)) = counted else {
        return Err(SafetensorsError::TooLarge { tensor: tensor.to_owned(), shape: entry.shape });
    };
    let bytes = entry.data_offsets.1 - entry.data_offsets.0;
    match expected {
        Some((dtype, expected)) if expected as u64 != bytes => Err(SafetensorsError::WrongLength {
            tensor: tensor.to_owned(),
            shape,
            dtype,
            bytes,
            expected,
        }),
        _ => Ok((shape, dtype)),
    }
}

/// A tensor as the header describes it.
#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// All entries of the header in the order of the file, so that a duplicate name is seen.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let entry = map
                .next_value()
                .map_err(|error| A::Error::custom(format!("tensor {}: {error}", shown(&name))))?;
            entries.push((name, entry));
        }
        Ok(Header(entries))
    }
}
