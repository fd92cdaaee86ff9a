//! The rows of x: A of the MMAs.

use crate::gemm::mainloop::stream::{
    Cursor, K_PER_LOAD, LOAD_WORDS, LaneRow, Load, TILE_K, TILE_MN, lane_group, lane_pair,
};
use cuda_std::prelude::*;

/// Elements of x that go with a k-tile of the weight, of `vecs` loads a load of the weight.
pub const fn tile_elems(vecs: usize) -> u32 {
    vecs as u32 * TILE_K
}

/// Row stride of x in shared memory, in elements: whole k-tiles and padding, so that the two rows
/// that a 16-byte load reads at a time are in different banks: half a k-tile where a lane reads
/// every fourth 16 bytes, one load where it reads two adjacent ones.
pub const fn row_stride(k: u32, vecs: usize) -> u32 {
    k.next_multiple_of(tile_elems(vecs)) + if vecs == 1 { TILE_K / 2 } else { K_PER_LOAD }
}

/// Bytes of shared memory for `num_rows` rows.
pub const fn shared_bytes(num_rows: usize, k: u32, vecs: usize) -> usize {
    num_rows.saturating_mul(row_stride(k, vecs) as usize * size_of::<u16>())
}

/// Where x is loaded from.
pub trait Input<const TILES_M: usize> {
    /// The lane's loads of each row of x, `offset` units ahead, the `vec`-th of the `vecs` that go
    /// with a load of the weight; zeros past the rows' ends.
    ///
    /// # Safety
    /// 1. That k-tile is inside k, see [`Cursor::is_inside`].
    unsafe fn load(&self, cursor: Cursor, offset: u32, vec: [usize; 2]) -> [Load; TILES_M];
}

/// Rows of x in global memory.
pub struct GlobalRows<const TILES_M: usize> {
    x: Global<u16>,
    rows: [LaneRow; TILES_M],
}

impl<const TILES_M: usize> GlobalRows<TILES_M> {
    /// The first `max_rows` rows of `x`, even those that are unwritten: loads that depend on the
    /// row count would wait for it. Rows past the last one load the last one.
    ///
    /// # Safety
    /// 1. `x` holds `max_rows` rows, not 0, of the cursors' `k` elements, 16-byte aligned.
    #[inline(always)]
    pub unsafe fn new(x: Global<u16>, stride: u32, max_rows: u32, vecs: usize) -> Self {
        let mut rows = [LaneRow::new(0, 0, 1); TILES_M];
        for tile in 0..TILES_M {
            let row = tile as u32 * TILE_MN + lane_group();
            rows[tile] = LaneRow::new(row.min(max_rows - 1), stride, vecs);
        }
        GlobalRows { x, rows }
    }
}

impl<const TILES_M: usize> Input<TILES_M> for GlobalRows<TILES_M> {
    #[inline(always)]
    unsafe fn load(&self, cursor: Cursor, offset: u32, [vec, vecs]: [usize; 2]) -> [Load; TILES_M] {
        let mut loads = [[0; LOAD_WORDS]; TILES_M];
        unroll!(tile in 0..TILES_M, {
            let words = cursor.words(self.x, self.rows[tile], offset, vecs);
            let words = words.wrapping_add(vec * LOAD_WORDS);
            // SAFETY: inside the row, by the condition.
            loads[tile] = unsafe { words.speculate_vec_if(0, cursor.has_load(offset)) };
        });
        loads
    }
}

/// Rows of x in shared memory, with zeros up to the end of the last k-tile.
pub struct SharedRows<const TILES_M: usize> {
    /// The lane's first load of each row.
    rows: [Shared<u16>; TILES_M],
}

impl<const TILES_M: usize> SharedRows<TILES_M> {
    /// The first `num_rows` rows of `k` elements at `x`, each of whose lanes has `vecs` loads a
    /// load of the weight; rows past the last one load the last one.
    #[inline(always)]
    pub fn new(x: Shared<u16>, k: u32, num_rows: u32, vecs: usize) -> Self {
        let mut rows = [x; TILES_M];
        for tile in 0..TILES_M {
            let row = (tile as u32 * TILE_MN + lane_group()).min(num_rows - 1);
            rows[tile] =
                x.offset(row * row_stride(k, vecs) + lane_pair() * vecs as u32 * K_PER_LOAD);
        }
        SharedRows { rows }
    }
}

impl<const TILES_M: usize> Input<TILES_M> for SharedRows<TILES_M> {
    #[inline(always)]
    unsafe fn load(&self, cursor: Cursor, offset: u32, [vec, vecs]: [usize; 2]) -> [Load; TILES_M] {
        let mut loads = [[0; LOAD_WORDS]; TILES_M];
        for tile in 0..TILES_M {
            let words = self.rows[tile].offset(cursor.unit(offset) * vecs as u32).cast::<u32>();
            // SAFETY: rows are padded to whole k-tiles.
            loads[tile] = unsafe { words.get_vec((vec * LOAD_WORDS) as u32) };
        }
        loads
    }
}
