//! A model as a GGUF file with its weights in another type: `halfwarp quantize`.
//!
//! From GGUF, metadata and names are copied; from a Hugging Face directory they are made as
//! llama.cpp's convert_hf_to_gguf.py makes them. One tensor at a time is in memory.

mod choose;
mod error;
mod from_hf;
mod importance;
mod mix;
#[cfg(feature = "cli")]
mod random;
mod source;
mod tensor_type;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

pub use error::QuantizeError;
pub use importance::ImportanceMatrix;
pub use mix::Mix;
#[cfg(feature = "cli")]
pub use random::{random_checkpoint, random_tensors};
pub use tensor_type::TensorType;

use crate::loaded::Model;
use crate::plan::Dtype;
use crate::weights::gguf::{Metadata, TensorDescription, Value, Writer};
use crate::weights::{Origin, TensorDtype, encode_rows};
use choose::{Candidate, Facts, needs_importance};
use source::{Source, Tensor};

/// ggml's `GGML_QNT_VERSION`: the layout of the blocks.
const QUANTIZATION_VERSION: u32 = 2;

/// How a model is quantised.
#[derive(Clone, Debug)]
pub struct Options {
    /// The types.
    pub mix: Mix,
    /// Types that some tensors are in instead; of several that match a name, the first counts. They
    /// do not apply to [`Mix::F16`].
    pub tensor_types: Vec<TensorType>,
    /// How much each column matters.
    pub importance: Option<ImportanceMatrix>,
    /// Whether a GGUF model that is split over files stays so.
    pub keep_split: bool,
}

impl From<Mix> for Options {
    fn from(mix: Mix) -> Self {
        Options { mix, tensor_types: Vec::new(), importance: None, keep_split: false }
    }
}

/// What [`quantize`] has written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Each type, how many tensors are of it, and their bytes; the type of the most bytes first.
    pub types: Vec<(Dtype, usize, usize)>,
    /// Elements of all tensors.
    pub elems: usize,
    /// Bytes of all tensors in the model that was read.
    pub bytes_before: usize,
    /// Bytes of all tensors in the file that was written.
    pub bytes_after: usize,
    /// Tensors that were in blocks already, and are now in others: they lost twice.
    pub requantized: usize,
    /// Tensors that an importance matrix was given for, but not by their names.
    pub without_importance: usize,
}

/// How many files [`quantize`] writes.
///
/// # Errors
/// [`QuantizeError::NotGguf`] for another model that is to stay split.
pub fn num_parts(model: &Model, options: &Options) -> Result<usize, QuantizeError> {
    match model.checkpoint().origin() {
        _ if !options.keep_split => Ok(1),
        Origin::Gguf { .. } => Ok(model.checkpoint().files().count()),
        Origin::HuggingFace { .. } => Err(QuantizeError::NotGguf),
    }
}

/// Writes `model` as GGUF; `part` opens file `i` of [`num_parts`], in order, and `progress` is called
/// with the elements done and in total after each tensor.
///
/// # Errors
/// [`QuantizeError::Weights`] for a tensor that cannot be read, [`QuantizeError::Encode`] for
/// values that have no place in their type, [`QuantizeError::Text`] and [`QuantizeError::NoKey`]
/// for a model that GGUF cannot describe, [`QuantizeError::Write`] if a file cannot be written,
/// others for what the options ask for and the model has not.
pub fn quantize<W: Write>(
    model: &Model,
    options: &Options,
    mut part: impl FnMut(usize) -> io::Result<W>,
    mut progress: impl FnMut(usize, usize),
) -> Result<Summary, QuantizeError> {
    let num_parts = num_parts(model, options)?;
    let Plan { metadata, tensors } = plan(model, options)?;
    let elems = tensors.iter().map(|(tensor, ..)| tensor.elems()).sum();
    let mut summary = Summary { elems, ..Summary::default() };
    let mut done = 0;
    for index in 0..num_parts {
        let of_part = || tensors.iter().filter(|(.., part)| *part == index);
        let describe = |(tensor, dtype, _): &(Tensor, Dtype, usize)| TensorDescription {
            name: tensor.name.clone(),
            shape: tensor.shape.clone(),
            dtype: *dtype,
        };
        let descriptions: Vec<TensorDescription> = of_part().map(describe).collect();
        let metadata = part_metadata(&metadata, index, num_parts, tensors.len());
        let mut writer = Writer::new(part(index)?, &metadata, &descriptions)?;
        for (tensor, dtype, _) in of_part() {
            write_tensor(model, options, tensor, *dtype, &mut writer, &mut summary)?;
            done += tensor.elems();
            progress(done, elems);
        }
        writer.finish()?;
    }
    summary.types.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    summary.bytes_after = summary.types.iter().map(|(_, _, bytes)| bytes).sum();
    Ok(summary)
}

/// What is written: each tensor with its type and its file.
struct Plan<'a> {
    metadata: Metadata,
    tensors: Vec<(Tensor<'a>, Dtype, usize)>,
}

fn plan<'a>(model: &'a Model, options: &Options) -> Result<Plan<'a>, QuantizeError> {
    let checkpoint = model.checkpoint();
    let is_gguf = matches!(checkpoint.origin(), Origin::Gguf { .. });
    let Source { mut metadata, tensors } = match checkpoint.origin() {
        Origin::Gguf { metadata } => Source::from_gguf(metadata, checkpoint),
        Origin::HuggingFace { dir, config } => from_hf::source(model, dir, config)?,
    };
    let part = |tensor: &Tensor| {
        let file = tensor.entries().first().filter(|_| options.keep_split).map(|entry| entry.file);
        checkpoint.files().position(|path| Some(path) == file).unwrap_or(0)
    };
    let mut tensors: Vec<_> = tensors.into_iter().map(|tensor| (part(&tensor), tensor)).collect();
    tensors.sort_by_cached_key(|(part, tensor)| {
        (*part, choose::layer(&tensor.name), tensor.name.clone())
    });

    if let Some(importance) = &options.importance {
        importance.check()?;
        importance.record(&mut metadata);
    }
    put_mix(&mut metadata, options.mix);
    let has_importance = options.importance.as_ref().is_some_and(|matrix| !matrix.is_empty());
    let candidates = tensors.iter().map(|(_, tensor)| Candidate {
        name: &tensor.name,
        shape: &tensor.shape,
        stored: match tensor.entries().first().map(|entry| entry.dtype) {
            Some(TensorDtype::Known(dtype)) if is_gguf => Some(*dtype),
            _ => None,
        },
    });
    let candidates: Vec<Candidate> = candidates.collect();
    let facts = Facts::new(model.config(), &metadata, has_importance);
    let dtypes = choose::dtypes(&candidates, options.mix, &options.tensor_types, facts)?;
    let tensors = tensors.into_iter().zip(dtypes);
    let tensors = tensors.map(|((part, tensor), dtype)| (tensor, dtype, part)).collect();
    Ok(Plan { metadata, tensors })
}

fn write_tensor(
    model: &Model,
    options: &Options,
    tensor: &Tensor,
    dtype: Dtype,
    writer: &mut Writer<impl Write>,
    summary: &mut Summary,
) -> Result<(), QuantizeError> {
    let bytes = match tensor.bytes_of(dtype) {
        Some(bytes) => {
            writer.tensor(bytes)?;
            bytes.len()
        }
        None => {
            let importance = match &options.importance {
                Some(matrix) if is_weighted(dtype) => {
                    let of_tensor = matrix.of_tensor(&tensor.name, &tensor.shape)?;
                    summary.without_importance += usize::from(of_tensor.is_none());
                    of_tensor
                }
                _ => None,
            };
            if importance.is_none() && needs_importance(options.mix, &tensor.name, dtype) {
                let tensor = tensor.name.clone();
                return Err(QuantizeError::NeedsImportance { tensor, dtype });
            }
            let encoded = encode(model, tensor, importance, dtype)?;
            writer.tensor(&encoded)?;
            summary.requantized += usize::from(tensor.is_quantized());
            encoded.len()
        }
    };
    summary.bytes_before += tensor.entries().iter().map(|entry| entry.bytes.len()).sum::<usize>();
    count(&mut summary.types, dtype, bytes);
    Ok(())
}

/// The matrices of `tensor` as `dtype` stores them, one after the other.
fn encode(
    model: &Model,
    tensor: &Tensor,
    importance: Option<&[f32]>,
    dtype: Dtype,
) -> Result<Vec<u8>, QuantizeError> {
    let (row_elems, num_matrices) = (tensor.row_elems(), tensor.num_matrices());
    let mut encoded = Vec::new();
    for matrix in 0..num_matrices {
        let values = tensor.values(model.checkpoint(), matrix)?;
        let own = importance.map(|all| {
            let len = all.len() / num_matrices;
            &all[matrix * len..][..len]
        });
        encoded.extend(encode_rows(&tensor.name, &values, row_elems, own, dtype)?);
    }
    Ok(encoded)
}

/// Whether the importance of columns changes what is written.
fn is_weighted(dtype: Dtype) -> bool {
    dtype.block_elems() > 1 && !matches!(dtype, Dtype::Q8_0 | Dtype::MXFP4)
}

/// Puts in what says how the tensors are stored.
fn put_mix(metadata: &mut Metadata, mix: Mix) {
    let pairs = [
        ("general.file_type", mix.file_type()),
        ("general.quantization_version", QUANTIZATION_VERSION),
    ];
    metadata.0.extend(pairs.map(|(key, value)| (key.to_owned(), Value::U32(value))));
}

/// The metadata of a file: the first has all that is said of the model.
fn part_metadata(model: &Metadata, index: usize, num_parts: usize, num_tensors: usize) -> Metadata {
    let mut metadata = if index == 0 { model.clone() } else { Metadata::default() };
    if num_parts > 1 {
        // The types are llama.cpp's; as many files as u16 cannot count are not mapped at once.
        metadata.0.extend([
            ("split.no".to_owned(), Value::U16(index as u16)),
            ("split.count".to_owned(), Value::U16(num_parts as u16)),
            ("split.tensors.count".to_owned(), Value::I32(num_tensors as i32)),
        ]);
    }
    metadata
}

fn count(types: &mut Vec<(Dtype, usize, usize)>, dtype: Dtype, bytes: usize) {
    match types.iter_mut().find(|(known, ..)| *known == dtype) {
        Some((_, tensors, total)) => {
            *tensors += 1;
            *total += bytes;
        }
        None => types.push((dtype, 1, bytes)),
    }
}
