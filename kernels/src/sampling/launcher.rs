//! What the host says, and what it reads.

use super::best::{NO_CANDIDATE, NOT_FINITE};
use super::draw::{LIST_LEN, sample_draw_f32};
use super::edit::EDITS_END;
use super::histogram::{NUM_BINS, UNDECIDED_LEN, sample_histogram_f32};
use super::maximum::sample_maximum_f32;
use super::{BLOCK_COLUMNS, NUM_THREADS, ROW_SAMPLING_LEN};
use crate::Rows;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};

/// Largest vocabulary: the blocks of a row are the grid's y dimension.
pub(super) const MAX_VOCAB_SIZE: usize = Geometry::MAX_GRID[1] * BLOCK_COLUMNS as usize;
const _: () = assert!(MAX_VOCAB_SIZE < NOT_FINITE as usize);

/// How a row's token is chosen: see the [module](super). The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowSampling {
    /// Divides the logits; below [`RowSampling::MIN_TEMPERATURE`] the token is that of the largest.
    pub temperature: f32,
    /// Only the `top_k` largest logits; 0 for all.
    pub top_k: u32,
    /// Only the most probable tokens that together reach this probability; 1 for all.
    pub top_p: f32,
    /// Only tokens at least this probable, as a share of the most probable one's; 0 for all.
    pub min_p: f32,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Tokens that were drawn with this seed before.
    pub position: u32,
}

impl RowSampling {
    /// Takes the largest logit.
    pub const GREEDY: Self =
        RowSampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0, position: 0 };

    /// The least temperature that is not 0.
    pub const MIN_TEMPERATURE: f32 = 1e-5;

    /// Whether the token is that of the largest logit.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature < Self::MIN_TEMPERATURE
    }

    /// The largest distance from the largest logit that min-p allows.
    #[must_use]
    pub fn max_distance(&self) -> f32 {
        -self.min_p.ln()
    }

    /// As the device has it, of a row whose edits end before edit `edits_end` of all rows'.
    #[must_use]
    pub fn words(&self, edits_end: u32) -> [u32; ROW_SAMPLING_LEN] {
        let inverse_temperature = if self.is_greedy() { 0.0 } else { self.temperature.recip() };
        const _: () = assert!(EDITS_END == ROW_SAMPLING_LEN - 1);
        [
            inverse_temperature.to_bits(),
            self.top_k,
            self.top_p.to_bits(),
            self.max_distance().to_bits(),
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.position,
            edits_end,
        ]
    }
}

impl Default for RowSampling {
    fn default() -> Self {
        Self::GREEDY
    }
}

/// The token of a row of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextToken {
    /// The token.
    Token(u32),
    /// The smallest index of a logit that is NaN or positive infinity.
    NotFinite(u32),
    /// Every logit is negative infinity.
    NoCandidate,
}

impl NextToken {
    /// Decodes an output of [`Sample`].
    #[must_use]
    pub fn from_output(output: u32) -> Self {
        match output {
            NO_CANDIDATE => NextToken::NoCandidate,
            _ if output & NOT_FINITE != 0 => NextToken::NotFinite(output & !NOT_FINITE),
            _ => NextToken::Token(output),
        }
    }

    /// The token, if there is one.
    #[must_use]
    pub fn token(self) -> Option<u32> {
        if let NextToken::Token(token) = self { Some(token) } else { None }
    }
}

/// Memory that the launches need.
#[derive(Clone, Copy, Debug)]
pub struct SampleWorkspace {
    /// Room for [`Sample::scratch_bytes`] at a multiple of 16, for these launches alone.
    pub scratch: DevicePtr<u8>,
    /// [`Sample::zeroed_bytes`] zeros at a multiple of 16, which the launches leave zeros.
    pub zeroed: DevicePtr<u8>,
}

/// Chooses a token of each row of logits; [`NextToken::from_output`] reads the outputs.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of a row.
    pub vocab_size: usize,
}

impl Sample {
    /// The launches, none if there are no rows. `num_rows` points to the row count on the device and,
    /// beside it, the element of `out` that the first row's output goes to; `drawn` gets the token of
    /// each row. `sampling` points to [`RowSampling::words`] of each row and `edits` to
    /// [`LogitEdit::words`](super::LogitEdit::words) of each edit, row after row, both at multiples of 16
    /// bytes. No token of a row has two edits.
    ///
    /// # Errors
    /// [`LaunchError`] for an empty row, and for sizes beyond a grid or a `u32`.
    pub fn launches(
        &self,
        num_rows: DevicePtr<u32>,
        sampling: DevicePtr<u32>,
        edits: DevicePtr<u32>,
        logits: Rows<f32>,
        workspace: &SampleWorkspace,
        [drawn, out]: [DevicePtr<u32>; 2],
    ) -> Result<Vec<Launch>, LaunchError> {
        if self.vocab_size == 0 || self.vocab_size > MAX_VOCAB_SIZE {
            return Err(LaunchError::Shape {
                what: "vocab_size",
                value: self.vocab_size,
                expected: "from 1 to 536862720",
            });
        }
        let stride = logits.stride_arg()?;
        let grid = [self.max_rows, self.blocks(), 1];
        let Some(geometry) = Geometry::new(grid, NUM_THREADS as usize, 0)? else {
            return Ok(Vec::new());
        };
        let vocab_size = self.vocab_size as u32;
        let logits = logits.ptr;
        let Parts { lists, maxima, bests, undecided, masses, counts, lens, counters } =
            self.parts(workspace);
        let maximum = sample_maximum_f32::Args {
            num_rows,
            sampling,
            edits,
            vocab_size,
            logits,
            stride,
            maxima,
        };
        let histogram = sample_histogram_f32::Args {
            num_rows,
            sampling,
            vocab_size,
            logits,
            stride,
            maxima,
            masses,
            counts,
            counters,
            undecided,
        };
        let draw = sample_draw_f32::Args {
            num_rows,
            sampling,
            vocab_size,
            logits,
            stride,
            maxima,
            undecided,
            bests,
            lists,
            lens,
            counters,
            drawn,
            out,
        };
        Ok(vec![maximum.launch(geometry), histogram.launch(geometry), draw.launch(geometry)])
    }

    /// Bytes of [`SampleWorkspace::scratch`].
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scratch_ends()[3]
    }

    /// Bytes of [`SampleWorkspace::zeroed`].
    #[must_use]
    pub fn zeroed_bytes(&self) -> usize {
        self.zeroed_ends()[3]
    }

    /// Ends of lists, undecided bins, maxima and bests.
    fn scratch_ends(&self) -> [usize; 4] {
        let block_bytes = 2 * self.blocks() * size_of::<u32>();
        let row = [
            LIST_LEN as usize * size_of::<u64>(),
            UNDECIDED_LEN * size_of::<u32>(),
            block_bytes,
            block_bytes,
        ];
        self.ends(row)
    }

    /// Ends of masses, counts, lengths of lists and counters.
    fn zeroed_ends(&self) -> [usize; 4] {
        let bins = NUM_BINS as usize;
        self.ends([bins * size_of::<u64>(), bins * size_of::<u32>(), size_of::<u32>(), 4])
    }

    /// Where arrays end that have so many bytes a row.
    fn ends(&self, row_bytes: [usize; 4]) -> [usize; 4] {
        let mut end = 0;
        row_bytes.map(|bytes| {
            end += (self.max_rows * bytes).next_multiple_of(16);
            end
        })
    }

    fn parts(&self, workspace: &SampleWorkspace) -> Parts {
        let [undecided, maxima, bests, _] = self.scratch_ends();
        let [counts, lens, counters, _] = self.zeroed_ends();
        let SampleWorkspace { scratch, zeroed } = workspace;
        let at = |base: DevicePtr<u8>, offset: usize| base.0 + offset as u64;
        Parts {
            lists: DevicePtr::new(at(*scratch, 0)),
            undecided: DevicePtr::new(at(*scratch, undecided)),
            maxima: DevicePtr::new(at(*scratch, maxima)),
            bests: DevicePtr::new(at(*scratch, bests)),
            masses: DevicePtr::new(at(*zeroed, 0)),
            counts: DevicePtr::new(at(*zeroed, counts)),
            lens: DevicePtr::new(at(*zeroed, lens)),
            counters: DevicePtr::new(at(*zeroed, counters)),
        }
    }

    /// Blocks of a row.
    fn blocks(&self) -> usize {
        self.vocab_size.div_ceil(BLOCK_COLUMNS as usize)
    }
}

/// The arrays of a [`SampleWorkspace`].
struct Parts {
    lists: DevicePtr<u64>,
    maxima: DevicePtr<u32>,
    bests: DevicePtr<u32>,
    undecided: DevicePtr<u32>,
    masses: DevicePtr<u64>,
    counts: DevicePtr<u32>,
    lens: DevicePtr<u32>,
    counters: DevicePtr<u32>,
}
