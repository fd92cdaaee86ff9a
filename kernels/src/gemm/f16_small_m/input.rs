//! The rows of x, as the lanes take them.

use super::mainloop::{Cursor, LINE_K, LOAD_K, LOAD_WORDS, LaneRow, Load, TILE};
use super::mainloop::{lane_group, lane_pair};
use cuda_std::prelude::*;

/// Elements from a row in shared memory to the next: whole lines, and half a line more, for the two
/// rows that 16-byte loads read at once to be in banks of their own.
pub const fn row_stride(k: u32) -> u32 {
    k.next_multiple_of(LINE_K) + LINE_K / 2
}

/// Shared memory of `num_rows` rows.
pub const fn shared_bytes(num_rows: usize, k: u32) -> usize {
    num_rows.saturating_mul(row_stride(k) as usize * size_of::<u16>())
}

/// Where the rows of x are.
pub trait Input<const TILES_M: usize> {
    /// The lane's words of each row of x, `offset` elements on, zero past the rows' ends.
    ///
    /// # Safety
    /// 1. The warp has products there, by the cursor.
    unsafe fn load(&self, cursor: Cursor, offset: u32) -> [Load; TILES_M];
}

/// Rows of x in global memory.
pub struct GlobalRows<const TILES_M: usize> {
    x: Global<u16>,
    rows: [LaneRow; TILES_M],
}

impl<const TILES_M: usize> GlobalRows<TILES_M> {
    /// The first `max_rows` rows of `x`, written or not: the loads of those that are would wait for the
    /// count of them. Those past the last one are the last one.
    ///
    /// # Safety
    /// 1. `x` holds as many rows of the cursors' `k` elements, at multiples of 16 bytes, and
    ///    `max_rows` is not 0.
    #[inline(always)]
    pub unsafe fn new(x: Global<u16>, stride: u32, max_rows: u32) -> Self {
        let mut rows = [LaneRow::new(0, 0); TILES_M];
        for tile in 0..TILES_M {
            let row = tile as u32 * TILE + lane_group();
            rows[tile] = LaneRow::new(row.min(max_rows - 1), stride);
        }
        GlobalRows { x, rows }
    }
}

impl<const TILES_M: usize> Input<TILES_M> for GlobalRows<TILES_M> {
    #[inline(always)]
    unsafe fn load(&self, cursor: Cursor, offset: u32) -> [Load; TILES_M] {
        let mut loads = [[0; LOAD_WORDS]; TILES_M];
        unroll!(tile in 0..TILES_M, {
            let words = cursor.words(self.x, self.rows[tile], offset);
            // SAFETY: inside the row, by the condition.
            loads[tile] = unsafe { words.speculate_vec_if(0, cursor.has_load(offset)) };
        });
        loads
    }
}

/// Rows of x in shared memory, zeros up to the end of k's last line.
pub struct SharedRows<const TILES_M: usize> {
    /// Where the lane's loads of each row start.
    rows: [Shared<u16>; TILES_M],
}

impl<const TILES_M: usize> SharedRows<TILES_M> {
    /// The first `num_rows` rows of `k` elements at `x`; those past the last one are the last one.
    #[inline(always)]
    pub fn new(x: Shared<u16>, k: u32, num_rows: u32) -> Self {
        let mut rows = [x; TILES_M];
        for tile in 0..TILES_M {
            let row = (tile as u32 * TILE + lane_group()).min(num_rows - 1);
            rows[tile] = x.offset(row * row_stride(k) + lane_pair() * LOAD_K);
        }
        SharedRows { rows }
    }
}

impl<const TILES_M: usize> Input<TILES_M> for SharedRows<TILES_M> {
    #[inline(always)]
    unsafe fn load(&self, cursor: Cursor, offset: u32) -> [Load; TILES_M] {
        let mut loads = [[0; LOAD_WORDS]; TILES_M];
        for tile in 0..TILES_M {
            let words = self.rows[tile].offset(cursor.element(offset)).cast::<u32>();
            // SAFETY: products are in k's lines.
            loads[tile] = unsafe { words.get_vec(0) };
        }
        loads
    }
}
