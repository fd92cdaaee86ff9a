//! The work items of a block: from the list, in the list's order, whichever block is free next
//! takes the next one; its other warps get it through shared memory.

use crate::attention::work::{ITEM_WORDS, PrefillItem};
use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::atomic::{Order, Scope};
use cuda_std::prelude::*;

/// Items in shared memory: one is read while the next is written.
pub(super) const NUM_SLOTS: u32 = 2;

/// Bytes of the slots.
pub(super) const SLOT_BYTES: u32 = NUM_SLOTS * ITEM_WORDS * 4;

/// The list, shared by the blocks of the launch. One warp of each block takes items from it.
pub(super) struct WorkQueue {
    items: Global<u32>,
    num_items: u32,
    /// Items taken beyond the first of each block, and blocks that have finished: zeros before and
    /// after the launch.
    counters: GlobalMut<u32>,
    /// Lane 0: index of the next item.
    next: u32,
}

impl WorkQueue {
    #[inline(always)]
    pub fn new(items: Global<u32>, num_items: u32, counters: GlobalMut<u32>) -> Self {
        WorkQueue { items, num_items, counters, next: thread::block_idx_x() }
    }

    /// The next item. The index of the one after it is on its way when this returns.
    ///
    /// # Safety
    /// 1. All lanes of the warp call this.
    /// 2. The list holds `num_items` items, and there are two counters.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn take(&mut self) -> Option<PrefillItem> {
        let index = warp::shuffle_idx(self.next, 0);
        if index >= self.num_items {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe {
            if warp::lane_id() == 0 {
                let taken = self.counters.fetch_add(0, 1, Order::Relaxed, Scope::Gpu);
                self.next = thread::grid_dim_x() + taken;
            }
            Some(PrefillItem::load(self.items, index))
        }
    }

    /// Makes the counters zeros again, if all other blocks have finished.
    ///
    /// # Safety
    /// As [`WorkQueue::take`], which has returned `None`.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn finish(self) {
        if warp::lane_id() == 0 {
            // SAFETY: the caller's promise.
            unsafe {
                let finished = self.counters.fetch_add(1, 1, Order::AcqRel, Scope::Gpu);
                if finished + 1 == thread::grid_dim_x() {
                    self.counters.store_relaxed(0, 0, Scope::Gpu);
                    self.counters.store_relaxed(1, 0, Scope::Gpu);
                }
            }
        }
    }
}

/// The ring of items in shared memory, at the position of one of its sides.
#[derive(Clone, Copy)]
pub(super) struct ItemRing {
    slots: Shared<u32>,
    pipeline: Pipeline,
    /// Items so far.
    count: u32,
}

impl ItemRing {
    /// The ring whose items are in `slots`.
    ///
    /// # Safety
    /// 1. `slots` holds [`SLOT_BYTES`], 16-byte aligned; `pipeline` has [`NUM_SLOTS`] stages.
    #[inline(always)]
    pub unsafe fn new(slots: Shared<u32>, pipeline: Pipeline) -> Self {
        ItemRing { slots, pipeline, count: 0 }
    }

    /// Initialises the barriers, for so many warps that read the items.
    #[inline(always)]
    #[track_caller]
    pub fn init(self, num_readers: u32) {
        self.pipeline.init(num_readers);
    }

    #[inline(always)]
    fn stage(&self) -> Stage {
        self.pipeline.stage(self.count)
    }

    #[inline(always)]
    fn slot(&self) -> Shared<u32> {
        self.slots.offset(self.stage().stage_idx * ITEM_WORDS)
    }

    /// Hands an item to the readers, or says that there are no more; all lanes of one warp call
    /// this.
    #[inline(always)]
    #[track_caller]
    pub fn put(&mut self, item: Option<&PrefillItem>) {
        self.pipeline.wait_empty(self.stage());
        if warp::lane_id() == 0 {
            // An item without queries is the end.
            let [a, b, c, d, e, f, g, h] = item.map_or([0; 8], PrefillItem::words);
            // SAFETY: the slot is empty.
            unsafe {
                self.slot().set_vec(0, [a, b, c, d]);
                self.slot().set_vec(4, [e, f, g, h]);
            }
            self.pipeline.full_barrier(self.stage()).arrive();
        }
        self.count += 1;
    }

    /// Waits for the next item; `None` if there are no more.
    #[inline(always)]
    #[track_caller]
    pub fn get(&self) -> Option<PrefillItem> {
        self.pipeline.wait_full(self.stage());
        let item = self.again();
        (item.queries > 0).then_some(item)
    }

    /// The item that [`ItemRing::get`] returned, for warps that are short of registers.
    #[inline(always)]
    #[track_caller]
    pub fn again(&self) -> PrefillItem {
        // SAFETY: the slot is full until it is released.
        unsafe { PrefillItem::from_words(self.slot().get_vec(0), self.slot().get_vec(4)) }
    }

    /// Releases the item; all lanes of the warp call this.
    #[inline(always)]
    #[track_caller]
    pub fn release(&mut self) {
        warp::sync_warp();
        if warp::lane_id() == 0 {
            self.pipeline.empty_barrier(self.stage()).arrive();
        }
        self.count += 1;
    }
}
