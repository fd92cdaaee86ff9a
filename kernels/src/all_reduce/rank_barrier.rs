//! Barriers of the same block of all ranks, around its accesses to tensors of peers.

use crate::all_reduce::channel::select;
use crate::all_reduce::{MAX_WORLD, next_epoch};
use cuda_std::atomic::Scope;
use cuda_std::peer::SpinLimit;
use cuda_std::prelude::*;

/// Most blocks that wait for their like, at most one for each SM: more than enough bytes are in flight.
pub(crate) const MAX_BLOCKS: u32 = 128;

/// Words of the flags of a workspace: a flag of each rank for both barriers of each block.
pub(crate) const fn num_flags(world: usize) -> usize {
    2 * MAX_BLOCKS as usize * world
}

/// The two barriers of a block in one epoch: before its first access, as peers may still use what
/// it overwrites, and write what it reads, and after its last one.
#[derive(Clone, Copy)]
pub(super) struct RankBarriers<const WORLD: usize> {
    rank: usize,
    block: u32,
    epoch: u32,
    epochs: GlobalMut<u32>,
    flags: [GlobalMut<u32>; WORLD],
}

impl<const WORLD: usize> RankBarriers<WORLD> {
    /// The first barrier, in the block's next epoch.
    ///
    /// # Safety
    /// 1. `rank` is under `WORLD`, the block under [`MAX_BLOCKS`]. `epochs` and the first `WORLD` of
    ///    the `flags` are those of the ranks' workspaces.
    /// 2. All threads of the block call this, and the same block of all ranks.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn begin(
        rank: u32,
        epochs: GlobalMut<u32>,
        flags: &[GlobalMut<u32>; MAX_WORLD],
    ) -> Self {
        let block = thread::block_idx_x();
        // SAFETY: the caller's promise: every block has an epoch, and flags.
        unsafe {
            let epoch = next_epoch(epochs.get(block as usize));
            let flags = core::array::from_fn(|p| flags[p]);
            let barriers = RankBarriers { rank: rank as usize, block, epoch, epochs, flags };
            barriers.sync(0);
            barriers
        }
    }

    /// The second one.
    ///
    /// # Safety
    /// As of [`RankBarriers::begin`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn end(self) {
        // SAFETY: the caller's promise; all threads have read the epoch.
        unsafe {
            self.sync(1);
            if thread::thread_idx_x() == 0 {
                self.epochs.set(self.block as usize, self.epoch);
            }
        }
    }

    /// All threads wait until the same block of every rank is here. What each rank did before is
    /// ordered before what all do afterwards.
    ///
    /// # Safety
    /// As of [`RankBarriers::begin`].
    #[inline(always)]
    #[track_caller]
    unsafe fn sync(&self, barrier: u32) {
        let RankBarriers { rank, block, epoch, flags, .. } = *self;
        let first = (barrier * MAX_BLOCKS + block) as usize * WORLD;
        // The release of a thread covers what the block's other threads did before the barrier.
        thread::sync_threads();
        let peer = thread::thread_idx_x() as usize;
        if peer < WORLD && peer != rank {
            // SAFETY: a flag for each rank, block and barrier: the caller's promise.
            unsafe {
                select(&flags, peer).store_release(first + rank, epoch, Scope::System);
                let own = select(&flags, rank);
                let mut spins = SpinLimit::new();
                while own.load_acquire(first + peer, Scope::System) != epoch {
                    spins.wait();
                }
            }
        }
        thread::sync_threads();
    }
}
