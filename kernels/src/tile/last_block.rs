//! Which block finishes last: it combines the partial results of all blocks in global memory.

use cuda_std::atomic::{Order, Scope};
use cuda_std::prelude::*;

/// Whether this block is the last of `count` to call this; if so it sees what all of them have
/// written. The counter is 0 again afterwards.
///
/// # Safety
/// 1. All threads of the block call this.
/// 2. `counters` holds element `index`, which is 0 before the first block.
/// 3. `flag` is an element that nothing else uses.
#[inline(always)]
pub unsafe fn is_last(
    counters: GlobalMut<u32>,
    index: usize,
    count: u32,
    flag: Shared<u32>,
) -> bool {
    // SAFETY: the element is inside; the flag is written before the barrier and read after it.
    unsafe {
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            let before = counters.fetch_add(index, 1, Order::AcqRel, Scope::Gpu);
            let is_last = before + 1 == count;
            if is_last {
                counters.store_relaxed(index, 0, Scope::Gpu);
            }
            flag.set(0, is_last.into());
        }
        thread::sync_threads();
        flag.get(0) != 0
    }
}
