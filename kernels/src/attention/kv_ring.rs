//! A warp's ring of K and V tiles in shared memory, filled by cp.async.
//!
//! A slot holds a tile of K or of V in turn. A warp copies and reads its own keys of every tile
//! alone, so no barrier of the block is in the main loop: a warp waits for its copies, and the
//! other warps' loads stay in flight. Keys that the sequence does not have are zeros, as 0 x NaN
//! is NaN.

use super::tile::{
    AttentionElement, Cache, NUM_WARPS, PANEL_COLUMNS, Source, WarpTile, tile_offset, vec_elems,
};
use crate::kv_cache::{PAGE_SIZE, row_start};
use core::marker::PhantomData;
use core::ops::Range;
use cuda_std::prelude::*;

/// What decode reads: how a warp copies its keys of a tile of K or V to a slot of the ring, and the
/// tile that computes with them there.
pub(super) trait KvSource {
    /// The element type of Q and the output.
    type Element: AttentionElement;

    /// Computes with a slot.
    type Tile: WarpTile<Element = Self::Element>;

    /// Slots of the ring.
    const NUM_SLOTS: u32;

    /// Elements of a slot.
    const SLOT_ELEMS: u32;

    /// Elements of a slot before the first of a warp's keys.
    const WARP_ELEMS: u32;

    /// Whether a new token's K and V can be stored to a slot.
    const APPENDS: bool;

    /// Issues the copies of the warp's keys of the tile of K, or of V, that starts at key `first`
    /// in page `page`; those that are not in `keys` become zeros.
    ///
    /// # Safety
    /// 1. `slot` is one of the ring's that no thread reads; the page is in the pool of K, or of V.
    unsafe fn copy_tile(
        slot: Shared<Self::Element>,
        pool: Global<Self::Element>,
        is_v: bool,
        cache: &Cache,
        page: u32,
        first: u32,
        keys: &Range<u32>,
    );

    /// Rotates `rows` rows of Q in shared memory as K is rotated in the cache.
    ///
    /// # Safety
    /// 1. All threads of the block call this. A thread's own copies of Q are complete, and none
    ///    reads another's before a barrier.
    #[inline(always)]
    unsafe fn rotate_q(_smem_q: Shared<Self::Element>, _rows: u32) {}
}

/// K and V of elements that attention computes with: `4 * ROWS` query rows, heads of up to
/// `32 * PANELS` columns.
pub(super) struct Dense<E, const ROWS: usize, const PANELS: usize>(PhantomData<E>);

impl<E: AttentionElement, const ROWS: usize, const PANELS: usize> KvSource
    for Dense<E, ROWS, PANELS>
{
    type Element = E;
    type Tile = E::Decode<ROWS, PANELS>;

    const NUM_SLOTS: u32 = num_slots(PANELS);
    const SLOT_ELEMS: u32 = Self::Tile::BLOCK_N * Self::Tile::WIDTH;
    const WARP_ELEMS: u32 = Self::Tile::KEYS * PANEL_COLUMNS;
    const APPENDS: bool = Self::Tile::COLUMN_PARTS == 1;

    /// The lanes of a copy read whole lines: eight vectors of a row, or a row that is no multiple of
    /// eight.
    #[inline(always)]
    unsafe fn copy_tile(
        slot: Shared<E>,
        pool: Global<E>,
        _of_v: bool,
        cache: &Cache,
        page: u32,
        first: u32,
        keys: &Range<u32>,
    ) {
        const {
            let parts = Self::Tile::COLUMN_PARTS;
            assert!(Self::Tile::KEYS * NUM_WARPS == Self::Tile::BLOCK_N * parts);
            assert!(Self::Tile::KEYS * Self::ROW_LANES == warp::WARP_SIZE * Self::PASSES as u32);
        }
        let Cache { num_kv_heads, kv_head, head_dim, aligned } = *cache;
        let start = row_start(page, first % PAGE_SIZE, kv_head, num_kv_heads, head_dim);
        let (lane_id, parts) = (warp::lane_id(), Self::Tile::COLUMN_PARTS);
        let first_row = warp::warp_idx() / parts * Self::Tile::KEYS;
        let first_column = warp::warp_idx() % parts * (Self::Tile::WIDTH / parts);
        unroll!(pass in 0..Self::PASSES, {
            let vec = lane_id + warp::WARP_SIZE * pass as u32;
            let row = first_row + vec / Self::ROW_LANES;
            let column = first_column + vec % Self::ROW_LANES * vec_elems::<E>();
            let key = first + row;
            let exists = keys.start <= key && key < keys.end;
            let columns = if exists { head_dim.saturating_sub(column) } else { 0 };
            let gmem = pool.wrapping_add(start + (row * head_dim + column) as usize);
            let source = Source { gmem, row_stride: head_dim, rows: 1, head_dim, aligned };
            let slot = slot.offset(tile_offset::<E>(row, column, Self::Tile::BLOCK_N));
            unroll!(part in 0..Self::PARTS, {
                let column = Self::ROW_LANES * vec_elems::<E>() * part as u32;
                let columns = columns.saturating_sub(column);
                let slot = slot.offset(Self::Tile::BLOCK_N * column);
                // SAFETY: nothing is read where nothing exists; the row is inside the slot.
                unsafe { source.copy_vec_of_line(slot, column as usize, columns) };
            });
        });
    }
}

impl<E: AttentionElement, const ROWS: usize, const PANELS: usize> Dense<E, ROWS, PANELS> {
    /// 16-byte vectors of the warp's part of a row.
    const ROW_VECS: u32 =
        PANELS as u32 * PANEL_COLUMNS / vec_elems::<E>() / <Self as KvSource>::Tile::COLUMN_PARTS;

    /// Lanes that copy vectors next to each other of a row: of a whole line, or of a row that is
    /// no multiple of a line.
    const ROW_LANES: u32 = if Self::ROW_VECS.is_multiple_of(8) { 8 } else { Self::ROW_VECS };

    /// Copies of a lane in a row.
    const PARTS: usize = (Self::ROW_VECS / Self::ROW_LANES) as usize;

    /// Rows of a lane.
    const PASSES: usize =
        2 * PANELS / Self::PARTS / <Self as KvSource>::Tile::COLUMN_PARTS as usize;
}

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
pub(super) struct KvRing<S: KvSource> {
    smem: Shared<S::Element>,
    pools: [Global<S::Element>; 2],
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

impl<S: KvSource> KvRing<S> {
    /// The ring over `num_tiles` tiles, the last of which starts at key `last_tile`; only `keys`
    /// are copied. `pools` are those of K and V.
    ///
    /// # Safety
    /// 1. `smem` holds [`KvSource::NUM_SLOTS`] slots, which only this ring writes while it is used.
    /// 2. `table` is the sequence's row of the block table, and holds the pages of the tiles; the
    ///    pools hold them.
    #[inline(always)]
    pub unsafe fn new(
        smem: Shared<S::Element>,
        pools: [Global<S::Element>; 2],
        table: Global<u32>,
        cache: Cache,
        [last_tile, num_tiles]: [u32; 2],
        keys: Range<u32>,
    ) -> Self {
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
        if slot + 1 == S::NUM_SLOTS { 0 } else { slot + 1 }
    }

    /// Issues the copies of the next tile, if there is one, and closes their group.
    ///
    /// # Safety
    /// 1. The lanes of the warp have read the slot's last tile, and are converged.
    #[inline(always)]
    pub unsafe fn copy(&mut self) {
        if self.copies_left > 0 {
            let slot = self.smem.offset(self.copy_slot * S::SLOT_ELEMS);
            let [k_pool, v_pool] = self.pools;
            let pool = if self.copies_v { v_pool } else { k_pool };
            let Self { copies_v, copy_key, ref cache, ref keys, .. } = *self;
            // SAFETY: the promises of the caller and of `new`.
            unsafe {
                let page = self.pages.get(copy_key / PAGE_SIZE);
                S::copy_tile(slot, pool, copies_v, cache, page, copy_key, keys);
            }
            if self.copies_v {
                self.copy_key = self.copy_key.wrapping_sub(S::Tile::BLOCK_N);
                self.copies_left -= 1;
            }
            self.copies_v = !self.copies_v;
        }
        cp_async::commit();
        self.copy_slot = Self::next(self.copy_slot);
    }

    /// Waits for the next tile, refills the slot of the tile before it, and returns the tile at
    /// the warp's first key.
    ///
    /// # Safety
    /// 1. [`KvRing::copy`] was called `NUM_SLOTS - 1` times before the first tile.
    /// 2. The lanes are converged and have read the tile before. Warps that share keys all call
    ///    this.
    #[inline(always)]
    pub unsafe fn wait(&mut self) -> Shared<S::Element> {
        cp_async::wait(S::NUM_SLOTS - 2);
        match const { S::Tile::COLUMN_PARTS } {
            1 => warp::sync_warp(),
            // What the other warps of the same keys have copied, too.
            _ => thread::sync_threads(),
        }
        let slot = self.smem.offset(Self::next(self.copy_slot) * S::SLOT_ELEMS);
        // SAFETY: the slot before this one is read, by the caller's promise.
        unsafe { self.copy() };
        slot.offset(warp::warp_idx() / S::Tile::COLUMN_PARTS * S::WARP_ELEMS)
    }
}
