//! Packing a checkpoint's tensors into the weights of a plan: parts are stacked, rows reordered and
//! elements converted, or kept as they are.

use std::borrow::Cow;

use blocks::Arch;
use rayon::prelude::*;

use super::encode::Encoder;
use super::{Checkpoint, TensorDtype, TensorEntry, WeightsError};
use crate::plan::{
    Dtype, FP8_BLOCK, PartTransform, ReadWeightError, Weight, WeightPart, WeightSlice, WeightSource,
};
use blocks::fp8;
use blocks::{Decoder, Expander, decoder, expander, wrong_scale};

/// Elements converted at a time: whole blocks of every format, few enough to stay in the
/// first-level cache.
const RUN_ELEMS: usize = 256;

/// Rows that are gathered from columns at a time: their elements in a stored row are neighbours.
const BAND_ROWS: usize = 64;

/// A parallel task has at least this many elements.
const TASK_ELEMS: usize = 1 << 16;

impl Checkpoint {
    /// A whole tensor as f32, in its stored order.
    ///
    /// # Errors
    /// [`WeightsError::MissingTensor`] or [`WeightsError::UnsupportedDtype`].
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let entry = self.require(name)?;
        let row_elems = entry.shape.last().copied().unwrap_or(1);
        let rows = StoredRows::new(&entry, row_elems, Dtype::F32, WeightSlice::Whole)?;
        let mut values = vec![0.0f32; entry.shape.iter().product()];
        let f32 = Encoder::new(Dtype::F32).expect("weights are kept in f32");
        rows.read(Kept::Encoded(f32), bytemuck::cast_slice_mut(&mut values), |row| row)?;
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
        weight.parts.iter().try_for_each(|part| {
            let stored = self.part_rows(weight, part)?;
            match part.storage {
                Dtype::F8_E4M3 => Ok(()),
                storage => stored.kept(storage).map(drop),
            }
        })
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
        let vector = weight.is_vector();
        let (rows, cols) = match part.slice {
            WeightSlice::Whole => (part.rows, weight.cols),
            WeightSlice::Rows { of, .. } => (of, weight.cols),
            WeightSlice::Cols { of, .. } => (part.rows, of),
        };
        let expected = match part.transform {
            PartTransform::Columns { of, .. } => of.to_vec(),
            _ if vector => vec![rows],
            _ => vec![rows, cols],
        };
        let expected = match part.stack {
            Some(stack) => [&[stack, expected[0] / stack.max(1)], &expected[1..]].concat(),
            None => expected,
        };
        // Dimensions of one element may be missing, or more.
        let squeezed = |shape: &[usize]| -> Vec<usize> {
            shape.iter().copied().filter(|&size| size != 1).collect()
        };
        if squeezed(entry.shape) != squeezed(&expected) {
            return Err(WeightsError::WrongShape {
                path: entry.file.to_owned(),
                tensor: part.source.clone(),
                shape: entry.shape.to_vec(),
                expected,
            });
        }
        let is_whole = part.slice == WeightSlice::Whole;
        match part.transform {
            PartTransform::Columns { of: [_, cols], .. } => {
                let rows = StoredRows::new(&entry, cols, part.storage, part.slice)?;
                match rows.dtype.block_elems() == 1 && entry.packed.is_none() {
                    true => Ok(rows),
                    false => Err(WeightsError::UnsupportedDtype {
                        path: entry.file.to_owned(),
                        tensor: entry.name.to_owned(),
                        dtype: entry.dtype.clone(),
                    }),
                }
            }
            PartTransform::None
            | PartTransform::Scale(_)
            | PartTransform::Add(_)
            | PartTransform::NegExp
            | PartTransform::Constant(_)
            | PartTransform::EverySecond => {
                let row_elems = match vector {
                    true if is_whole => part.rows,
                    true => 1,
                    false => weight.cols,
                };
                StoredRows::new(&entry, row_elems, part.storage, part.slice)
            }
            PartTransform::UnpermuteRope { num_heads } => {
                let row_elems = if vector { 1 } else { weight.cols };
                let rows = StoredRows::new(&entry, row_elems, part.storage, part.slice)?;
                let are_heads = num_heads > 0 && part.rows.is_multiple_of(2 * num_heads);
                if !are_heads || !rows.has_whole_blocks() {
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
    fn stored(&self, source: &str) -> Option<Dtype> {
        let entry = self.tensor(source)?;
        match (entry.packed, entry.dtype) {
            (Some(packed), _) => packed.kept_dtype(),
            (None, TensorDtype::Known(dtype)) => Some(*dtype),
            (None, TensorDtype::Other(_)) => None,
        }
    }

    /// # Panics
    /// If `out` has not as many bytes as `weight`: an executor's fault, never a file's.
    fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
        self.check(weight)?;
        assert_eq!(out.len(), weight.bytes(), "bytes for weight {}", weight.name);
        let scales_at = weight.scales_at().min(out.len());
        let (mut rest, mut scales) = out.split_at_mut(scales_at);
        for part in &weight.parts {
            let stored = self.part_rows(weight, part)?;
            let (out, after) = rest.split_at_mut(weight.part_bytes(part));
            rest = after;
            let source_row = |row| match part.transform {
                PartTransform::UnpermuteRope { num_heads } => {
                    permuted_row(row, part.rows / num_heads)
                }
                PartTransform::EverySecond => 2 * row,
                _ => row,
            };
            if let PartTransform::Columns { first, step, .. } = part.transform {
                stored.read_columns(part.storage, [part.rows, weight.cols], first, step, out)?;
            } else if part.storage.is_fp8() {
                let num_scales = part.storage.num_scales(part.rows, weight.cols);
                let (of_part, after) = scales.split_at_mut(num_scales * size_of::<f32>());
                scales = after;
                stored.read_fp8(out, of_part, source_row)?;
            } else {
                stored.read(stored.kept(part.storage)?, out, source_row)?;
            }
            match part.transform {
                PartTransform::Scale(factor) => for_each_f32(out, |element| element * factor),
                PartTransform::Add(addend) => for_each_f32(out, |element| element + addend),
                PartTransform::NegExp => for_each_f32(out, |element| -element.exp()),
                PartTransform::Constant(number) => for_each_f32(out, |_| number),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Makes each of these f32 elements what `f` says.
fn for_each_f32(elements: &mut [u8], f: impl Fn(f32) -> f32) {
    let (elements, _) = elements.as_chunks_mut();
    for element in elements {
        *element = f(f32::from_le_bytes(*element)).to_le_bytes();
    }
}

/// What becomes of a stored row.
#[derive(Clone, Copy)]
enum Kept {
    /// It is converted.
    Encoded(Encoder),
    /// It is copied.
    AsStored,
    /// The blocks become those of another format.
    Expanded(Expander, Dtype),
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

/// A tensor's stored data, or a slice of it, as rows of a type that can be decoded.
struct StoredRows<'a> {
    entry: TensorEntry<'a>,
    dtype: Dtype,
    decode: Decoder,
    row_elems: usize,
    slice: WeightSlice,
}

impl<'a> StoredRows<'a> {
    /// How the rows are kept as `storage`.
    fn kept(&self, storage: Dtype) -> Result<Kept, WeightsError> {
        let encoder = Encoder::new(storage).map(Kept::Encoded);
        let blocks = || match storage == self.dtype {
            true => Some(Kept::AsStored),
            false => Some(Kept::Expanded(expander(self.dtype, storage)?, storage)),
        };
        let blocks = self.has_whole_blocks().then(blocks).flatten();
        encoder.or(blocks).ok_or_else(|| WeightsError::UnsupportedStorage {
            tensor: self.entry.name.to_owned(),
            storage,
        })
    }

    fn has_whole_blocks(&self) -> bool {
        self.row_elems.is_multiple_of(self.dtype.block_elems())
    }

    /// The rows of `slice` of `entry`, which are to be kept as `storage`.
    fn new(
        entry: &TensorEntry<'a>,
        row_elems: usize,
        storage: Dtype,
        slice: WeightSlice,
    ) -> Result<Self, WeightsError> {
        let dtype = match (entry.packed, entry.dtype) {
            (Some(packed), _) if packed.kept_dtype() == Some(storage) => Some(storage),
            (Some(packed), _) if packed.mxfp4().is_some() => Some(Dtype::MXFP4),
            // Dequantised before it is read.
            (Some(_), _) => Some(Dtype::F32),
            (None, TensorDtype::Known(dtype)) => Some(*dtype),
            (None, TensorDtype::Other(_)) => None,
        };
        let known = dtype.and_then(|dtype| Some((dtype, decoder(dtype)?)));
        let (dtype, decode) = known.ok_or_else(|| WeightsError::UnsupportedDtype {
            path: entry.file.to_owned(),
            tensor: entry.name.to_owned(),
            dtype: entry.dtype.clone(),
        })?;
        let rows = StoredRows { entry: *entry, dtype, decode, row_elems, slice };
        let block = if dtype == Dtype::F8_E4M3_BLOCKS { FP8_BLOCK } else { dtype.block_elems() };
        let is_whole = match slice {
            WeightSlice::Whole => true,
            WeightSlice::Rows { first, .. } => {
                rows.has_whole_blocks()
                    && (dtype != Dtype::F8_E4M3_BLOCKS || first.is_multiple_of(block))
            }
            WeightSlice::Cols { first, of } => {
                [first, of].iter().all(|cols| cols.is_multiple_of(block)) && rows.has_whole_blocks()
            }
        };
        if !is_whole {
            return Err(WeightsError::SplitBlocks {
                path: entry.file.to_owned(),
                tensor: entry.name.to_owned(),
                dtype: entry.dtype.clone(),
                block,
            });
        }
        Ok(rows)
    }

    /// Row `row` of the slice in `tensor`, all of the tensor's data.
    fn row<'t>(&self, tensor: &'t [u8], row: usize) -> Cow<'t, [u8]> {
        let (first_row, first_col, cols) = match self.slice {
            WeightSlice::Whole => (0, 0, self.row_elems),
            WeightSlice::Rows { first, .. } => (first, 0, self.row_elems),
            WeightSlice::Cols { first, of } => (0, first, of),
        };
        if let Some(blocks) = self.entry.packed.and_then(|packed| packed.mxfp4()) {
            let [cols, first_col, count] =
                [cols, first_col, self.row_elems].map(|elems| elems / self.dtype.block_elems());
            return Cow::Owned(blocks.repacked((first_row + row) * cols + first_col, count));
        }
        let start = (first_row + row) * self.stored_bytes(cols) + self.stored_bytes(first_col);
        Cow::Borrowed(&tensor[start..][..self.stored_bytes(self.row_elems)])
    }

    /// Writes the rows to `out` as they are kept, in parallel: row `row` is the stored row
    /// `source_row(row)`.
    fn read(
        &self,
        kept: Kept,
        out: &mut [u8],
        source_row: impl Fn(usize) -> usize + Sync,
    ) -> Result<(), WeightsError> {
        if out.is_empty() {
            return Ok(());
        }
        let row_bytes = match kept {
            Kept::Encoded(encoder) => self.row_elems * encoder.bytes(),
            Kept::AsStored => self.stored_bytes(self.row_elems),
            Kept::Expanded(_, storage) => {
                self.row_elems / storage.block_elems() * storage.block_bytes()
            }
        };
        let tensor = &*self.stored();
        let rows = out.par_chunks_mut(row_bytes).with_min_len(TASK_ELEMS.div_ceil(self.row_elems));
        let wrong = rows.enumerate().find_map_first(|(row, out)| {
            let row = source_row(row);
            let stored = &*self.row(tensor, row);
            self.check_scales(row, stored).err().or_else(|| match kept {
                Kept::Encoded(encoder) => self.read_row(encoder, stored, out).err(),
                Kept::AsStored => {
                    out.copy_from_slice(stored);
                    None
                }
                Kept::Expanded(expand, storage) => {
                    expand(stored, out).err().map(|value| self.out_of_range(value, storage))
                }
            })
        });
        wrong.map_or(Ok(()), Err)
    }

    /// All rows in `self.dtype`.
    fn stored(&self) -> Cow<'a, [u8]> {
        match self.entry.packed {
            // Row by row.
            Some(packed) if packed.mxfp4().is_some() => Cow::Borrowed(self.entry.bytes),
            Some(packed) if packed.kept_dtype() == Some(self.dtype) => {
                packed.kept().expect("it is of that type")
            }
            Some(packed) => Cow::Owned(bytemuck::cast_slice(&packed.dequantize()).to_vec()),
            None => Cow::Borrowed(self.entry.bytes),
        }
    }

    /// Writes the rows as E4M3 to `out`, and scales to `scales`, as [`StoredRows::read`]: they are
    /// copied if the checkpoint has them so, and else quantised.
    fn read_fp8(
        &self,
        out: &mut [u8],
        scales: &mut [u8],
        source_row: impl Fn(usize) -> usize + Sync,
    ) -> Result<(), WeightsError> {
        if out.is_empty() {
            return Ok(());
        }
        if let Some(stored) = self.entry.packed.and_then(|packed| packed.fp8_scales())
            && self.dtype.is_fp8()
        {
            if let Some(at) = stored.iter().position(|scale| !scale.is_finite()) {
                return Err(WeightsError::Scale {
                    path: self.entry.file.to_owned(),
                    tensor: self.entry.name.to_owned(),
                    dtype: self.dtype,
                    block: at,
                    scale: stored[at],
                });
            }
            for (at, scale) in scales.as_chunks_mut().0.iter_mut().enumerate() {
                let at = match self.dtype {
                    Dtype::F8_E4M3_BLOCKS => self.scale_of_block(at),
                    _ => self.scale_of_row(source_row(at)),
                };
                *scale = stored[at].to_ne_bytes();
            }
            self.read(Kept::AsStored, out, source_row)?;
            // Kernels for GPUs without E4M3 take it for a number.
            return match out.par_iter().any(|code| code & 0x7F == 0x7F) {
                true => Err(self.out_of_range(f32::NAN, Dtype::F8_E4M3)),
                false => Ok(()),
            };
        }
        let tensor = &*self.stored();
        let rows = out.par_chunks_mut(self.row_elems).zip(scales.as_chunks_mut().0);
        let rows = rows.with_min_len(TASK_ELEMS.div_ceil(self.row_elems));
        let wrong = rows.enumerate().find_map_first(|(row, (out, scale))| {
            let row = source_row(row);
            let stored = &*self.row(tensor, row);
            let mut values = vec![0.0; self.row_elems];
            (self.decode)(Arch::new(), stored, &mut values);
            let not_finite = values.iter().find(|value| !value.is_finite());
            *scale = fp8::quantize_row(&values, out).to_ne_bytes();
            self.check_scales(row, stored)
                .err()
                .or_else(|| not_finite.map(|&value| self.out_of_range(value, Dtype::F8_E4M3)))
        });
        wrong.map_or(Ok(()), Err)
    }

    /// Where the checkpoint has the scale of row `row` of the slice.
    fn scale_of_row(&self, row: usize) -> usize {
        match self.slice {
            WeightSlice::Rows { first, .. } => first + row,
            _ => row,
        }
    }

    /// Where the checkpoint has the scale of block `block` of the slice.
    fn scale_of_block(&self, block: usize) -> usize {
        let blocks_of_row = self.row_elems.div_ceil(FP8_BLOCK);
        let (row, col) = (block / blocks_of_row, block % blocks_of_row);
        match self.slice {
            WeightSlice::Whole => block,
            WeightSlice::Rows { first, .. } => first / FP8_BLOCK * blocks_of_row + block,
            WeightSlice::Cols { first, of } => {
                row * of.div_ceil(FP8_BLOCK) + first / FP8_BLOCK + col
            }
        }
    }

    fn out_of_range(&self, value: f32, storage: Dtype) -> WeightsError {
        WeightsError::OutOfRange {
            path: self.entry.file.to_owned(),
            tensor: self.entry.name.to_owned(),
            value,
            storage,
        }
    }

    fn check_scales(&self, row: usize, stored: &[u8]) -> Result<(), WeightsError> {
        match wrong_scale(self.dtype, stored) {
            Some((block, scale)) => Err(WeightsError::Scale {
                path: self.entry.file.to_owned(),
                tensor: self.entry.name.to_owned(),
                dtype: self.dtype,
                block: row * (self.row_elems / self.dtype.block_elems()) + block,
                scale,
            }),
            None => Ok(()),
        }
    }

    /// Converts one row; an error is a value that has no place in it.
    fn read_row(
        &self,
        encoder: Encoder,
        stored: &[u8],
        out: &mut [u8],
    ) -> Result<(), WeightsError> {
        // `out` may be unaligned: values pass through an aligned array.
        let mut values = [0.0f32; RUN_ELEMS];
        let runs = stored.chunks(self.stored_bytes(RUN_ELEMS));
        for (stored, out) in runs.zip(out.chunks_mut(RUN_ELEMS * encoder.bytes())) {
            let values = &mut values[..out.len() / encoder.bytes()];
            (self.decode)(Arch::new(), stored, values);
            let encoded = encoder.encode(values, out);
            encoded.map_err(|value| self.out_of_range(value, encoder.dtype))?;
        }
        Ok(())
    }

    /// Writes `[rows, cols]` elements to `out`, of which row `r` is column `first[1] + step * r` of
    /// the stored rows, from row `first[0]` on.
    fn read_columns(
        &self,
        storage: Dtype,
        [rows, cols]: [usize; 2],
        first: [usize; 2],
        step: usize,
        out: &mut [u8],
    ) -> Result<(), WeightsError> {
        let Kept::Encoded(encoder) = self.kept(storage)? else {
            let (tensor, storage) = (self.entry.name.to_owned(), storage);
            return Err(WeightsError::UnsupportedStorage { tensor, storage });
        };
        if out.is_empty() {
            return Ok(());
        }
        let (tensor, row_bytes) = (&*self.stored(), cols * encoder.bytes());
        let bands = out.par_chunks_mut(BAND_ROWS * row_bytes).enumerate();
        let wrong = bands.find_map_first(|(band, out)| {
            let first_row = band * BAND_ROWS;
            let num_rows = BAND_ROWS.min(rows - first_row);
            let first_col = first[1] + step * first_row;
            let mut run = vec![0.0; step * (num_rows - 1) + 1];
            let mut values = vec![0.0; num_rows * cols];
            for col in 0..cols {
                let stored = &self.row(tensor, first[0] + col)[self.stored_bytes(first_col)..];
                (self.decode)(Arch::new(), &stored[..self.stored_bytes(run.len())], &mut run);
                for (row, value) in run.iter().step_by(step).enumerate() {
                    values[row * cols + col] = *value;
                }
            }
            let encoded = encoder.encode(&values, out);
            encoded.err().map(|value| self.out_of_range(value, storage))
        });
        wrong.map_or(Ok(()), Err)
    }

    fn stored_bytes(&self, elems: usize) -> usize {
        elems / self.dtype.block_elems() * self.dtype.block_bytes()
    }
}
