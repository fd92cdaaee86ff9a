//! Writing a GGUF file, version 3, little-endian, tensor by tensor.

use std::io::{self, Write};

use super::tensors::ggml_id;
use super::{DEFAULT_ALIGNMENT, Metadata, Value};
use crate::plan::Dtype;

const VERSION: u32 = 3;

const ARRAY: u32 = 9;
const STRING: u32 = 8;

/// A tensor that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Name of the tensor.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// How its elements are stored; rows are whole blocks.
    pub dtype: Dtype,
}

impl Description {
    /// Bytes of its data.
    ///
    /// # Panics
    /// If the elements are no whole number of blocks, or more than can be counted.
    pub fn bytes(&self) -> usize {
        self.dtype.bytes(self.shape.iter().product()).expect("rows are whole blocks")
    }
}

/// Writes a GGUF file: the header, then the data of each tensor, in the order of the descriptions.
pub struct Writer<W> {
    out: W,
    alignment: usize,
}

impl<W: Write> Writer<W> {
    /// Writes the header: `metadata` and the descriptions of all tensors.
    ///
    /// # Errors
    /// Errors of `out`.
    ///
    /// # Panics
    /// If a type has no number in GGUF, or the metadata an alignment that is none.
    pub fn new(mut out: W, metadata: &Metadata, tensors: &[Description]) -> io::Result<Self> {
        let alignment = metadata.get_u64("general.alignment").unwrap_or(DEFAULT_ALIGNMENT.into());
        let alignment = usize::try_from(alignment).ok().filter(|bytes| bytes.is_power_of_two());
        let alignment = alignment.expect("the alignment is a power of two");
        let mut header = b"GGUF".to_vec();
        header.extend(VERSION.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((metadata.0.len() as u64).to_le_bytes());
        for (key, value) in &metadata.0 {
            put_string(&mut header, key);
            header.extend(type_id(value).to_le_bytes());
            put_value(&mut header, value);
        }
        let mut offset = 0u64;
        for tensor in tensors {
            put_string(&mut header, &tensor.name);
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            for &dim in tensor.shape.iter().rev() {
                header.extend((dim as u64).to_le_bytes());
            }
            let id = ggml_id(tensor.dtype).expect("weights are of types that GGUF numbers");
            header.extend(id.to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset += tensor.bytes().next_multiple_of(alignment) as u64;
        }
        header.resize(header.len().next_multiple_of(alignment), 0);
        out.write_all(&header)?;
        Ok(Writer { out, alignment })
    }

    /// Writes the data of the next tensor.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn tensor(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)?;
        let padding = bytes.len().next_multiple_of(self.alignment) - bytes.len();
        io::copy(&mut io::Read::take(io::repeat(0), padding as u64), &mut self.out)?;
        Ok(())
    }

    /// Writes what is still buffered.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn type_id(value: &Value) -> u32 {
    match value {
        Value::U8(_) => 0,
        Value::I8(_) => 1,
        Value::U16(_) => 2,
        Value::I16(_) => 3,
        Value::U32(_) => 4,
        Value::I32(_) => 5,
        Value::F32(_) => 6,
        Value::Bool(_) => 7,
        Value::String(_) => STRING,
        Value::Array(_) => ARRAY,
        Value::U64(_) => 10,
        Value::I64(_) => 11,
        Value::F64(_) => 12,
    }
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(value) => out.push(*value),
        Value::I8(value) => out.extend(value.to_le_bytes()),
        Value::U16(value) => out.extend(value.to_le_bytes()),
        Value::I16(value) => out.extend(value.to_le_bytes()),
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push((*value).into()),
        Value::String(text) => put_string(out, text),
        Value::Array(values) => {
            // The elements of an array are of one type; an empty one has lost its type when it was
            // read.
            out.extend(values.first().map_or(STRING, type_id).to_le_bytes());
            out.extend((values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| put_value(out, value));
        }
        Value::U64(value) => out.extend(value.to_le_bytes()),
        Value::I64(value) => out.extend(value.to_le_bytes()),
        Value::F64(value) => out.extend(value.to_le_bytes()),
    }
}
