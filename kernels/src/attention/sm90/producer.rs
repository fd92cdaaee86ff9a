//! The producer: one warp takes work items and loads their K by TMA, another one Q and V.

use super::items::WorkQueue;
use super::stages::{Ring, Stages};
use super::tiles::PrefillTile;
use crate::attention::work::PrefillItem;
use crate::kv_cache::PAGE_SIZE;
use crate::tile::element::Operand16;
use crate::tile::smem::{PANEL_COLUMNS, SmemTile};
use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;

/// What both warps of the producer load from.
#[derive(Clone, Copy)]
pub(super) struct Cache {
    pub block_table: Global<u32>,
    pub max_pages_per_seq: u32,
    pub num_kv_heads: u32,
    /// Query heads that share a KV head.
    pub group: u32,
}

/// The warp that takes work items and loads K.
pub(super) struct KProducer<E> {
    pub stages: Stages<E>,
    /// Boxes of a page's positions of one KV head, and 64 columns.
    pub k: TensorMap,
    pub cache: Cache,
}

/// The warp that loads Q and V.
pub(super) struct QvProducer<E> {
    pub stages: Stages<E>,
    /// Boxes of a tile's tokens, one head and 64 columns.
    pub q: TensorMap,
    /// Boxes as of K.
    pub v: TensorMap,
    pub cache: Cache,
    /// Parity of the tail barrier.
    pub tail_phase: u32,
}

impl<E: Operand16> KProducer<E> {
    /// Hands the block's work items to the other warps, and loads their blocks of K, from last to
    /// first.
    ///
    /// # Safety
    /// 1. All lanes of the warp call this.
    /// 2. The maps and the block table cover what the items of the queue refer to.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn run<T: PrefillTile>(mut self, mut queue: WorkQueue) {
        // SAFETY: the caller's promise.
        unsafe {
            while let Some(item) = queue.take() {
                self.stages.items.put(Some(&item));
                let mut blocks = Blocks::new::<T>(&self.cache, &item);
                while let Some(keys) = blocks.next::<T>() {
                    load_block::<E, T>(&mut self.stages.k, self.k, &keys, None);
                }
            }
            self.stages.items.put(None);
            queue.finish();
        }
    }
}

impl<E: Operand16> QvProducer<E> {
    /// Loads Q of the block's work items, and their blocks of V, from last to first.
    ///
    /// # Safety
    /// As [`KProducer::run`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn run<T: PrefillTile>(mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            while let Some(item) = self.stages.items.get() {
                let mut blocks = Blocks::new::<T>(&self.cache, &item);
                self.load_q::<T>(&item);
                self.stages.items.release();
                while let Some(keys) = blocks.next::<T>() {
                    if keys.num_keys == T::BLOCK_N {
                        load_block::<E, T>(&mut self.stages.v, self.v, &keys, None);
                    } else {
                        self.load_tail::<T>(&keys);
                    }
                }
            }
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn load_q<T: PrefillTile>(&mut self, item: &PrefillItem) {
        let ring = &mut self.stages.q;
        ring.wait_empty();
        if warp::lane_id() == 0 {
            let (tile, full_barrier) = (ring.tile(), ring.full_barrier());
            // SAFETY: the caller's promise; the stage is empty.
            unsafe {
                full_barrier.arrive_expect_tx(T::Q_BYTES);
                for panel in 0..T::WIDTH.div_ceil(PANEL_COLUMNS) {
                    let column = panel * PANEL_COLUMNS;
                    let coords = [column, item.head, item.first_token].map(|i| i as i32);
                    let smem = tile.panel(panel, 0);
                    let hint = CacheHint::EvictFirst;
                    bulk::tensor_load(smem, self.q, coords, full_barrier, hint);
                }
            }
        }
        self.stages.q.advance();
    }

    /// Loads a block with fewer keys, and zeroes the rows past the last one: a weight of 0 times
    /// what an unused row holds may be a NaN.
    #[inline(always)]
    #[track_caller]
    unsafe fn load_tail<T: PrefillTile>(&mut self, keys: &Keys) {
        let ring = &mut self.stages.v;
        let (tile, full_barrier) = (ring.tile(), ring.full_barrier());
        let landed = self.stages.tail_barrier;
        // SAFETY: the caller's promise; the rows are zeroed between the copy and its handing over.
        unsafe {
            load_block::<E, T>(ring, self.v, keys, Some(landed));
            landed.wait(self.tail_phase);
            self.tail_phase ^= 1;
            tile.zero_rows(keys.num_keys, T::WIDTH);
        }
        fence::proxy_async_shared();
        warp::sync_warp();
        if warp::lane_id() == 0 {
            full_barrier.arrive();
        }
    }
}

/// Most pages of a block of keys.
const MAX_PAGES: usize = 4;

/// A block of keys of a work item.
struct Keys {
    /// First row of each page, in the pools.
    rows: [u32; MAX_PAGES],
    /// Keys that exist.
    num_keys: u32,
}

/// The blocks of keys of a work item, from last to first. A lane holds one of 32 adjacent entries
/// of the sequence's row of the block table.
struct Blocks {
    table: Global<u32>,
    /// Which 32 entries the lanes hold.
    group: u32,
    page: u32,
    kv_head: u32,
    num_kv_heads: u32,
    /// Blocks `first_block .. block` are left; block 0 begins with the sequence's first key.
    first_block: u32,
    block: u32,
    end_key: u32,
}

impl Blocks {
    /// # Safety
    /// 1. The block table covers the item.
    #[inline(always)]
    unsafe fn new<T: PrefillTile>(cache: &Cache, item: &PrefillItem) -> Self {
        let &Cache { block_table, max_pages_per_seq, num_kv_heads, group } = cache;
        let row = item.seq as usize * max_pages_per_seq as usize;
        Blocks {
            // SAFETY: the caller's promise.
            table: unsafe { block_table.add(row) },
            group: u32::MAX,
            page: 0,
            kv_head: item.head / group,
            num_kv_heads,
            first_block: item.first_key / T::BLOCK_N,
            block: item.end_key.div_ceil(T::BLOCK_N),
            end_key: item.end_key,
        }
    }

    /// # Safety
    /// 1. All lanes of the warp call this.
    #[inline(always)]
    unsafe fn next<T: PrefillTile>(&mut self) -> Option<Keys> {
        const { assert!(T::BLOCK_PAGES <= MAX_PAGES as u32) };
        if self.block <= self.first_block {
            return None;
        }
        self.block -= 1;
        let first_key = self.block * T::BLOCK_N;
        let mut rows = [0; MAX_PAGES];
        for page_idx in 0..T::BLOCK_PAGES {
            // SAFETY: the table covers the item.
            let page = unsafe { self.page(first_key / PAGE_SIZE + page_idx) };
            rows[page_idx as usize] = (page * self.num_kv_heads + self.kv_head) * PAGE_SIZE;
        }
        Some(Keys { rows, num_keys: (self.end_key - first_key).min(T::BLOCK_N) })
    }

    /// Entry `index` of the table, or the last one with a key.
    ///
    /// # Safety
    /// As [`Blocks::next`].
    #[inline(always)]
    unsafe fn page(&mut self, index: u32) -> u32 {
        let group = index / warp::WARP_SIZE;
        if group != self.group {
            self.group = group;
            let own = group * warp::WARP_SIZE + warp::lane_id();
            let last = (self.end_key - 1) / PAGE_SIZE;
            // SAFETY: inside, by the minimum.
            self.page = unsafe { self.table.get(own.min(last) as usize) };
        }
        warp::shuffle_idx(self.page, index % warp::WARP_SIZE)
    }
}

/// Loads a block of K or V into the ring's next stage, completing on its full barrier or, if there
/// is one, on `landed` instead.
///
/// # Safety
/// As [`KProducer::run`].
#[inline(always)]
#[track_caller]
unsafe fn load_block<E: Operand16, T: PrefillTile>(
    ring: &mut Ring<E>,
    map: TensorMap,
    keys: &Keys,
    landed: Option<Mbarrier>,
) {
    ring.wait_empty();
    if warp::lane_id() == 0 {
        let tile: SmemTile<E> = ring.tile();
        let barrier = landed.unwrap_or(ring.full_barrier());
        let num_pages = keys.num_keys.div_ceil(PAGE_SIZE);
        barrier.arrive_expect_tx(num_pages * const { T::KV_BYTES / T::BLOCK_PAGES });
        for page_idx in 0..T::BLOCK_PAGES {
            if page_idx < num_pages {
                let row = keys.rows[page_idx as usize];
                for panel in 0..T::WIDTH.div_ceil(PANEL_COLUMNS) {
                    let coords = [(panel * PANEL_COLUMNS) as i32, row as i32];
                    let smem = tile.panel(panel, page_idx * PAGE_SIZE);
                    let hint = CacheHint::EvictLast;
                    // SAFETY: the caller's promise; the stage is empty.
                    unsafe { bulk::tensor_load(smem, map, coords, barrier, hint) };
                }
            }
        }
    }
    ring.advance();
}
