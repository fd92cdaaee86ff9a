//! llama.cpp's older format of an importance matrix, little-endian.
//!
//! Number of weights i32; of each weight the length of its name i32, the name, the number of chunks i32, the number of
//! columns i32, and of each column the mean square times the number of chunks, f32. Then, if they are there, the number of
//! chunks i32, and the length i32 and name of the text.
//!
//! Source: `IMatrixCollector::save_imatrix_legacy` of llama.cpp's tools/imatrix.

use super::{Entry, Imatrix, ImatrixError};
use crate::files;
use crate::weights::shown;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

pub fn read(path: &Path) -> Result<Imatrix, ImatrixError> {
    parse(&files::read(path)?)
}

/// The matrix in the bytes of a file.
pub fn parse(bytes: &[u8]) -> Result<Imatrix, ImatrixError> {
    let mut reader = Reader { bytes, file_bytes: bytes.len() };
    let num_entries = reader.count("the number of weights")?;
    if num_entries == 0 {
        return Err(ImatrixError::Format("it has no weights".to_owned()));
    }
    let mut entries = BTreeMap::new();
    for index in 0..num_entries {
        let name = reader.text(&format!("the name of weight {index}"))?;
        let what = shown(&name);
        let num_chunks = reader.count(&what)?;
        let num_columns = reader.count(&what)?;
        let values = reader.take(num_columns.saturating_mul(4), &what)?;
        let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().expect("four bytes"));
        let sums = values.chunks_exact(4).map(|bytes| value(bytes).into()).collect();
        // Files that say 0 hold the means themselves.
        let entry = Entry::checked(&name, sums, vec![num_chunks.max(1) as u64])?;
        if entries.insert(name, entry).is_some() {
            return Err(ImatrixError::Format(format!("{what} is there twice")));
        }
    }
    let (mut num_chunks, mut datasets) = (None, Vec::new());
    if !reader.bytes.is_empty() {
        num_chunks = Some(reader.count("the number of chunks")?);
    }
    if !reader.bytes.is_empty() {
        datasets.push(reader.text("the name of the text")?);
    }
    Ok(Imatrix { entries, datasets, chunk_size: None, num_chunks })
}

/// What is left of a file.
struct Reader<'a> {
    bytes: &'a [u8],
    file_bytes: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize, what: &str) -> Result<&'a [u8], ImatrixError> {
        let at = self.file_bytes - self.bytes.len();
        self.bytes.split_off(..len).ok_or_else(|| {
            let file_bytes = self.file_bytes;
            ImatrixError::Format(format!("{what} takes {len} bytes at {at} of {file_bytes}"))
        })
    }

    /// An i32 that is not negative.
    fn count(&mut self, what: &str) -> Result<usize, ImatrixError> {
        let bytes = self.take(4, what)?.try_into().expect("four bytes");
        let count = i32::from_le_bytes(bytes);
        usize::try_from(count)
            .map_err(|_| ImatrixError::Format(format!("{what}: a count of {count}")))
    }

    fn text(&mut self, what: &str) -> Result<String, ImatrixError> {
        let len = self.count(what)?;
        let text = str::from_utf8(self.take(len, what)?);
        text.map(str::to_owned).map_err(|_| ImatrixError::Format(format!("{what} is not UTF-8")))
    }
}

pub fn write(imatrix: &Imatrix, mut out: impl Write) -> io::Result<()> {
    // Without a size the counts are those of chunks already.
    let chunk_size = imatrix.chunk_size.unwrap_or(1).max(1) as u64;
    put_count(&mut out, imatrix.entries.len())?;
    for (name, entry) in &imatrix.entries {
        let max_count = entry.counts.iter().copied().max().unwrap_or(0);
        let num_chunks = max_count.div_ceil(chunk_size);
        put_text(&mut out, name)?;
        put_count(&mut out, num_chunks as usize)?;
        put_count(&mut out, entry.sums.len())?;
        let value = |mean: f32| mean * num_chunks as f32;
        let values: Vec<f32> = entry.means().into_iter().map(value).collect();
        out.write_all(bytemuck::cast_slice(&values))?;
    }
    put_count(&mut out, imatrix.num_chunks.unwrap_or(0))?;
    // The format has room for one name.
    put_text(&mut out, imatrix.datasets.last().map_or("", String::as_str))?;
    out.flush()
}

fn put_count(out: &mut impl Write, count: usize) -> io::Result<()> {
    let count = i32::try_from(count).map_err(io::Error::other)?;
    out.write_all(&count.to_le_bytes())
}

fn put_text(out: &mut impl Write, text: &str) -> io::Result<()> {
    put_count(out, text.len())?;
    out.write_all(text.as_bytes())
}
