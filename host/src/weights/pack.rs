//! Packing a checkpoint's tensors into the weights of a plan: parts are stacked, rows reordered and
//! elements converted.

use rayon::prelude::*;

use super::blocks::{Decoder, decoder};
use super::encode::Encoder;
use super::{Checkpoint, TensorDtype, TensorEntry, WeightsError};
use crate::plan::{Dtype, PartTransform, ReadWeightError, Weight, WeightPart, WeightSource};

/// Elements converted at a time: whole blocks of every format, few enough to stay in the
/// first-level cache.
const RUN_ELEMS: usize = 256;

/// A parallel task has at least this many elements.
const TASK_ELEMS: usize = 1 << 16;

impl Checkpoint {
    /// A whole tensor as f32, in its stored order.
    ///
    /// # Errors
    /// [`WeightsError::MissingTensor`] or [`WeightsError::UnsupportedDtype`].
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let entry = self.require(name)?;
        let rows = StoredRows::new(&entry, entry.shape.last().copied().unwrap_or(1))?;
        let mut values = vec![0.0f32; entry.shape.iter().product()];
        let f32 = Encoder::new(Dtype::F32).expect("weights are kept in f32");
        rows.read(f32, bytemuck::cast_slice_mut(&mut values), |row| row)?;
        Ok(values)
    }

    /// Checks that every part of `weight` is there, in a shape and a type that
    /// [`WeightSource::read`] can pack.
    ///
    /// # Errors
    /// [`WeightsError::MissingTensor`], [`WeightsError::WrongShape`],
    /// [`WeightsError::UnsupportedDtype`], [`WeightsError::NotHeads`] or
    /// [`WeightsError::UnsupportedStorage`].
    pub fn check(&self, weight: &Weight) -> Result<(), WeightsError> {
        storage_encoder(weight)?;
        weight.parts.iter().try_for_each(|part| self.part_rows(weight, part).map(drop))
    }

    fn require(&self, name: &str) -> Result<TensorEntry<'_>, WeightsError> {
        self.tensor(name).ok_or_else(|| WeightsError::MissingTensor {
            path: self.path().to_owned(),
            tensor: name.to_owned(),
        })
    }

    /// The rows of `part` as the checkpoint stores them, checked against `weight`.
    fn part_rows(
        &self,
        weight: &Weight,
        part: &WeightPart,
    ) -> Result<StoredRows<'_>, WeightsError> {
        let entry = self.require(&part.source)?;
        let vector = is_vector(weight);
        let expected = if vector { vec![part.rows] } else { vec![part.rows, weight.cols] };
        if entry.shape != expected {
            return Err(WeightsError::WrongShape {
                path: entry.file.to_owned(),
                tensor: part.source.clone(),
                shape: entry.shape.to_vec(),
                expected,
            });
        }
        match part.transform {
            PartTransform::None => {
                StoredRows::new(&entry, if vector { part.rows } else { weight.cols })
            }
            PartTransform::UnpermuteRope { num_heads } => {
                let rows = StoredRows::new(&entry, if vector { 1 } else { weight.cols })?;
                let whole_rows = rows.row_elems.is_multiple_of(rows.dtype.block_elems());
                if num_heads == 0 || !part.rows.is_multiple_of(2 * num_heads) || !whole_rows {
                    return Err(WeightsError::NotHeads {
                        path: entry.file.to_owned(),
                        tensor: part.source.clone(),
                        rows: part.rows,
                        dtype: entry.dtype.clone(),
                        num_heads,
                    });
                }
                Ok(rows)
            }
        }
    }
}

impl WeightSource for Checkpoint {
    /// # Panics
    /// If `out` or the parts have not as many bytes as `weight`: a plan's fault, never a file's.
    fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
        self.check(weight)?;
        let encoder = storage_encoder(weight)?;
        assert_eq!(out.len(), weight.bytes(), "bytes for weight {}", weight.name);
        let mut rest = out;
        for part in &weight.parts {
            let stored = self.part_rows(weight, part)?;
            let elems = part.rows * if is_vector(weight) { 1 } else { weight.cols };
            let (out, after) = rest.split_at_mut(elems * encoder.bytes());
            rest = after;
            match part.transform {
                PartTransform::None => stored.read(encoder, out, |row| row),
                PartTransform::UnpermuteRope { num_heads } => {
                    let head_dim = part.rows / num_heads;
                    stored.read(encoder, out, |row| permuted_row(row, head_dim))
                }
            }?;
        }
        assert!(rest.is_empty(), "the parts of weight {} leave rows unwritten", weight.name);
        Ok(())
    }
}

/// The conversion to the storage type of `weight`.
fn storage_encoder(weight: &Weight) -> Result<Encoder, WeightsError> {
    Encoder::new(weight.storage).ok_or_else(|| WeightsError::UnsupportedStorage {
        weight: weight.name.clone(),
        storage: weight.storage,
    })
}

/// Whether `weight` is a vector: the rows of its parts are then elements.
fn is_vector(weight: &Weight) -> bool {
    weight.rows == 1 && weight.parts.iter().map(|part| part.rows).sum::<usize>() == weight.cols
}

/// Where GGUF of the `llama` architecture keeps row `row` of Q or K.
///
/// The converter views a head's rows as `[2, head_dim / 2]` and swaps the two: the halves' rows
/// `i` and `i + head_dim / 2` become neighbours `2i` and `2i + 1`.
/// Source: `permute` in llama.cpp's convert_hf_to_gguf.py.
pub(crate) fn permuted_row(row: usize, head_dim: usize) -> usize {
    let (head, in_head) = (row / head_dim, row % head_dim);
    let (half, pair) = (in_head / (head_dim / 2), in_head % (head_dim / 2));
    head * head_dim + 2 * pair + half
}

/// A tensor's stored data as rows of a type that can be decoded.
struct StoredRows<'a> {
    entry: TensorEntry<'a>,
    dtype: Dtype,
    decode: Decoder,
    row_elems: usize,
}

impl<'a> StoredRows<'a> {
    fn new(entry: &TensorEntry<'a>, row_elems: usize) -> Result<Self, WeightsError> {
        let known = match *entry.dtype {
            // Dequantised before it is read.
            _ if entry.packed.is_some() => decoder(Dtype::F32).map(|decode| (Dtype::F32, decode)),
            TensorDtype::Known(dtype) => decoder(dtype).map(|decode| (dtype, decode)),
            TensorDtype::Other(_) => None,
        };
        let (dtype, decode) = known.ok_or_else(|| WeightsError::UnsupportedDtype {
            path: entry.file.to_owned(),
            tensor: entry.name.to_owned(),
            dtype: entry.dtype.clone(),
        })?;
        Ok(StoredRows { entry: *entry, dtype, decode, row_elems })
    }

    /// Writes the rows to `out` as `encoder` makes them, in parallel: row `row` is the stored row `source_row(row)`.
    fn read(
        &self,
        encoder: Encoder,
        out: &mut [u8],
        source_row: impl Fn(usize) -> usize + Sync,
    ) -> Result<(), WeightsError> {
        if out.is_empty() {
            return Ok(());
        }
        let row_bytes = self.stored_bytes(self.row_elems);
        let dequantized = self.entry.packed.map(|packed| packed.dequantize());
        let stored = match &dequantized {
            Some(values) => bytemuck::cast_slice(values),
            None => self.entry.bytes,
        };
        let rows = out.par_chunks_mut(self.row_elems * encoder.bytes());
        let beyond = rows
            .with_min_len(TASK_ELEMS.div_ceil(self.row_elems))
            .enumerate()
            .find_map_first(|(row, out)| {
                let stored = &stored[source_row(row) * row_bytes..][..row_bytes];
                self.read_row(encoder, stored, out).err()
            });
        match beyond {
            Some(value) => Err(WeightsError::OutOfRange {
                path: self.entry.file.to_owned(),
                tensor: self.entry.name.to_owned(),
                value,
                storage: encoder.dtype,
            }),
            None => Ok(()),
        }
    }

    /// Converts one row; an error is a value that has no place in it.
    fn read_row(&self, encoder: Encoder, stored: &[u8], out: &mut [u8]) -> Result<(), f32> {
        // `out` may be unaligned: values pass through an aligned array.
        let mut values = [0.0f32; RUN_ELEMS];
        let runs = stored.chunks(self.stored_bytes(RUN_ELEMS));
        for (stored, out) in runs.zip(out.chunks_mut(RUN_ELEMS * encoder.bytes())) {
            let values = &mut values[..out.len() / encoder.bytes()];
            (self.decode)(stored, values);
            encoder.encode(values, out)?;
        }
        Ok(())
    }

    fn stored_bytes(&self, elems: usize) -> usize {
        elems / self.dtype.block_elems() * self.dtype.block_bytes()
    }
}
