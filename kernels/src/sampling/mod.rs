//! Sampling: `out[r]` is a token drawn from row `r` of the logits, as the row's [`RowSampling`]
//! says. Before that each [`LogitEdit`] of the row changes a logit of it.
//!
//! A token's *distance* is `d = max - logit`, in f32. Tokens are in order of their distance, equal
//! ones in that of their ids. Its *mass* is `exp(-d)` in units of `2^-40`, an integer, so that sums
//! have the same bits in any order. What can be drawn are the first `top_k` tokens; of these the
//! fewest whose mass together is at least `top_p` of the mass of them all; of these those with
//! `exp(-d) >= min_p`. The draw is an exponential race: the token with the least
//! `d / temperature + ln E`, where the `E` are exponential random numbers that depend on the seed,
//! the position in the answer and the token alone ([`noise`]). At temperature 0 it is the first
//! token. A row with a NaN or a positive infinity, or of negative infinities alone, has no token:
//! `out[r]` says so instead. What the next step reads is there too, in `drawn[r]`: the token, 0 if
//! there is none.
//!
//! Shapes    logits `[num_rows, vocab_size]` f32 with a row stride; sampling `[num_rows, 8]` u32;
//!           edits `[num_edits, 4]` u32, those of a row side by side; out `[num_rows]` u32.
//! Launch    three launches: [`maximum`], which edits, [`histogram`] for rows with top-k or top-p, [`draw`]. Grid
//!           `(max_rows, vocab_size / BLOCK_COLUMNS, 1)`, block `(NUM_THREADS, 1, 1)`; a block issues
//!           all its loads at once; the last block of a row to finish combines their results.
//! Numerics  independent of the order of blocks, of the other rows and of their number.
//! Bound     memory: `4 * num_rows * vocab_size` bytes a launch; from the L2 for few rows.
//! Source    Gumbel-max in the form of an exponential race; top-p arXiv:1904.09751, min-p
//!           arXiv:2407.01082.

mod best;
pub mod draw;
mod edit;
pub mod histogram;
#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
pub mod maximum;
pub mod noise;
mod row;
mod tally;

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{NextToken, RowSampling, Sample, SampleWorkspace};

pub use edit::{LOGIT_EDIT_LEN, LogitEdit};

use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 1024;

/// Warps of a block: one for each lane of the warp that reduces their results.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;
const _: () = assert!(NUM_WARPS == warp::WARP_SIZE);

/// Logits of a thread, whose loads are in flight together.
const UNROLL: u32 = 8;

/// Columns of a block.
const BLOCK_COLUMNS: u32 = UNROLL * NUM_THREADS;

/// `u32` elements of a [`RowSampling`] on the device.
pub const ROW_SAMPLING_LEN: usize = 8;

/// `log2(e)`.
const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// The mass of the token with the largest logit.
pub const LARGEST_MASS: f32 = (1_u64 << 40) as f32;

/// The mass of a token at a distance.
#[inline(always)]
fn mass(distance: f32) -> u64 {
    (math::exp2_approx(-distance * LOG2_E) * LARGEST_MASS) as u64
}

/// The mass that top-p keeps of `mass`, rounded down, but at least 1: a token is kept if those before
/// it have less.
#[inline(always)]
#[must_use]
pub fn wanted_mass(top_p: f32, mass: u64) -> u64 {
    let share = (top_p * (1_u64 << 32) as f32) as u64;
    let wanted = (mass >> 32) * share + (((mass & 0xffff_ffff) * share) >> 32);
    if wanted > 0 { wanted } else { 1 }
}
