//! The producer: one warp takes work items and loads their K by TMA, another one Q and V.

use super::super::items::WorkQueue;
use super::super::key_blocks::{Blocks, Cache, Keys};
use super::convert::{keep, keys_of_word};
use super::stages::Stages;
use super::tiles::Fp8Tile;
use crate::attention::work::{Part, PrefillItem};
use crate::kv_cache::PAGE_SIZE;
use crate::tile::smem::swizzle;
use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;

/// The warp that takes work items and loads K.
pub(super) struct KProducer {
    pub stages: Stages,
    /// Boxes of a page's positions of one KV head, and a panel's columns.
    pub k: TensorMap,
    pub cache: Cache,
}

/// The warp that loads Q and V.
pub(super) struct QvProducer {
    pub stages: Stages,
    /// Boxes of a tile's tokens, one head and a panel's columns.
    pub q: TensorMap,
    /// Boxes of one KV head of a page.
    pub v: TensorMap,
    pub cache: Cache,
    /// Parity of the tail barrier.
    pub tail_phase: u32,
}

impl KProducer {
    /// Hands the block's work items to the other warps, and loads their blocks of K, from last to
    /// first.
    ///
    /// # Safety
    /// 1. All lanes of the warp call this.
    /// 2. The maps and the block table cover what the items of the queue refer to.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn run<T: Fp8Tile>(mut self, mut queue: WorkQueue) {
        // SAFETY: the caller's promise.
        unsafe {
            while let Some(item) = queue.take() {
                // No keys are split: so the part takes no register.
                let item = PrefillItem { part: Part::WHOLE, ..item };
                self.stages.items.put(Some(&item));
                let mut blocks = Blocks::new::<T>(&self.cache, &item);
                while let Some(keys) = blocks.next::<T>() {
                    self.load_k::<T>(&keys);
                }
            }
            self.stages.items.put(None);
            queue.finish();
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn load_k<T: Fp8Tile>(&mut self, keys: &Keys) {
        let ring = &mut self.stages.k;
        ring.wait_empty();
        if warp::lane_id() == 0 {
            let (tile, barrier) = (ring.tile().start, ring.full_barrier());
            let num_pages = keys.num_keys.div_ceil(PAGE_SIZE);
            barrier.arrive_expect_tx(num_pages * const { T::K_BYTES / T::BLOCK_PAGES });
            for page_idx in 0..T::BLOCK_PAGES {
                if page_idx < num_pages {
                    for panel in 0..T::NUM_PANELS {
                        let coords = [panel * T::PANEL, keys.rows[page_idx as usize]];
                        let row = panel * T::BLOCK_N + page_idx * PAGE_SIZE;
                        let smem = tile.offset(row * T::PANEL);
                        let hint = CacheHint::EvictLast;
                        // SAFETY: the caller's promise; the stage is empty.
                        unsafe {
                            let coords = coords.map(|i| i as i32);
                            bulk::tensor_load(smem, self.k, coords, barrier, hint);
                        }
                    }
                }
            }
        }
        ring.advance();
    }
}

impl QvProducer {
    /// Loads Q of the block's work items, and their blocks of V, from last to first.
    ///
    /// # Safety
    /// As [`KProducer::run`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn run<T: Fp8Tile>(mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            while let Some(item) = self.stages.items.get() {
                let mut blocks = Blocks::new::<T>(&self.cache, &item);
                self.load_q::<T>(&item);
                self.stages.items.release();
                while let Some(keys) = blocks.next::<T>() {
                    // The warps that convert V zero its end.
                    if T::IS_CONVERTED || keys.num_keys == T::BLOCK_N {
                        self.load_v::<T>(&keys, None);
                    } else {
                        self.load_tail::<T>(&keys);
                    }
                }
            }
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn load_q<T: Fp8Tile>(&mut self, item: &PrefillItem) {
        let ring = &mut self.stages.q;
        ring.wait_empty();
        if warp::lane_id() == 0 {
            let (tile, full_barrier) = (ring.tile().start, ring.full_barrier());
            // SAFETY: the caller's promise; the stage is empty.
            unsafe {
                full_barrier.arrive_expect_tx(T::Q_BYTES);
                for panel in 0..T::NUM_PANELS {
                    let column = panel * T::PANEL;
                    let coords = [column, item.head, item.first_token].map(|i| i as i32);
                    let smem = tile.offset(column * T::BLOCK_M);
                    bulk::tensor_load(smem, self.q, coords, full_barrier, CacheHint::EvictFirst);
                }
            }
        }
        ring.advance();
    }

    /// Loads a block of V into the next stage, completing on its full barrier or, if there is one,
    /// on `landed` instead.
    #[inline(always)]
    #[track_caller]
    unsafe fn load_v<T: Fp8Tile>(&mut self, keys: &Keys, landed: Option<Mbarrier>) {
        let ring = if T::IS_CONVERTED { &mut self.stages.staging } else { &mut self.stages.v };
        ring.wait_empty();
        // A stage may be filled and released before a lane that is late has waited.
        warp::sync_warp();
        if warp::lane_id() == 0 {
            let tile = ring.tile().start;
            let barrier = landed.unwrap_or(ring.full_barrier());
            let num_pages = keys.num_keys.div_ceil(PAGE_SIZE);
            let page_bytes = const { T::WIDTH * PAGE_SIZE };
            barrier.arrive_expect_tx(num_pages * page_bytes);
            for page_idx in 0..T::BLOCK_PAGES {
                if page_idx < num_pages {
                    let page = keys.rows[page_idx as usize] / PAGE_SIZE;
                    let (smem, hint) = (tile.offset(page_idx * page_bytes), CacheHint::EvictLast);
                    // SAFETY: the caller's promise; the stage is empty.
                    unsafe {
                        bulk::tensor_load(smem, self.v, [0, 0, page as i32], barrier, hint);
                    }
                }
            }
        }
        ring.advance();
    }

    /// Loads a block with fewer keys, and zeroes V past the last one: a weight of 0 times what an
    /// unused position holds may be a NaN.
    #[inline(always)]
    #[track_caller]
    unsafe fn load_tail<T: Fp8Tile>(&mut self, keys: &Keys) {
        let ring = &self.stages.v;
        let (tile, full_barrier) = (ring.tile().start, ring.full_barrier());
        let landed = self.stages.tail_barrier;
        // SAFETY: the caller's promise; V is zeroed between the copy and its handing over.
        unsafe {
            self.load_v::<T>(keys, Some(landed));
            landed.wait(self.tail_phase);
            self.tail_phase ^= 1;
            for page_idx in keys.num_keys / PAGE_SIZE..T::BLOCK_PAGES {
                let end = keys.num_keys.saturating_sub(page_idx * PAGE_SIZE);
                zero_page::<T>(tile.offset(page_idx * const { T::WIDTH * PAGE_SIZE }), end);
            }
        }
        fence::proxy_async_shared();
        warp::sync_warp();
        if warp::lane_id() == 0 {
            full_barrier.arrive();
        }
    }
}

/// Zeroes the positions of a page from `end` on; the warp calls this.
///
/// # Safety
/// 1. `page` is one of V in shared memory, which no other thread accesses.
#[inline(always)]
#[track_caller]
unsafe fn zero_page<T: Fp8Tile>(page: Shared<u8>, end: u32) {
    let vec_idx = warp::lane_id() % 4;
    let first = vec_idx * 16;
    if first + 16 <= end {
        return;
    }
    let mut row = warp::lane_id() / 4;
    while row < T::WIDTH {
        let vec = page.offset(swizzle::<u8, PAGE_SIZE>(row, vec_idx)).cast::<u32>();
        // SAFETY: the caller's promise.
        unsafe {
            if end <= first {
                vec.set_vec(0, [0; 4]);
            } else {
                let words: [u32; 4] = vec.get_vec(0);
                let mut kept = [0; 4];
                unroll!(i in 0..4, {
                    kept[i] = keep(words[i], keys_of_word(first, i as u32), end);
                });
                vec.set_vec(0, kept);
            }
        }
        row += warp::WARP_SIZE / 4;
    }
}
