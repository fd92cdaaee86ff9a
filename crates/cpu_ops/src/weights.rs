//! Weights as the executor keeps them: f32, 16 bits, E4M3 or blocks, row by row.

use crate::{CpuError, host_memory};
use blocks::{Codec, WeightRows};
use plan::{Dtype, Weight, WeightSource};

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
    pub fn runs(&self) -> Vec<WeightRows<'_>> {
        let mut rest: &[u8] = &bytemuck::cast_slice(&self.words)[..self.bytes];
        // Of E4M3 all rows are stored alike.
        let scales = self.scales_at.map_or(&[][..], |at| &self.words[at / size_of::<f32>()..]);
        let split = |&Run { dtype, codec, rows }: &Run| {
            let (run, after) =
                WeightRows::split_first((dtype, codec), [rows, self.cols], rest, scales);
            rest = after;
            run
        };
        self.runs.iter().map(split).collect()
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
