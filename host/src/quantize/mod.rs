//! A model as a GGUF file with its weights in another type: `halfwarp quantize`.
//!
//! From GGUF, metadata and names are copied; from a Hugging Face directory they are made as
//! llama.cpp's convert_hf_to_gguf.py makes them. One tensor at a time is in memory.

mod error;
mod from_hf;
mod importance;
mod mix;
#[cfg(feature = "cli")]
mod random;

use std::io::Write;

pub use error::QuantizeError;
pub use importance::ImportanceMatrix;
pub use mix::Mix;
#[cfg(feature = "cli")]
pub use random::{random_checkpoint, random_tensors};

use crate::loaded::Model;
use crate::plan::Dtype;
use crate::weights::gguf::{Metadata, TensorDescription, Value, Writer};
use crate::weights::{Checkpoint, Origin, TensorDtype, TensorEntry, encode_elements, permuted_row};
use mix::Context;

/// ggml's `GGML_QNT_VERSION`: the layout of the blocks.
const QUANTIZATION_VERSION: u32 = 2;

/// A model as GGUF describes it, before the types of its tensors are chosen.
struct Source<'a> {
    metadata: Metadata,
    tensors: Vec<Tensor<'a>>,
}

/// A tensor under its GGUF name.
struct Tensor<'a> {
    name: String,
    shape: Vec<usize>,
    data: Data<'a>,
}

/// Where the elements of a tensor are.
enum Data<'a> {
    /// In the checkpoint, in the order that GGUF wants.
    Stored(TensorEntry<'a>),
    /// In the checkpoint: rows of this many heads, which GGUF has in the order of interleaved RoPE.
    Heads(TensorEntry<'a>, usize),
    /// Here.
    Values(Vec<f32>),
}

/// What [`quantize`] has written.
#[derive(Clone, Debug, PartialEq)]
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
}

/// Writes `model` to `out` as GGUF, with the types of `mix`; `progress` is called with the elements
/// done and in total after each tensor.
///
/// # Errors
/// [`QuantizeError::Weights`] for a tensor that cannot be read, [`QuantizeError::Encode`] for
/// values that have no place in their type, [`QuantizeError::Text`] and [`QuantizeError::NoKey`]
/// for a model that GGUF cannot describe, [`QuantizeError::Write`] if `out` fails.
pub fn quantize(
    model: &Model,
    mix: Mix,
    out: impl Write,
    mut progress: impl FnMut(usize, usize),
) -> Result<Summary, QuantizeError> {
    let checkpoint = model.checkpoint();
    let Source { mut metadata, mut tensors } = match checkpoint.origin() {
        Origin::Gguf { metadata } => from_gguf(metadata, checkpoint),
        Origin::HuggingFace { dir, .. } => from_hf::source(model, dir)?,
    };
    tensors.sort_by(|a, b| (mix::layer(&a.name), &a.name).cmp(&(mix::layer(&b.name), &b.name)));
    put_mix(&mut metadata, mix);
    let context = Context {
        num_layers: model.config().num_layers(),
        tied: model.config().tie_word_embeddings,
    };
    let describe = |tensor: &Tensor| TensorDescription {
        name: tensor.name.clone(),
        shape: tensor.shape.clone(),
        dtype: mix.dtype(&tensor.name, &tensor.shape, context),
    };
    let descriptions: Vec<TensorDescription> = tensors.iter().map(describe).collect();
    let elems = tensors.iter().map(Tensor::elems).sum();
    let (mut types, mut bytes_before, mut requantized) = (Vec::new(), 0, 0);
    let mut writer = Writer::new(out, &metadata, &descriptions)?;
    let mut done = 0;
    for (tensor, TensorDescription { dtype, .. }) in tensors.iter().zip(&descriptions) {
        let entry = tensor.stored();
        let is_same = entry.is_some_and(|entry| *entry.dtype == TensorDtype::Known(*dtype));
        let bytes = match &tensor.data {
            Data::Stored(entry) if is_same => {
                writer.tensor(entry.bytes).map(|()| entry.bytes.len())
            }
            _ => {
                let encoded = encode_elements(&tensor.name, &tensor.values(checkpoint)?, *dtype)?;
                writer.tensor(&encoded).map(|()| encoded.len())
            }
        }?;
        bytes_before += entry.map_or(0, |entry| entry.bytes.len());
        requantized += usize::from(!is_same && entry.is_some_and(is_in_blocks));
        count(&mut types, *dtype, bytes);
        done += tensor.elems();
        progress(done, elems);
    }
    writer.finish()?;
    types.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    let bytes_after = types.iter().map(|(_, _, bytes)| bytes).sum();
    Ok(Summary { types, elems, bytes_before, bytes_after, requantized })
}

/// Puts in what says how the tensors are stored.
fn put_mix(metadata: &mut Metadata, mix: Mix) {
    let pairs = [
        ("general.file_type", mix.file_type()),
        ("general.quantization_version", QUANTIZATION_VERSION),
    ];
    metadata.0.extend(pairs.map(|(key, value)| (key.to_owned(), Value::U32(value))));
}

/// The model of a GGUF file, as it is.
fn from_gguf<'a>(metadata: &Metadata, checkpoint: &'a Checkpoint) -> Source<'a> {
    let stored = |entry: TensorEntry<'a>| Tensor {
        name: entry.name.to_owned(),
        shape: entry.shape.to_vec(),
        data: Data::Stored(entry),
    };
    let tensors = checkpoint.tensors().map(stored).collect();
    Source { metadata: metadata.clone(), tensors }
}

impl<'a> Tensor<'a> {
    fn elems(&self) -> usize {
        self.shape.iter().product()
    }

    fn stored(&self) -> Option<TensorEntry<'a>> {
        match self.data {
            Data::Stored(entry) | Data::Heads(entry, _) => Some(entry),
            Data::Values(_) => None,
        }
    }

    /// The elements, in GGUF's order.
    fn values(&self, checkpoint: &Checkpoint) -> Result<Vec<f32>, QuantizeError> {
        Ok(match &self.data {
            Data::Values(values) => values.clone(),
            Data::Stored(entry) => checkpoint.read_f32(entry.name)?,
            Data::Heads(entry, num_heads) => {
                let values = checkpoint.read_f32(entry.name)?;
                let rows = self.shape[0];
                let row_elems = values.len() / rows;
                let mut permuted = vec![0.0; values.len()];
                for (row, values) in values.chunks(row_elems).enumerate() {
                    let to = permuted_row(row, rows / num_heads) * row_elems;
                    permuted[to..to + row_elems].copy_from_slice(values);
                }
                permuted
            }
        })
    }
}

/// Whether a tensor is stored in less than 16 bits an element.
fn is_in_blocks(entry: TensorEntry<'_>) -> bool {
    match entry.dtype {
        TensorDtype::Known(dtype) => dtype.block_elems() > 1,
        // What is read although its type is not known came quantised.
        TensorDtype::Other(_) => true,
    }
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
