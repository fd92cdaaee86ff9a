//! The results of a block's warps, and their combination.

use super::super::combine::{PartialOut, VEC_ELEMS, combine_warps};
use super::super::tile::{NUM_THREADS, NUM_WARPS, WarpTile};
use cuda_std::prelude::*;

/// The results of a block's warps in shared memory: `[num_warps, block_rows, width]`, then largest
/// scores and sums `[num_warps, block_rows]` each. Warps that share keys are one.
#[derive(Clone, Copy)]
pub struct WarpResults {
    pub out: Shared<f32>,
    pub max: Shared<f32>,
    pub sum: Shared<f32>,
    pub num_warps: u32,
    pub block_rows: u32,
    pub width: u32,
}

impl WarpResults {
    #[inline(always)]
    pub fn new<T: WarpTile>(smem: Shared<f32>, block_rows: u32, width: u32) -> Self {
        let num_warps = const { NUM_WARPS / T::COLUMN_PARTS };
        let max = smem.offset(num_warps * block_rows * width);
        let sum = max.offset(num_warps * block_rows);
        WarpResults { out: smem, max, sum, num_warps, block_rows, width }
    }

    /// Stores the warp's result.
    ///
    /// # Safety
    /// 1. The memory holds the results, and no other thread accesses the warp's before a barrier.
    #[inline(always)]
    pub unsafe fn store<T: WarpTile>(&self, tile: &T) {
        let first_row = warp::warp_idx() / T::COLUMN_PARTS * self.block_rows;
        // SAFETY: the caller's promise.
        unsafe {
            tile.for_each_row(|row, max, total| {
                self.max.set(first_row + row, max);
                self.sum.set(first_row + row, total);
            });
            tile.for_each_pair(|row, column, pair| {
                self.out.set_vec((first_row + row) * self.width + column, pair);
            });
        }
    }

    /// The block's result of a row, from `column` on, with `sink`, see [`PartialOut::with_sink`].
    ///
    /// # Safety
    /// 1. All warps' results are stored.
    #[inline(always)]
    pub unsafe fn combine(&self, row: u32, column: u32, sink: f32) -> PartialOut {
        let row_of = |warp: u32| warp * self.block_rows + row;
        // SAFETY: the caller's promise.
        unsafe {
            let max_score = |warp| self.max.get(row_of(warp));
            combine_warps(self.num_warps, max_score, |warp| {
                let values = self.out.get_vec(row_of(warp) * self.width + column);
                PartialOut { max: max_score(warp), sum: self.sum.get(row_of(warp)), values }
            })
            .with_sink(sink)
        }
    }
}

/// Calls `f` with row and first column of each of this thread's vectors of `rows` rows of `width`
/// columns.
#[inline(always)]
pub fn for_each_vec(rows: u32, width: u32, f: impl Fn(u32, u32)) {
    let mut i = thread::thread_idx_x() * VEC_ELEMS;
    while i < rows * width {
        f(i / width, i % width);
        i += NUM_THREADS * VEC_ELEMS;
    }
}
