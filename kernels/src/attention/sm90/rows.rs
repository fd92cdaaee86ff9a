//! The queries of a consumer warpgroup, and the masks of their scores.

use super::tiles::WARPGROUP_ROWS;
use crate::attention::work::PrefillItem;
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;

/// The warpgroup's queries, and the keys that they see.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Position of the first query.
    position: u32,
    /// End of the item's keys.
    end: u32,
}

/// The first of a thread's two rows among those of its warpgroup; the other one is 8 further.
#[inline(always)]
pub(super) fn thread_row() -> u32 {
    warp::warp_idx() % 4 * 16 + warp::lane_id() / 4
}

impl Rows {
    #[inline(always)]
    pub fn new(item: &PrefillItem, warpgroup: u32) -> Self {
        Rows { position: item.first_position + warpgroup * WARPGROUP_ROWS, end: item.end_key }
    }

    /// End of the keys that query `row` sees.
    #[inline(always)]
    fn end(&self, row: u32) -> u32 {
        (self.position + row + 1).min(self.end)
    }

    /// Start of the keys that query `row` sees.
    #[inline(always)]
    fn start(&self, row: u32, window: u32) -> u32 {
        (self.position + row + 1).saturating_sub(window)
    }

    /// Sets the scores of keys that their query does not see to minus infinity. `first_key` is that
    /// of the block.
    #[inline(always)]
    pub fn mask<const REGS: usize>(
        &self,
        first_key: u32,
        window: u32,
        scores: &mut Accumulator<REGS>,
    ) {
        // From the thread's first column.
        let from = |key: u32| key as i32 - (first_key + warp::lane_id() % 4 * 2) as i32;
        let rows = [thread_row(), thread_row() + 8];
        if first_key + 2 * REGS as u32 > self.end(0) {
            let ends = rows.map(|row| from(self.end(row)));
            scores.for_each(|i, score| {
                if column(i) >= ends[i / 2 % 2] {
                    *score = f32::NEG_INFINITY;
                }
            });
        }
        if first_key < self.start(WARPGROUP_ROWS - 1, window) {
            let starts = rows.map(|row| from(self.start(row, window)));
            scores.for_each(|i, score| {
                if column(i) < starts[i / 2 % 2] {
                    *score = f32::NEG_INFINITY;
                }
            });
        }
    }
}

/// Column of value `i` of an accumulator, from the thread's first.
#[inline(always)]
const fn column(i: usize) -> i32 {
    (i / 4 * 8 + i % 2) as i32
}
