//! What producer and consumers of a block share: tiles of Q, K and V in shared memory, work items,
//! and the pipelines that hand them over.

use super::super::items::{ItemRing, NUM_SLOTS};
use super::super::ring::{Ring, Staged};
use super::tiles::{Fp8Tile, ONES_BYTES};
use crate::tile::pipeline::Pipeline;
use cuda_std::prelude::*;

/// Warps that convert V.
pub(super) const NUM_CONVERTERS: u32 = 2;

/// Bytes of a stage.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    pub start: Shared<u8>,
    num_bytes: u32,
}

impl Staged for Bytes {
    #[inline(always)]
    fn stage(self, index: u32) -> Self {
        Bytes { start: self.start.offset(index * self.num_bytes), ..self }
    }
}

/// The block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Stages {
    pub q: Ring<Bytes>,
    pub k: Ring<Bytes>,
    /// V as it is multiplied.
    pub v: Ring<Bytes>,
    /// V before its conversion.
    pub staging: Ring<Bytes>,
    /// An operand of ones.
    pub ones: Shared<u8>,
    /// P V of the blocks so far, but for those in registers.
    pub total: Shared<f32>,
    pub items: ItemRing,
    /// Completes when a block of V has landed whose last positions the producer zeroes.
    pub tail_barrier: Mbarrier,
}

impl Stages {
    /// The parts of the memory at `smem`.
    ///
    /// # Safety
    /// 1. `smem` is the block's, `T::SHARED_BYTES`, and aligned to 1024 bytes.
    /// 2. One thread calls [`Stages::init`], and a barrier of the block follows.
    #[inline(always)]
    pub unsafe fn new<T: Fp8Tile>(smem: Shared<u8>) -> Self {
        // SAFETY: the caller's promise; offsets are multiples of 1024, or of 8 for barriers.
        unsafe {
            let ring = |at: u32, num_bytes: u32, barriers_at: u32, num_stages: u32| {
                let first = Bytes { start: smem.offset(at), num_bytes };
                Ring::new(first, Pipeline::new(smem.offset(barriers_at).cast(), num_stages))
            };
            let staging_stages = T::STAGING_STAGES;
            Stages {
                q: ring(0, T::Q_BYTES, T::Q_BARRIERS_AT, T::Q_STAGES),
                k: ring(T::K_AT, T::K_BYTES, T::K_BARRIERS_AT, T::STAGES),
                v: ring(T::V_AT, T::V_BYTES, T::V_BARRIERS_AT, T::STAGES),
                staging: ring(T::STAGING_AT, T::V8_BYTES, T::STAGING_BARRIERS_AT, staging_stages),
                ones: smem.offset(T::ONES_AT),
                total: smem.offset(T::TOTAL_AT).cast(),
                items: ItemRing::new(
                    smem.offset(T::ITEMS_AT).cast(),
                    Pipeline::new(smem.offset(T::ITEM_BARRIERS_AT).cast(), NUM_SLOTS),
                ),
                tail_barrier: Mbarrier::new(smem.offset(T::TAIL_BARRIER_AT).cast()),
            }
        }
    }

    /// Writes the ones; a barrier of the block follows.
    #[inline(always)]
    #[track_caller]
    pub fn write_ones(self) {
        if thread::thread_idx_x() < ONES_BYTES / 4 {
            // SAFETY: inside; nothing else writes there.
            unsafe { self.ones.cast::<u32>().set(thread::thread_idx_x(), 0x3838_3838) };
            fence::proxy_async_shared();
        }
    }

    /// Initialises the barriers.
    #[inline(always)]
    #[track_caller]
    pub fn init<T: Fp8Tile>(self) {
        let num_consumers = T::CONSUMERS * 4;
        let num_converters = if T::IS_CONVERTED { NUM_CONVERTERS } else { 0 };
        self.tail_barrier.init(1);
        // The consumers, the warp that loads V, and those that convert it.
        self.items.init(num_consumers + 1 + num_converters);
        self.q.init(1, num_consumers);
        self.k.init(1, num_consumers);
        self.v.init(num_converters.max(1), num_consumers);
        self.staging.init(1, num_converters.max(1));
    }
}
