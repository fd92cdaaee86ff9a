//! f32 to the types that a file stores, whole tensors at a time.

use rayon::prelude::*;

use super::encode::Encoder;
use super::shown;
use crate::plan::Dtype;
use blocks::quantizer;

/// A parallel task has this many elements: whole blocks of every format.
const TASK_ELEMS: usize = 1 << 14;

/// Why values cannot be stored in a type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A value without a place in the type: not finite, or a block's scale is beyond f16.
    #[error("tensor {} holds {value}, which {dtype} cannot store", shown(tensor))]
    Value {
        /// The tensor.
        tensor: String,
        /// The value.
        value: f32,
        /// The type.
        dtype: Dtype,
    },
    /// A type that nothing is stored in.
    #[error("tensor {}: {dtype} is read, but not written", shown(tensor))]
    Dtype {
        /// The tensor.
        tensor: String,
        /// The type.
        dtype: Dtype,
    },
}

/// The elements of tensor `tensor`, rows of whole blocks, as `dtype` stores them; converted in
/// parallel.
///
/// Blocks are those of ggml's reference quantisers, without an importance matrix.
///
/// # Errors
/// [`EncodeError::Value`] for a value that is not finite or too large, [`EncodeError::Dtype`] for a
/// format that is only read.
///
/// # Panics
/// If `values` are no whole number of blocks.
pub fn encode_elements(tensor: &str, values: &[f32], dtype: Dtype) -> Result<Vec<u8>, EncodeError> {
    let mut out = vec![0; dtype.bytes(values.len()).expect("values are whole blocks")];
    let task_bytes = dtype.bytes(TASK_ELEMS).expect("a task is whole blocks");
    let tasks = values.par_chunks(TASK_ELEMS).zip(out.par_chunks_mut(task_bytes));
    let is_bad = |value: &&f32| !value.is_finite();
    let beyond = if let Some(&value) = values.par_iter().find_first(is_bad) {
        Some(value)
    } else if let Some(quantize) = quantizer(dtype) {
        tasks.find_map_any(|(values, out)| quantize(values, out).err())
    } else if let Some(encoder) = Encoder::new(dtype) {
        tasks.find_map_any(|(values, out)| encoder.encode(values, out).err())
    } else {
        return Err(EncodeError::Dtype { tensor: tensor.to_owned(), dtype });
    };
    match beyond {
        Some(value) => Err(EncodeError::Value { tensor: tensor.to_owned(), value, dtype }),
        None => Ok(out),
    }
}
