//! Changes of single logits before a token is chosen: biases and penalties.

use super::{BLOCK_COLUMNS, NUM_THREADS, ROW_SAMPLING_LEN};
use cuda_std::prelude::*;

/// `u32` elements of a [`LogitEdit`] on the device.
pub const LOGIT_EDIT_LEN: usize = 4;

/// Element of a row's sampling that holds the end of its edits; they begin where those of the row before it end.
pub(super) const EDITS_END: usize = 7;

/// What happens to the logit of one token: `bias` is added, a positive result is divided by `divisor` and another one
/// multiplied with it, and `penalty` is subtracted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitEdit {
    /// The token.
    pub token: u32,
    /// Logit bias that the request gives the token.
    pub bias: f32,
    /// The repetition penalty, 1 for none (arXiv:1909.05858).
    pub divisor: f32,
    /// Presence and frequency penalties.
    pub penalty: f32,
}

impl LogitEdit {
    /// The logit after it. A NaN or a positive infinity stays: the row is broken.
    #[inline(always)]
    #[must_use]
    pub fn apply(&self, logit: f32) -> f32 {
        if logit.is_nan() || logit == f32::INFINITY {
            return logit;
        }
        let biased = logit + self.bias;
        let repeated = if biased > 0.0 {
            let divided = biased / self.divisor;
            if divided < f32::MAX { divided } else { f32::MAX }
        } else {
            biased * self.divisor
        };
        repeated - self.penalty
    }

    /// As the device has it.
    #[must_use]
    pub fn words(&self) -> [u32; LOGIT_EDIT_LEN] {
        [self.token, self.bias.to_bits(), self.divisor.to_bits(), self.penalty.to_bits()]
    }
}

/// The edits of a row.
pub(super) struct RowEdits {
    edits: Global<u32>,
    start: u32,
    end: u32,
}

impl RowEdits {
    /// Edits of `row`.
    ///
    /// # Safety
    /// 1. `sampling` holds `row + 1` rows of `ROW_SAMPLING_LEN`; `edits` is at a multiple of 16 bytes and holds all of
    ///    their edits.
    #[inline(always)]
    pub unsafe fn load(sampling: Global<u32>, edits: Global<u32>, row: usize) -> Self {
        let end_of = |row: usize| row * ROW_SAMPLING_LEN + EDITS_END;
        // SAFETY: the caller's promise.
        let (start, end) = unsafe {
            let start = if row > 0 { sampling.get(end_of(row - 1)) } else { 0 };
            (start, sampling.get(end_of(row)))
        };
        RowEdits { edits, start, end }
    }

    /// Changes the row's logits in the columns of `block`, for all threads of the block.
    ///
    /// # Safety
    /// 1. All threads of the block call this; `logits` holds `vocab_size` elements, and no other block touches those of
    ///    these columns.
    /// 2. No token has two edits.
    #[inline(always)]
    pub unsafe fn apply(&self, logits: GlobalMut<f32>, vocab_size: u32, block: u32) {
        if self.start == self.end {
            return;
        }
        let mut index = self.start + thread::thread_idx_x();
        while index < self.end {
            // SAFETY: the edit is one of the row's; its token is inside by the check.
            unsafe {
                let words = self.edits.get_vec::<LOGIT_EDIT_LEN>(index as usize * LOGIT_EDIT_LEN);
                let [token, bias, divisor, penalty] = words;
                if token / BLOCK_COLUMNS == block && token < vocab_size {
                    let [bias, divisor, penalty] = [bias, divisor, penalty].map(f32::from_bits);
                    let edit = LogitEdit { token, bias, divisor, penalty };
                    logits.set(token as usize, edit.apply(logits.get(token as usize)));
                }
            }
            index += NUM_THREADS;
        }
        // The block's other threads read them.
        thread::sync_threads();
    }
}
