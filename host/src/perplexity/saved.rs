//! Log-probabilities of a text in a file, as `llama-perplexity --kl-divergence-base` writes them.
//!
//! `"_logits_"`; window length, vocabulary and number of windows, u32; the tokens of the windows, u32; then for each scored
//! position a row of u16: scale and smallest log-probability as f32 in the first four, a code of each token, and one more
//! where the vocabulary is odd. A log-probability is `scale * code + smallest`; those more than 16 below the largest
//! are the smallest.

use super::{MIN_WINDOW, Windows};
use rayon::prelude::*;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"_logits_";
/// Magic, window length, vocabulary, number of windows.
const HEADER_BYTES: usize = 8 + 3 * 4;
/// Codes that hold scale and smallest log-probability.
const NUM_SCALES: usize = 4;
/// Nats below the largest logit from which on all are coded alike.
const RANGE: f32 = 16.0;

/// u16 of a row.
fn row_len(vocab_size: usize) -> usize {
    NUM_SCALES + vocab_size.next_multiple_of(2)
}

/// Why a file of log-probabilities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SavedError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Something else.
    #[error("not a file of log-probabilities: {0}")]
    Format(String),
    /// The file is of another model's tokens.
    #[error("it has a vocabulary of {found} tokens, this model one of {wanted}")]
    Vocabulary {
        /// Tokens of the file.
        found: usize,
        /// Tokens of the model.
        wanted: usize,
    },
}

/// Writes log-probabilities, rows in the order of the text.
pub struct SavedWriter<W> {
    out: W,
    vocab_size: usize,
}

impl<W: Write> SavedWriter<W> {
    /// Writes the header, with the tokens of `windows`.
    ///
    /// # Errors
    /// Errors of `out`, and sizes that the format has no room for.
    pub fn new(mut out: W, windows: &Windows, vocab_size: usize) -> io::Result<Self> {
        let sizes = [windows.window_len(), vocab_size, windows.num_windows()];
        out.write_all(MAGIC)?;
        for size in sizes {
            // llama.cpp reads them as i32.
            let size = i32::try_from(size).map_err(io::Error::other)?;
            out.write_all(&size.to_le_bytes())?;
        }
        out.write_all(bytemuck::cast_slice(windows.tokens()))?;
        Ok(SavedWriter { out, vocab_size })
    }

    /// Writes the rows of `logits`, `[num_rows, vocab_size]`.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn push(&mut self, logits: &[f32]) -> io::Result<()> {
        let num_rows = logits.len() / self.vocab_size;
        let mut rows = vec![0u16; num_rows * row_len(self.vocab_size)];
        rows.par_chunks_mut(row_len(self.vocab_size))
            .zip(logits.par_chunks(self.vocab_size))
            .for_each(|(row, logits)| encode(logits, row));
        self.out.write_all(bytemuck::cast_slice(&rows))
    }

    /// Writes what is still buffered.
    ///
    /// # Errors
    /// Errors of the output.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Codes `logits` as `row`.
fn encode(logits: &[f32], row: &mut [u16]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let min = logits.iter().copied().fold(f32::INFINITY, f32::min).max(max - RANGE);
    let sum: f64 = logits.iter().map(|&logit| f64::from((logit - max).exp())).sum();
    let smallest = min - max - sum.ln() as f32;
    let scale = (max - min) / 65535.0;
    let (scales, codes) = row.split_at_mut(NUM_SCALES);
    scales.copy_from_slice(&bytemuck::cast::<[f32; 2], [u16; NUM_SCALES]>([scale, smallest]));
    if scale > 0.0 {
        let inverse = 1.0 / scale;
        for (code, &logit) in codes.iter_mut().zip(logits) {
            *code =
                if logit > min { (inverse * (logit - min)).round_ties_even() as u16 } else { 0 };
        }
    }
}

/// Log-probabilities that were saved, read row by row.
pub struct SavedLogits {
    rows: BufReader<File>,
    vocab_size: usize,
    windows: Windows,
}

impl SavedLogits {
    /// Opens a file that was made with a vocabulary of `vocab_size`; `bos` begins each window.
    ///
    /// # Errors
    /// [`SavedError`].
    pub fn open(path: &Path, vocab_size: usize, bos: Option<u32>) -> Result<Self, SavedError> {
        // Before the file is opened: opening a pipe would wait for its writer.
        if !path.metadata()?.is_file() {
            return Err(SavedError::Format("not a regular file".to_owned()));
        }
        let file = File::open(path)?;
        let file_bytes = file.metadata()?.len();
        let mut rows = BufReader::new(file);
        let mut header = [0; HEADER_BYTES];
        rows.read_exact(&mut header)
            .map_err(|_| SavedError::Format(format!("it has {file_bytes} bytes alone")))?;
        if header[..MAGIC.len()] != *MAGIC {
            let why = "it does not begin with \"_logits_\"; --kl-divergence-base writes one";
            return Err(SavedError::Format(why.to_owned()));
        }
        let size = |at: usize| {
            let bytes = header[MAGIC.len() + 4 * at..][..4].try_into();
            u64::from(u32::from_le_bytes(bytes.expect("four bytes")))
        };
        let [window_len, found, num_windows] = [size(0), size(1), size(2)];
        if found != vocab_size as u64 {
            return Err(SavedError::Vocabulary { found: found as usize, wanted: vocab_size });
        }
        if window_len < MIN_WINDOW as u64 || num_windows == 0 {
            let why = format!("{num_windows} windows of {window_len} tokens");
            return Err(SavedError::Format(why));
        }
        // All are below 2^32, so that no product reaches 2^128.
        let scored = u128::from(window_len - 1 - window_len / 2);
        let row_bytes = 2 * row_len(vocab_size) as u128;
        let window_bytes = 4 * u128::from(window_len) + scored * row_bytes;
        let wanted = HEADER_BYTES as u128 + u128::from(num_windows) * window_bytes;
        if u128::from(file_bytes) != wanted {
            return Err(SavedError::Format(format!(
                "{num_windows} windows of {window_len} tokens take {wanted} bytes, it has \
                 {file_bytes}: truncated or corrupt"
            )));
        }
        // The file holds as many.
        let mut tokens = vec![0u32; (window_len * num_windows) as usize];
        rows.read_exact(bytemuck::cast_slice_mut(&mut tokens))?;
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(SavedError::Format(format!("token {token} of {vocab_size}")));
        }
        let window_len = window_len as usize;
        let windows = Windows { tokens, window_len, bos, first: window_len / 2 };
        Ok(SavedLogits { rows, vocab_size, windows })
    }

    /// The windows that the rows are of.
    pub fn windows(&self) -> Windows {
        self.windows.clone()
    }

    /// The next `num_rows` rows.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn read(&mut self, num_rows: usize) -> io::Result<SavedRows> {
        let row_len = row_len(self.vocab_size);
        let mut codes = vec![0u16; num_rows * row_len];
        self.rows.read_exact(bytemuck::cast_slice_mut(&mut codes))?;
        Ok(SavedRows { codes, row_len, vocab_size: self.vocab_size })
    }
}

/// Rows of a file.
pub struct SavedRows {
    codes: Vec<u16>,
    row_len: usize,
    vocab_size: usize,
}

impl SavedRows {
    /// The rows, one by one.
    pub(super) fn par_iter(&self) -> impl IndexedParallelIterator<Item = SavedRow<'_>> {
        self.codes.par_chunks(self.row_len).map(|row| {
            let (scales, codes) = row.split_at(NUM_SCALES);
            let scales: [u16; NUM_SCALES] = scales.try_into().expect("four codes");
            let [scale, smallest] = bytemuck::cast(scales);
            SavedRow { scale, smallest, codes: &codes[..self.vocab_size] }
        })
    }
}

/// The log-probabilities of a position.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavedRow<'a> {
    scale: f32,
    smallest: f32,
    codes: &'a [u16],
}

impl SavedRow<'_> {
    /// That of `token`.
    pub fn log_prob(&self, token: usize) -> f32 {
        self.scale * f32::from(self.codes[token]) + self.smallest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const LOGITS: [f32; 10] = [1.0, -2.0, 0.5, 3.0, 0.0, -40.0, 2.0, 2.0, 1.0, -1.0];

    /// Two windows of three tokens of a vocabulary of five: a scored position of each.
    fn file() -> Vec<u8> {
        let windows = Windows::second_halves((0..6).map(|t| t % 5).collect(), 3, None, None);
        let mut out = Vec::new();
        let mut writer = SavedWriter::new(&mut out, &windows.unwrap(), 5).unwrap();
        writer.push(&LOGITS[..5]).unwrap();
        writer.push(&LOGITS[5..]).unwrap();
        writer.finish().unwrap();
        out
    }

    fn open(bytes: &[u8]) -> Result<SavedLogits, SavedError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("saved");
        fs::write(&path, bytes).unwrap();
        SavedLogits::open(&path, 5, Some(4))
    }

    #[test]
    fn what_is_written_is_read() {
        let mut saved = open(&file()).unwrap();
        let windows = saved.windows();
        assert_eq!(windows.tokens(), [0, 1, 2, 3, 4, 0]);
        assert_eq!(windows.iter().next().unwrap().input[..], [4, 1, 2]);
        for logits in LOGITS.chunks(5) {
            let rows = saved.read(1).unwrap();
            let row = rows.par_iter().collect::<Vec<_>>()[0];
            let max = logits.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            for (token, &logit) in logits.iter().enumerate() {
                let want = f64::from(logit.max(max - 16.0)) - sum.ln();
                let got = f64::from(row.log_prob(token));
                assert!((got - want).abs() < 16.0 / 65535.0, "{got}, not {want}");
            }
        }
        assert!(saved.read(1).is_err());
    }

    #[test]
    fn files_that_lie_are_refused() {
        let file = file();
        let with = |at: usize, value: u32| {
            let mut changed = file.clone();
            changed[at..at + 4].copy_from_slice(&value.to_le_bytes());
            open(&changed).err().unwrap().to_string()
        };
        assert!(with(0, 0).contains("_logits_"));
        assert!(with(8, u32::MAX).contains("truncated or corrupt"));
        assert!(with(8, 2).contains("2 windows of 2 tokens"));
        assert!(with(12, 6).contains("a vocabulary of 6 tokens, this model one of 5"));
        assert!(with(16, u32::MAX).contains("truncated or corrupt"));
        assert!(with(16, 0).contains("0 windows"));
        assert!(with(20, 5).contains("token 5 of 5"));
        for len in [0, 7, 19, 20, file.len() - 1] {
            assert!(matches!(open(&file[..len]), Err(SavedError::Format(_))), "{len}");
        }
    }
}
