//! The blocks of keys of a work item, and their pages.

use super::tiles::TileShape;
use crate::attention::work::PrefillItem;
use crate::kv_cache::PAGE_SIZE;
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

/// Most pages of a block of keys.
const MAX_PAGES: usize = 4;

/// A block of keys of a work item.
pub(super) struct Keys {
    /// First row of each page, in the pools.
    pub rows: [u32; MAX_PAGES],
    /// Keys that exist.
    pub num_keys: u32,
}

/// The blocks of keys of a work item, from last to first. A lane holds one of 32 adjacent entries
/// of the sequence's row of the block table.
pub(super) struct Blocks {
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
    pub unsafe fn new<T: TileShape>(cache: &Cache, item: &PrefillItem) -> Self {
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
    pub unsafe fn next<T: TileShape>(&mut self) -> Option<Keys> {
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
