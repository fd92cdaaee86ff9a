//! The tensor part of a GGUF file.

use super::{GgufError, reader::Reader};
use crate::plan::Dtype;
use crate::weights::{TensorDtype, TensorInfo, Tensors, shown};
use gpu_types::BlockFormat;

/// Dimensions of a ggml tensor.
const MAX_DIMS: u32 = 4;

/// A tensor as the file describes it; its data starts `offset` bytes into the data part.
pub(super) struct Description {
    name: String,
    shape: Vec<usize>,
    dtype: TensorDtype,
    bytes: usize,
    offset: u64,
}

impl Description {
    /// Fewest bytes of a description: name length, number of dimensions, type, offset.
    pub const MIN_BYTES: usize = 8 + 4 + 4 + 8;

    /// Reads a description and checks what needs no other.
    pub fn read(reader: &mut Reader) -> Result<Self, GgufError> {
        let name = reader.string()?;
        reader.reading = format!("tensor {}", shown(&name));
        let num_dims = reader.u32()?;
        if num_dims > MAX_DIMS {
            return Err(GgufError::NumDims { tensor: name, num_dims });
        }
        // The file has the innermost dimension first.
        let mut dims = (0..num_dims).map(|_| reader.u64()).collect::<Result<Vec<u64>, _>>()?;
        dims.reverse();
        let dtype = ggml_type(reader.u32()?);
        let offset = reader.u64()?;
        let Some(shape) = checked_shape(&dims) else {
            return Err(GgufError::Shape { tensor: name, shape: dims });
        };
        let bytes = match dtype {
            TensorDtype::Known(dtype) => {
                let row_elems = shape.last().copied().unwrap_or(1);
                if !row_elems.is_multiple_of(dtype.block_elems()) {
                    return Err(GgufError::PartialBlock { tensor: name, dtype, row_elems });
                }
                match dtype.bytes(shape.iter().product()) {
                    Some(bytes) => bytes,
                    None => return Err(GgufError::Shape { tensor: name, shape: dims }),
                }
            }
            TensorDtype::Other(_) => 0,
        };
        Ok(Description { name, shape, dtype, bytes, offset })
    }
}

/// `dims` as a shape; `None` if one is zero or the number of elements overflows.
fn checked_shape(dims: &[u64]) -> Option<Vec<usize>> {
    let shape: Vec<usize> = dims.iter().map(|&dim| dim.try_into().ok()).collect::<Option<_>>()?;
    let elems = shape.iter().try_fold(1usize, |elems, &dim| elems.checked_mul(dim))?;
    (elems != 0).then_some(shape)
}

/// Places the tensors in the file, whose data part begins at the first multiple of `alignment`
/// after `descriptions_end`, and checks that each is aligned, inside the file and disjoint from the others.
pub(super) fn place(
    mut descriptions: Vec<Description>,
    alignment: u32,
    descriptions_end: usize,
    file_bytes: usize,
) -> Result<Tensors, GgufError> {
    // A file that ends in the padding has no data: the data part is then empty, at the file's end.
    let data_start = descriptions_end.checked_next_multiple_of(alignment as usize);
    let data_start = data_start.unwrap_or(file_bytes).min(file_bytes);
    let data_bytes = file_bytes - data_start;
    descriptions.sort_by_key(|tensor| tensor.offset);
    let mut tensors = Tensors::new();
    let mut before: Option<(String, u64)> = None;
    for Description { name, shape, dtype, bytes, offset } in descriptions {
        if tensors.contains_key(&name) {
            return Err(GgufError::Duplicate(format!("tensor {}", shown(&name))));
        }
        if !offset.is_multiple_of(alignment.into()) {
            return Err(GgufError::Misaligned { tensor: name, offset, alignment });
        }
        let end = offset.checked_add(bytes as u64).filter(|&end| end <= data_bytes as u64);
        let Some(end) = end else {
            return Err(GgufError::PastEnd { tensor: name, dtype, offset, bytes, data_bytes });
        };
        if let Some((first, _)) = before.take_if(|(_, before_end)| *before_end > offset) {
            return Err(GgufError::Overlap { first, second: name });
        }
        before = Some((name.clone(), end));
        // Both are within the file's length, and so within `usize`.
        let range = data_start + offset as usize..data_start + end as usize;
        tensors.insert(name, TensorInfo { shape, dtype, range });
    }
    Ok(tensors)
}

/// The plain types that are read, by ggml's number. Source: `enum ggml_type` in ggml.h.
const PLAIN: [(u32, Dtype); 3] = [(0, Dtype::F32), (1, Dtype::F16), (30, Dtype::BF16)];

/// The types that are read, and ggml's numbers of them.
fn types() -> impl Iterator<Item = (u32, Dtype)> {
    let blocks = |format: BlockFormat| (format.facts().ggml_id, Dtype::Blocks(format));
    PLAIN.into_iter().chain(BlockFormat::ALL.map(blocks))
}

/// The type that ggml numbers `id`.
fn ggml_type(id: u32) -> TensorDtype {
    match types().find(|(known, _)| *known == id) {
        Some((_, dtype)) => TensorDtype::Known(dtype),
        None => TensorDtype::Other(other_type(id)),
    }
}

/// ggml's number of `dtype`, if it has one.
pub(super) fn ggml_id(dtype: Dtype) -> Option<u32> {
    types().find(|(_, known)| *known == dtype).map(|(id, _)| id)
}

/// ggml's name of a type that is not read.
fn other_type(id: u32) -> String {
    let name = match id {
        9 => "Q8_1",
        15 => "Q8_K",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        // Of old files, which llama.cpp reads no more either.
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        40 => "NVFP4",
        41 => "Q1_0",
        _ => return format!("ggml type {id}"),
    };
    name.to_owned()
}
