//! Weights as the executor keeps them: f32, 16 bits, E4M3 or blocks, row by row.

use crate::{CpuError, host_memory};
use blocks::fp8;
use blocks::{Codec, IntegerFormat};
use bytemuck::try_cast_slice;
use plan::{Dtype, Weight, WeightSource};
use pulp::Arch;
use std::borrow::Cow;
use std::ops::Range;

/// A weight in memory: rows that are stored alike follow each other.
pub struct StoredWeight {
    words: Vec<f32>,
    bytes: usize,
    /// Where the scales of E4M3 begin.
    scales_at: Option<usize>,
    cols: usize,
    runs: Vec<Run>,
}

/// Rows that are stored alike.
#[derive(Clone, Copy)]
struct Run {
    dtype: Dtype,
    codec: Codec,
    rows: usize,
}

impl StoredWeight {
    /// Reads `weight`.
    ///
    /// # Errors
    /// [`CpuError::Unsupported`] for a type that no weight has and for tiles,
    /// [`CpuError::OutOfMemory`],
    /// [`CpuError::Weights`] from `source`.
    pub fn read(weight: &Weight, source: &dyn WeightSource) -> Result<Self, CpuError> {
        if weight.has_tiles() {
            let why = "in tiles, which kernels of a GPU read".to_owned();
            return Err(CpuError::Unsupported { weight: weight.name.clone(), why });
        }
        let mut runs: Vec<Run> = Vec::new();
        for part in &weight.parts {
            let dtype = part.storage;
            let codec = Codec::of(dtype).ok_or_else(|| CpuError::Unsupported {
                weight: part.source.clone(),
                why: format!("{dtype} storage, which no weight has"),
            })?;
            let rows = if weight.is_vector() { 1 } else { part.rows };
            match runs.last_mut() {
                // A vector is one row, whatever its parts.
                Some(last) if weight.is_vector() && last.dtype == dtype => {}
                Some(last) if last.dtype == dtype => last.rows += rows,
                _ => runs.push(Run { dtype, codec, rows }),
            }
        }
        let bytes = weight.bytes();
        let words = host_memory::zeroed(&weight.name, bytes.div_ceil(size_of::<f32>()))?;
        let scales_at = (weight.num_scales() > 0).then(|| weight.scales_at());
        let mut stored = StoredWeight { words, bytes, scales_at, cols: weight.cols, runs };
        source.read(weight, &mut bytemuck::cast_slice_mut(&mut stored.words)[..bytes])?;
        Ok(stored)
    }

    /// Bytes in memory.
    pub fn stored_bytes(&self) -> usize {
        size_of_val(&self.words[..])
    }

    /// The elements of a weight that is all f32: a norm's or a bias.
    pub fn vector(&self) -> &[f32] {
        &self.words
    }

    /// Row `row`, as long as `out`.
    pub fn widen_row(&self, mut row: usize, out: &mut [f32]) {
        for run in self.runs() {
            match row.checked_sub(run.num_rows()) {
                Some(after) => row = after,
                None => return run.widen_row(row, out),
            }
        }
    }

    /// Runs of rows that are stored alike.
    pub fn runs(&self) -> Vec<StoredRows<'_>> {
        let mut rest: &[u8] = &bytemuck::cast_slice(&self.words)[..self.bytes];
        // Of E4M3 all rows are stored alike.
        let scales = self.scales_at.map_or(&[][..], |at| &self.words[at / size_of::<f32>()..]);
        let split = |&Run { dtype, codec, rows }: &Run| {
            let all =
                StoredRows { dtype, codec, cols: self.cols, bytes: rest, scales, first_row: 0 };
            let (bytes, after) = rest.split_at(rows * all.row_bytes());
            rest = after;
            StoredRows { bytes, ..all }
        };
        self.runs.iter().map(split).collect()
    }
}

/// Rows of a weight that are stored alike.
#[derive(Clone, Copy)]
pub struct StoredRows<'a> {
    dtype: Dtype,
    codec: Codec,
    cols: usize,
    bytes: &'a [u8],
    /// Scales of the whole weight, for E4M3 alone.
    scales: &'a [f32],
    /// Index of the first row in the weight, of E4M3.
    first_row: usize,
}

impl<'a> StoredRows<'a> {
    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    /// Whether its elements are f32, which nothing has to be done to.
    pub fn is_f32(&self) -> bool {
        self.dtype == Dtype::F32
    }

    /// The integers of a format in blocks.
    pub fn integers(&self) -> Option<IntegerFormat> {
        self.codec.integers
    }

    /// The rows as they are stored.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The first `middle` rows, and the others.
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let (low, high) = self.bytes.split_at(middle * self.row_bytes());
        let first_row = self.first_row + middle;
        (StoredRows { bytes: low, ..self }, StoredRows { bytes: high, first_row, ..self })
    }

    /// Columns `columns` of row `row`, whole blocks: in `buffer` if they have to be converted,
    /// which is as long.
    #[inline(always)]
    pub fn widen_columns<'b>(
        &self,
        arch: Arch,
        row: usize,
        columns: Range<usize>,
        buffer: &'b mut [f32],
    ) -> &'b [f32]
    where
        'a: 'b,
    {
        let first = row * self.row_bytes() + self.bytes_of(columns.start);
        let stored = &self.bytes[first..][..self.bytes_of(columns.len())];
        // A part after one in blocks may be unaligned.
        if self.is_f32()
            && let Ok(values) = try_cast_slice(stored)
        {
            return values;
        }
        (self.codec.decode)(arch, stored, buffer);
        self.scale(row, columns.start, buffer);
        buffer
    }

    /// Multiplies elements of row `row`, from column `first` on, by the scales of E4M3.
    #[inline(always)]
    fn scale(&self, row: usize, first: usize, elements: &mut [f32]) {
        if !self.scales.is_empty() {
            let row = self.first_row + row;
            fp8::scale_elements(self.dtype, self.scales, self.cols, row, first, elements);
        }
    }

    /// Row `row`, as long as `out`.
    pub fn widen_row(&self, row: usize, out: &mut [f32]) {
        let stored = &self.bytes[row * self.row_bytes()..][..self.row_bytes()];
        (self.codec.decode)(Arch::new(), stored, out);
        self.scale(row, 0, out);
    }

    /// All of them as f32: borrowed if they are f32 already.
    pub fn widen(&self) -> Cow<'a, [f32]> {
        if self.is_f32()
            && let Ok(values) = try_cast_slice(self.bytes)
        {
            return Cow::Borrowed(values);
        }
        let mut wide = vec![0.0; self.num_rows() * self.cols];
        (self.codec.decode)(Arch::new(), self.bytes, &mut wide);
        if !self.scales.is_empty() {
            let rows = wide.chunks_exact_mut(self.cols).enumerate();
            rows.for_each(|(row, elements)| self.scale(row, 0, elements));
        }
        Cow::Owned(wide)
    }

    fn row_bytes(&self) -> usize {
        self.bytes_of(self.cols)
    }

    fn bytes_of(&self, elems: usize) -> usize {
        elems / self.dtype.block_elems() * self.dtype.block_bytes()
    }
}

#[cfg(test)]
impl StoredWeight {
    /// `elements` in f32, `[elements.len() / cols, cols]`.
    pub fn of(elements: &[f32], cols: usize) -> Self {
        let codec = Codec::of(Dtype::F32).expect("weights are kept in f32");
        let run = Run { dtype: Dtype::F32, codec, rows: elements.len() / cols };
        let (words, bytes) = (elements.to_vec(), size_of_val(elements));
        StoredWeight { words, bytes, scales_at: None, cols, runs: vec![run] }
    }
}
