//! Rings of tiles in shared memory.

use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::prelude::*;

/// A tile in shared memory that is a stage of a ring.
pub(super) trait Staged: Copy {
    /// Tile `index` of equal ones that lie one after the other, this one first.
    fn stage(self, index: u32) -> Self;
}

/// A ring of tiles in shared memory, at the position of one of its two sides.
#[derive(Clone, Copy)]
pub(super) struct Ring<T> {
    first: T,
    pipeline: Pipeline,
    /// Stages so far.
    count: u32,
}

impl<T: Staged> Ring<T> {
    /// The ring whose first tile is `first`, at its start.
    #[inline(always)]
    pub fn new(first: T, pipeline: Pipeline) -> Self {
        Ring { first, pipeline, count: 0 }
    }

    /// Initialises the barriers, for so many arrivals that fill a stage, and warps that release it.
    #[inline(always)]
    #[track_caller]
    pub fn init(self, num_producers: u32, num_consumers: u32) {
        self.pipeline.init_for(num_producers, num_consumers);
    }

    #[inline(always)]
    fn stage(&self) -> Stage {
        self.pipeline.stage(self.count)
    }

    /// The tile of the current stage.
    #[inline(always)]
    pub fn tile(&self) -> T {
        self.first.stage(self.stage().stage_idx)
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
    pub fn wait_full(&self) -> T {
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
