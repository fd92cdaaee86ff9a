//! What producer and consumers of a block share: tiles of Q, K and V in shared memory, work items,
//! and the pipelines that hand them over.

use super::items::{ItemRing, NUM_SLOTS};
use super::tiles::PrefillTile;
use crate::tile::element::Operand16;
use crate::tile::pipeline::{Pipeline, Stage};
use crate::tile::smem::SmemTile;
use cuda_std::prelude::*;

/// A ring of tiles in shared memory, at the position of one of its two sides.
#[derive(Clone, Copy)]
pub(super) struct Ring<E> {
    first: SmemTile<E>,
    width: u32,
    pipeline: Pipeline,
    /// Stages so far.
    count: u32,
}

impl<E: Operand16> Ring<E> {
    #[inline(always)]
    fn stage(&self) -> Stage {
        self.pipeline.stage(self.count)
    }

    /// The tile of the current stage.
    #[inline(always)]
    pub fn tile(&self) -> SmemTile<E> {
        self.first.stage(self.stage().stage_idx, self.width)
    }

    /// The barrier that completes when the current stage is full.
    #[inline(always)]
    pub fn full_barrier(&self) -> Mbarrier {
        self.pipeline.full_barrier(self.stage())
    }

    /// Waits until the current stage is empty.
    #[inline(always)]
    #[track_caller]
    pub fn wait_empty(&self) {
        self.pipeline.wait_empty(self.stage());
    }

    /// Waits until the current stage is full; its tile.
    #[inline(always)]
    #[track_caller]
    pub fn wait_full(&self) -> SmemTile<E> {
        self.pipeline.wait_full(self.stage());
        self.tile()
    }

    /// Goes on to the next stage.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.count += 1;
    }

    /// Releases the current stage, for the warp, and goes on to the next.
    #[inline(always)]
    #[track_caller]
    pub fn release(&mut self) {
        if warp::lane_id() == 0 {
            self.pipeline.empty_barrier(self.stage()).arrive();
        }
        self.advance();
    }
}

/// The block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Stages<E> {
    pub q: Ring<E>,
    pub k: Ring<E>,
    pub v: Ring<E>,
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
            let ring = |at: u32, rows: u32, barriers_at: u32, num_stages: u32| Ring {
                first: SmemTile::new(smem.offset(at).cast(), rows),
                width: T::WIDTH,
                pipeline: Pipeline::new(smem.offset(barriers_at).cast(), num_stages),
                count: 0,
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
            ring.pipeline.init(T::CONSUMERS * 4);
        }
    }
}
