//! What producer and consumers of a block share: tiles of Q, K and V in shared memory, work items,
//! and the pipelines that hand them over.

use super::items::{ItemRing, NUM_SLOTS};
use super::ring::{Ring, Staged};
use super::tiles::PrefillTile;
use crate::tile::element::Operand16;
use crate::tile::pipeline::Pipeline;
use crate::tile::smem::SmemTile;
use cuda_std::prelude::*;

/// A tile of `width` columns that is a stage of a ring.
#[derive(Clone, Copy)]
pub(super) struct StagedTile<E> {
    pub tile: SmemTile<E>,
    width: u32,
}

impl<E: Operand16> Staged for StagedTile<E> {
    #[inline(always)]
    fn stage(self, index: u32) -> Self {
        StagedTile { tile: self.tile.stage(index, self.width), ..self }
    }
}

/// The block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Stages<E> {
    pub q: Ring<StagedTile<E>>,
    pub k: Ring<StagedTile<E>>,
    pub v: Ring<StagedTile<E>>,
    pub items: ItemRing,
    /// Completes when a block of V has landed whose last rows the producer zeroes.
    pub tail_barrier: Mbarrier,
}

impl<E: Operand16> Stages<E> {
    /// The parts of the memory at `smem`.
    ///
    /// # Safety
    /// 1. `smem` is the block's, `T::SHARED_BYTES`, and aligned to 1024 bytes.
    /// 2. One thread calls [`Stages::init`], and a barrier of the block follows.
    #[inline(always)]
    pub unsafe fn new<T: PrefillTile>(smem: Shared<u8>) -> Self {
        // SAFETY: the caller's promise; offsets are multiples of 1024, or of 8 for barriers.
        unsafe {
            let ring = |at: u32, rows: u32, barriers_at: u32, num_stages: u32| {
                let tile = SmemTile::new(smem.offset(at).cast(), rows);
                let pipeline = Pipeline::new(smem.offset(barriers_at).cast(), num_stages);
                Ring::new(StagedTile { tile, width: T::WIDTH }, pipeline)
            };
            Stages {
                q: ring(0, T::BLOCK_M, T::Q_BARRIERS_AT, T::Q_STAGES),
                k: ring(T::K_AT, T::BLOCK_N, T::K_BARRIERS_AT, T::STAGES),
                v: ring(T::V_AT, T::BLOCK_N, T::V_BARRIERS_AT, T::STAGES),
                items: ItemRing::new(
                    smem.offset(T::ITEMS_AT).cast(),
                    Pipeline::new(smem.offset(T::ITEM_BARRIERS_AT).cast(), NUM_SLOTS),
                ),
                tail_barrier: Mbarrier::new(smem.offset(T::TAIL_BARRIER_AT).cast()),
            }
        }
    }

    /// Initialises the barriers.
    #[inline(always)]
    #[track_caller]
    pub fn init<T: PrefillTile>(self) {
        self.tail_barrier.init(1);
        // The consumers, and the warp that loads V.
        self.items.init(T::CONSUMERS * 4 + 1);
        for ring in [self.q, self.k, self.v] {
            ring.init(1, T::CONSUMERS * 4);
        }
    }
}
