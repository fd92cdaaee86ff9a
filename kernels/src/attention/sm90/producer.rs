//! The producer: one warp takes work items and loads their K by TMA, another one Q and V.

use super::items::WorkQueue;
use super::key_blocks::{Blocks, Cache, Keys};
use super::ring::Ring;
use super::stages::{StagedTile, Stages};
use super::tiles::PrefillTile;
use crate::attention::work::PrefillItem;
use crate::kv_cache::PAGE_SIZE;
use crate::tile::element::Operand16;
use crate::tile::smem::{PANEL_COLUMNS, SmemTile};
use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;

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
            let (tile, full_barrier) = (ring.tile().tile, ring.full_barrier());
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
        let (tile, full_barrier) = (ring.tile().tile, ring.full_barrier());
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

/// Loads a block of K or V into the ring's next stage, completing on its full barrier or, if there
/// is one, on `landed` instead.
///
/// # Safety
/// As [`KProducer::run`].
#[inline(always)]
#[track_caller]
unsafe fn load_block<E: Operand16, T: PrefillTile>(
    ring: &mut Ring<StagedTile<E>>,
    map: TensorMap,
    keys: &Keys,
    landed: Option<Mbarrier>,
) {
    ring.wait_empty();
    if warp::lane_id() == 0 {
        let tile: SmemTile<E> = ring.tile().tile;
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
