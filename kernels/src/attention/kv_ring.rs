//! A warp's ring of K and V tiles in shared memory, filled by cp.async.
//!
//! A slot holds a tile of K or of V in turn. A warp copies and reads its own keys of every tile
//! alone, so no barrier of the block is in the main loop: a warp waits for its copies, and the
//! other warps' loads stay in flight. Keys that the sequence does not have are zeros, as 0 x NaN
//! is NaN.

use super::tile::{Cache, NUM_WARPS, PANEL_COLUMNS, Source, WarpTile, tile_offset, vec_elems};
use crate::kv_cache::{PAGE_SIZE, row_start};
use core::ops::Range;
use cuda_std::prelude::*;

/// Slots of the ring for heads of up to `32 * panels` columns: as many bytes in flight as leave
/// room for two blocks an SM, for three up to 96 columns (`docs/measurements/attention_decode.md`).
pub(super) const fn num_slots(panels: usize) -> u32 {
    match panels {
        0..=2 => 8,
        3 | 4 => 5,
        _ => 3,
    }
}

/// Page ids of a sequence: of 32 consecutive pages, one a lane.
struct PageIds {
    table: Global<u32>,
    first: u32,
    id: u32,
}

impl PageIds {
    /// Loads the ids of `page` and of up to 31 pages before it.
    ///
    /// # Safety
    /// 1. `table` holds the pages.
    #[inline(always)]
    unsafe fn load(table: Global<u32>, page: u32) -> Self {
        let first = page.saturating_sub(warp::WARP_SIZE - 1);
        let lane_page = (first + warp::lane_id()).min(page);
        // SAFETY: the caller's promise.
        PageIds { table, first, id: unsafe { table.get(lane_page as usize) } }
    }

    /// The id of `page`, the last that was asked for or one before it.
    ///
    /// # Safety
    /// As [`PageIds::load`].
    #[inline(always)]
    unsafe fn get(&mut self, page: u32) -> u32 {
        if page < self.first {
            // SAFETY: the caller's promise.
            *self = unsafe { PageIds::load(self.table, page) };
        }
        warp::shuffle_idx(self.id, page - self.first)
    }
}

/// The ring, over the tiles of a range of keys, from the last to the first.
pub(super) struct KvRing<T: WarpTile, const PANELS: usize> {
    smem: Shared<T::Element>,
    pools: [Global<T::Element>; 2],
    cache: Cache,
    pages: PageIds,
    /// Keys that are copied; the others are zeros.
    keys: Range<u32>,
    /// First key of the tile that is copied next.
    copy_key: u32,
    /// Tiles of K left to copy.
    copies_left: u32,
    /// Whether the tile of V at `copy_key` is copied next, after that of K.
    copies_v: bool,
    /// The slot that is filled next, the one before that which is read next.
    copy_slot: u32,
}

impl<T: WarpTile, const PANELS: usize> KvRing<T, PANELS> {
    pub const NUM_SLOTS: u32 = num_slots(PANELS);

    /// Elements of a slot.
    pub const SLOT_ELEMS: u32 = T::BLOCK_N * T::WIDTH;

    /// The ring over `num_tiles` tiles, the last of which starts at key `last_tile`; only `keys`
    /// are copied. `pools` are those of K and V.
    ///
    /// # Safety
    /// 1. `smem` holds [`KvRing::NUM_SLOTS`] slots, which only this ring writes while it is used.
    /// 2. `table` is the sequence's row of the block table, and holds the pages of the tiles; the
    ///    pools hold them.
    #[inline(always)]
    pub unsafe fn new(
        smem: Shared<T::Element>,
        pools: [Global<T::Element>; 2],
        table: Global<u32>,
        cache: Cache,
        [last_tile, num_tiles]: [u32; 2],
        keys: Range<u32>,
    ) -> Self {
        const {
            assert!(T::KEYS * NUM_WARPS == T::BLOCK_N);
            assert!(T::KEYS * PANEL_COLUMNS == 2 * warp::WARP_SIZE * vec_elems::<T::Element>());
        }
        // SAFETY: the caller's promise.
        let pages = unsafe { PageIds::load(table, last_tile / PAGE_SIZE) };
        KvRing {
            smem,
            pools,
            cache,
            pages,
            keys,
            copy_key: last_tile,
            copies_left: num_tiles,
            copies_v: false,
            copy_slot: 0,
        }
    }

    #[inline(always)]
    fn next(slot: u32) -> u32 {
        if slot + 1 == Self::NUM_SLOTS { 0 } else { slot + 1 }
    }

    /// Issues the copies of the next tile, if there is one, and closes their group.
    ///
    /// # Safety
    /// 1. The lanes of the warp have read the slot's last tile, and are converged.
    #[inline(always)]
    pub unsafe fn copy(&mut self) {
        if self.copies_left > 0 {
            let slot = self.smem.offset(self.copy_slot * Self::SLOT_ELEMS);
            // SAFETY: the promises of the caller and of `new`.
            unsafe {
                let page = self.pages.get(self.copy_key / PAGE_SIZE);
                self.copy_tile(slot, page);
            }
            if self.copies_v {
                self.copy_key = self.copy_key.wrapping_sub(T::BLOCK_N);
                self.copies_left -= 1;
            }
            self.copies_v = !self.copies_v;
        }
        cp_async::commit();
        self.copy_slot = Self::next(self.copy_slot);
    }

    /// Issues the copies of the warp's keys of a tile in page `page`: the lanes of a copy read whole
    /// lines, vectors next to each other of one row after the other.
    ///
    /// # Safety
    /// As [`KvRing::copy`].
    #[inline(always)]
    unsafe fn copy_tile(&self, slot: Shared<T::Element>, page: u32) {
        let Cache { num_kv_heads, kv_head, head_dim, aligned } = self.cache;
        let row_vecs = const { T::WIDTH / vec_elems::<T::Element>() };
        let [k_pool, v_pool] = self.pools;
        let pool = if self.copies_v { v_pool } else { k_pool };
        let start = row_start(page, self.copy_key % PAGE_SIZE, kv_head, num_kv_heads, head_dim);
        let (lane_id, first_row) = (warp::lane_id(), warp::warp_idx() * T::KEYS);
        unroll!(pass in 0..2 * PANELS, {
            let vec = lane_id + warp::WARP_SIZE * pass as u32;
            let (row, column) =
                (first_row + vec / row_vecs, vec % row_vecs * vec_elems::<T::Element>());
            let key = self.copy_key + row;
            let exists = self.keys.start <= key && key < self.keys.end;
            let columns = if exists { head_dim.saturating_sub(column) } else { 0 };
            let gmem = pool.wrapping_add(start + (row * head_dim + column) as usize);
            let slot = slot.offset(tile_offset::<T::Element>(row, column, T::BLOCK_N));
            // SAFETY: nothing is read where nothing exists; the row is inside the slot.
            unsafe {
                if aligned {
                    let (to, from) = (slot.cast::<f32>(), gmem.cast());
                    cp_async::copy_vec_of_line::<4, f32>(to, 0, from, 0, columns > 0);
                } else {
                    let source = Source { gmem, row_stride: head_dim, rows: 1, head_dim, aligned };
                    source.copy_vec(slot, 0, columns);
                }
            }
        });
    }

    /// Waits for the next tile, refills the slot of the tile before it, and returns the tile at
    /// the warp's first key.
    ///
    /// # Safety
    /// 1. [`KvRing::copy`] was called `NUM_SLOTS - 1` times before the first tile.
    /// 2. The lanes are converged and have read the tile before.
    #[inline(always)]
    pub unsafe fn wait(&mut self) -> Shared<T::Element> {
        cp_async::wait(Self::NUM_SLOTS - 2);
        warp::sync_warp();
        let slot = self.smem.offset(Self::next(self.copy_slot) * Self::SLOT_ELEMS);
        // SAFETY: the slot before this one is read, by the caller's promise.
        unsafe { self.copy() };
        slot.offset(warp::warp_idx() * T::KEYS * PANEL_COLUMNS)
    }
}
