//! f32 to the types that a file stores, whole tensors at a time.

use rayon::prelude::*;

use super::encode::Encoder;
use super::shown;
use crate::plan::Dtype;
use blocks::quantizer;

/// A parallel task has at least this many elements.
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

/// The elements of tensor `tensor`, rows of `row_elems`, as `dtype` stores them; converted in
/// parallel.
///
/// Blocks are those of ggml's quantisers. `importance` is how much each column matters: rows of
/// `row_elems`, of which each is for as many rows of `values` (a row for each expert of a stack).
///
/// # Errors
/// [`EncodeError::Value`] for a value that is not finite or too large, [`EncodeError::Dtype`] for a
/// format that is only read.
///
/// # Panics
/// If `values` are no whole number of rows, or rows no whole number of blocks.
pub fn encode_rows(
    tensor: &str,
    values: &[f32],
    row_elems: usize,
    importance: Option<&[f32]>,
    dtype: Dtype,
) -> Result<Vec<u8>, EncodeError> {
    let row_bytes = dtype.bytes(row_elems).expect("rows are whole blocks");
    let rows = values.len().checked_div(row_elems).unwrap_or(0);
    let task_rows = TASK_ELEMS.div_ceil(row_elems.max(1));
    let mut out = vec![0; rows * row_bytes];
    let tasks = (values.par_chunks((task_rows * row_elems).max(1)))
        .zip(out.par_chunks_mut((task_rows * row_bytes).max(1)))
        .enumerate();
    let experts = importance.map_or(1, |importance| importance.len() / row_elems.max(1));
    let of_row = |row: usize| {
        let start = row * experts / rows * row_elems;
        importance.map(|importance| &importance[start..start + row_elems])
    };
    let is_bad = |value: &&f32| !value.is_finite();
    let beyond = if let Some(&value) = values.par_iter().find_first(is_bad) {
        Some(value)
    } else if let Some(quantize) = quantizer(dtype) {
        tasks.find_map_any(|(task, (values, out))| {
            let rows = values.chunks(row_elems).zip(out.chunks_mut(row_bytes)).enumerate();
            let mut rows = rows.map(|(row, (values, out))| {
                quantize(values, of_row(task * task_rows + row), out).err()
            });
            rows.find_map(|beyond| beyond)
        })
    } else if let Some(encoder) = Encoder::new(dtype) {
        tasks.find_map_any(|(_, (values, out))| encoder.encode(values, out).err())
    } else {
        return Err(EncodeError::Dtype { tensor: tensor.to_owned(), dtype });
    };
    match beyond {
        Some(value) => Err(EncodeError::Value { tensor: tensor.to_owned(), value, dtype }),
        None => Ok(out),
    }
}
