//! Importance matrices: how large what each column of a weight is multiplied by is on a text, for
//! [`quantize`](crate::quantize).
//!
//! Files are llama.cpp's: GGUF with sums of squares and counts, and the older `.dat` with means.

mod collect;
mod dat;
mod error;
mod gguf;

pub use collect::Collector;
pub use error::ImatrixError;

use crate::quantize::ImportanceMatrix;
use crate::weights::shown;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Sums over the inputs of each linear layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    /// GGUF name of a weight to what was summed.
    pub entries: BTreeMap<String, Entry>,
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// Tokens of a chunk; `None` from a `.dat` file, in which sums and counts are divided by it.
    pub chunk_size: Option<usize>,
    /// Chunks that were evaluated, if the file says so.
    pub num_chunks: Option<usize>,
}

/// What was summed of a weight's inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Sum of the squares of each column; of a stack of experts, the columns of the first, then of the second.
    pub sums: Vec<f64>,
    /// Rows that were summed: one count, or one of each expert.
    pub counts: Vec<u64>,
}

impl Imatrix {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// [`ImatrixError`].
    pub fn read(path: &Path) -> Result<Self, ImatrixError> {
        // Before the file is opened: opening a pipe would wait for its writer.
        if !path.metadata()?.is_file() {
            return Err(ImatrixError::Format("not a regular file".to_owned()));
        }
        let mut magic = Vec::new();
        File::open(path)?.take(4).read_to_end(&mut magic)?;
        let imatrix = if magic == b"GGUF" { gguf::read(path)? } else { dat::read(path)? };
        for (name, entry) in &imatrix.entries {
            if let Some(sum) = entry.sums.iter().find(|sum| !(sum.is_finite() && **sum >= 0.0)) {
                return Err(ImatrixError::Value { tensor: name.clone(), value: *sum });
            }
        }
        Ok(imatrix)
    }

    /// Writes llama.cpp's GGUF.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write_gguf(&self, out: impl Write) -> io::Result<()> {
        gguf::write(self, out)
    }

    /// Writes llama.cpp's older format.
    ///
    /// # Errors
    /// Errors of `out`, and sizes that the format has no room for.
    pub fn write_dat(&self, out: impl Write) -> io::Result<()> {
        dat::write(self, out)
    }

    /// Adds the sums of `other`; a `.dat` file is taken to have been made in chunks of `chunk_size` tokens.
    ///
    /// # Errors
    /// [`ImatrixError::Mismatch`] for a weight of another size.
    pub fn merge(&mut self, other: Imatrix, chunk_size: usize) -> Result<(), ImatrixError> {
        let scale = if other.chunk_size.is_some() { 1 } else { chunk_size };
        for (name, entry) in other.entries {
            let own = self.entries.entry(name.clone()).or_default();
            if !own.add(&entry, scale) {
                return Err(ImatrixError::Mismatch { tensor: name });
            }
        }
        self.chunk_size = self.chunk_size.or(other.chunk_size);
        self.datasets.extend(other.datasets);
        let chunk_size = self.chunk_size.unwrap_or(chunk_size).max(1) as u64;
        let chunks = (self.max_count() + chunk_size / 2) / chunk_size;
        self.num_chunks = Some(chunks as usize);
        Ok(())
    }

    /// Rows that were summed for the weight that most were.
    fn max_count(&self) -> u64 {
        self.entries.values().flat_map(|entry| &entry.counts).copied().max().unwrap_or(0)
    }

    /// The mean squares, for [`quantize`](crate::quantize).
    pub fn means(&self) -> ImportanceMatrix {
        let means = |(name, entry): (&String, &Entry)| (name.clone(), entry.means());
        ImportanceMatrix {
            entries: self.entries.iter().map(means).collect(),
            file: None,
            datasets: self.datasets.clone(),
            chunks: self.num_chunks.and_then(|chunks| chunks.try_into().ok()),
        }
    }
}

impl Entry {
    /// Adds the squares of a row that `expert` reads.
    fn add_row(&mut self, row: &[f32], expert: usize) {
        for (sum, &x) in self.sums[expert * row.len()..].iter_mut().zip(row) {
            *sum += f64::from(x) * f64::from(x);
        }
        self.counts[expert] += 1;
    }

    /// Adds `other`, of which sums and counts are multiplied by `scale`; false for one of another size.
    fn add(&mut self, other: &Entry, scale: usize) -> bool {
        if self.sums.is_empty() {
            self.sums = vec![0.0; other.sums.len()];
            self.counts = vec![0; other.counts.len()];
        }
        if self.counts.len() == 1 {
            // One count of all experts, as `.dat` files have it.
            self.counts.resize(other.counts.len(), self.counts[0]);
        }
        let is_shared = other.counts.len() == 1;
        if self.sums.len() != other.sums.len()
            || !(is_shared || self.counts.len() == other.counts.len())
        {
            return false;
        }
        for (sum, more) in self.sums.iter_mut().zip(&other.sums) {
            *sum += more * scale as f64;
        }
        for (at, count) in self.counts.iter_mut().enumerate() {
            let more = other.counts[if is_shared { 0 } else { at }];
            *count = count.saturating_add(more.saturating_mul(scale as u64));
        }
        true
    }

    /// The mean squares; 1 for an expert that no token went to.
    fn means(&self) -> Vec<f32> {
        let columns = self.sums.len() / self.counts.len().max(1);
        let mean = |(sums, &count): (&[f64], &u64)| -> Vec<f32> {
            match count {
                0 => vec![1.0; sums.len()],
                count => sums.iter().map(|sum| (sum / count as f64) as f32).collect(),
            }
        };
        self.sums.chunks(columns.max(1)).zip(&self.counts).flat_map(mean).collect()
    }

    /// An entry of a file, if its sizes go together.
    fn checked(name: &str, sums: Vec<f64>, counts: Vec<u64>) -> Result<Self, ImatrixError> {
        if sums.is_empty() || counts.is_empty() || !sums.len().is_multiple_of(counts.len()) {
            return Err(ImatrixError::Format(format!(
                "{} has {} sums and {} counts",
                shown(name),
                sums.len(),
                counts.len()
            )));
        }
        Ok(Entry { sums, counts })
    }
}

impl ImportanceMatrix {
    /// Reads llama.cpp's GGUF, or its older `.dat`.
    ///
    /// # Errors
    /// [`ImatrixError`].
    pub fn read(path: &Path) -> Result<Self, ImatrixError> {
        let file = Some(path.to_string_lossy().into_owned());
        Ok(ImportanceMatrix { file, ..Imatrix::read(path)?.means() })
    }
}

#[cfg(test)]
mod tests;
