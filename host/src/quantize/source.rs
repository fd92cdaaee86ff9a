//! A model as GGUF describes it, whatever it comes from.

use std::slice;

use super::QuantizeError;
use crate::plan::{Dtype, Weight, WeightSource};
use crate::weights::gguf::Metadata;
use crate::weights::{Checkpoint, TensorDtype, TensorEntry, permuted_row};

/// Metadata and tensors, before the types of the tensors are chosen.
pub(super) struct Source<'a> {
    pub metadata: Metadata,
    pub tensors: Vec<Tensor<'a>>,
}

/// A tensor under its GGUF name.
pub(super) struct Tensor<'a> {
    pub name: String,
    pub shape: Vec<usize>,
    pub data: Data<'a>,
}

/// Where the elements of a tensor are.
pub(super) enum Data<'a> {
    /// In the checkpoint, in the order that GGUF wants.
    Stored(TensorEntry<'a>),
    /// In the checkpoint: rows of this many heads, which GGUF has in the order of interleaved RoPE.
    Heads(TensorEntry<'a>, usize),
    /// In the checkpoint, to all elements of which this is added.
    Added(TensorEntry<'a>, f32),
    /// In the checkpoint: the matrix of each expert, which GGUF has as one tensor.
    Experts(Vec<TensorEntry<'a>>),
    /// In the checkpoint, in a tensor with others: the matrix of each expert.
    Joined(TensorEntry<'a>, Vec<Weight>),
    /// In the checkpoint: heads of values that GGUF tiles. If it says so, minus the exponential of
    /// the elements.
    Tiled(TensorEntry<'a>, Tiles, bool),
    /// Here.
    Values(Vec<f32>),
}

/// The heads of values of Gated DeltaNet along an axis of a tensor: those that share a head of keys
/// are neighbours, and as many apart in GGUF as there are heads of keys.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    /// What comes before them and stays.
    pub first: usize,
    /// Heads of keys, and heads of values for each.
    pub heads: [usize; 2],
    /// Rows or columns of a head.
    pub block: usize,
    /// Whether they are columns.
    pub by_columns: bool,
}

impl Tiles {
    /// `values`, of which a row or column has `unit` elements.
    fn tiled(&self, values: &[f32], unit: usize) -> Vec<f32> {
        let (kept, heads) = values.split_at(self.first * unit);
        let [num_k_heads, shared] = self.heads;
        let block = self.block * unit;
        let places = (0..shared).flat_map(|i| (0..num_k_heads).map(move |k| k * shared + i));
        let tiled = places.flat_map(|head| &heads[head * block..][..block]);
        kept.iter().chain(tiled).copied().collect()
    }
}

impl<'a> Source<'a> {
    /// The model of a GGUF file, as it is.
    pub fn from_gguf(metadata: &Metadata, checkpoint: &'a Checkpoint) -> Self {
        let stored = |entry: TensorEntry<'a>| Tensor {
            name: entry.name.to_owned(),
            shape: entry.shape.to_vec(),
            data: Data::Stored(entry),
        };
        let tensors = checkpoint.tensors().map(stored).collect();
        Source { metadata: metadata.clone(), tensors }
    }
}

impl<'a> Tensor<'a> {
    pub fn elems(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn row_elems(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// The tensors of the checkpoint.
    pub fn entries(&self) -> &[TensorEntry<'a>] {
        match &self.data {
            Data::Stored(entry)
            | Data::Heads(entry, _)
            | Data::Added(entry, _)
            | Data::Joined(entry, _)
            | Data::Tiled(entry, ..) => slice::from_ref(entry),
            Data::Experts(entries) => entries,
            Data::Values(_) => &[],
        }
    }

    /// Matrices that are read one after the other: those of experts are too many at once.
    pub fn num_matrices(&self) -> usize {
        match &self.data {
            Data::Experts(entries) => entries.len(),
            Data::Joined(_, matrices) => matrices.len(),
            _ => 1,
        }
    }

    /// The bytes, if they are of `dtype` already.
    pub fn bytes_of(&self, dtype: Dtype) -> Option<&'a [u8]> {
        match self.data {
            Data::Stored(entry) if *entry.dtype == TensorDtype::Known(dtype) => Some(entry.bytes),
            _ => None,
        }
    }

    /// Whether it is stored in less than 16 bits an element.
    pub fn is_quantized(&self) -> bool {
        self.entries().iter().any(|entry| match entry.dtype {
            TensorDtype::Known(dtype) => dtype.block_elems() > 1,
            // What is read although its type is not known came quantised.
            TensorDtype::Other(_) => true,
        })
    }

    /// The elements of a matrix, in GGUF's order.
    pub fn values(
        &self,
        checkpoint: &Checkpoint,
        matrix: usize,
    ) -> Result<Vec<f32>, QuantizeError> {
        Ok(match &self.data {
            Data::Values(values) => values.clone(),
            Data::Experts(entries) => checkpoint.read_f32(entries[matrix].name)?,
            Data::Joined(_, matrices) => {
                let matrix = &matrices[matrix];
                let mut values = vec![0.0; matrix.rows * matrix.cols];
                checkpoint.read(matrix, bytemuck::cast_slice_mut(&mut values))?;
                values
            }
            Data::Stored(entry) => checkpoint.read_f32(entry.name)?,
            Data::Added(entry, addend) => {
                let values = checkpoint.read_f32(entry.name)?;
                values.into_iter().map(|value| value + addend).collect()
            }
            Data::Tiled(entry, tiles, is_rate) => {
                let values = checkpoint.read_f32(entry.name)?;
                let row_elems = values.len() / self.shape[0];
                let values = match tiles.by_columns {
                    false => tiles.tiled(&values, row_elems),
                    true => values.chunks(row_elems).flat_map(|row| tiles.tiled(row, 1)).collect(),
                };
                match is_rate {
                    true => values.into_iter().map(|value| -value.exp()).collect(),
                    false => values,
                }
            }
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
