//! A ring of stages in shared memory: a producer fills them by asynchronous copies, consumers empty
//! them.
//!
//! Every stage has two mbarriers. The phase of its full barrier ends when its bytes have come, that
//! of its empty barrier when all consumers have read them.

use cuda_std::prelude::*;

/// The barriers of a ring.
#[derive(Clone, Copy)]
pub struct Pipeline {
    full_barriers: Mbarrier,
    empty_barriers: Mbarrier,
    num_stages: u32,
}

impl Pipeline {
    /// Shared memory of the barriers, in elements of `u64`.
    pub const fn num_words(num_stages: u32) -> u32 {
        2 * num_stages
    }

    /// The ring whose barriers are in `words`.
    ///
    /// # Safety
    /// 1. `words` are [`Pipeline::num_words`] elements that belong to the barriers alone.
    /// 2. One thread of the block calls [`Pipeline::init`], and a barrier of the block, or of its
    ///    cluster, comes between that and any other use.
    #[inline(always)]
    pub unsafe fn new(words: Shared<u64>, num_stages: u32) -> Self {
        // SAFETY: the caller's promise.
        let full_barriers = unsafe { Mbarrier::new(words) };
        Pipeline { full_barriers, empty_barriers: full_barriers.offset(num_stages), num_stages }
    }

    /// Makes the barriers: one producer arrives at a full barrier, and `num_consumers` arrive at an
    /// empty one.
    #[inline(always)]
    #[track_caller]
    pub fn init(self, num_consumers: u32) {
        for stage_idx in 0..self.num_stages {
            self.full_barriers.offset(stage_idx).init(1);
            self.empty_barriers.offset(stage_idx).init(num_consumers);
        }
        fence::mbarrier_init();
    }

    /// The barrier that a producer tells of the stage's bytes, and consumers wait at.
    #[inline(always)]
    pub fn full_barrier(self, stage: Stage) -> Mbarrier {
        self.full_barriers.offset(stage.stage_idx)
    }

    /// The barrier that consumers tell that they have read the stage.
    #[inline(always)]
    pub fn empty_barrier(self, stage: Stage) -> Mbarrier {
        self.empty_barriers.offset(stage.stage_idx)
    }

    /// Waits until the stage is filled.
    #[inline(always)]
    #[track_caller]
    pub fn wait_full(self, stage: Stage) {
        self.full_barrier(stage).wait(stage.phase);
    }

    /// Waits until the stage is empty: at once in the first round.
    #[inline(always)]
    #[track_caller]
    pub fn wait_empty(self, stage: Stage) {
        self.empty_barrier(stage).wait(stage.phase ^ 1);
    }

    /// The stage behind `stage`.
    #[inline(always)]
    #[must_use]
    pub fn next(self, stage: Stage) -> Stage {
        if stage.stage_idx + 1 == self.num_stages {
            Stage { stage_idx: 0, phase: stage.phase ^ 1 }
        } else {
            Stage { stage_idx: stage.stage_idx + 1, phase: stage.phase }
        }
    }

    /// Waits until consumers have read every stage that was filled, where `stage` would be the next
    /// one: before a block ends whose barriers other blocks of its cluster still tell.
    #[inline(always)]
    #[track_caller]
    pub fn drain(self, mut stage: Stage) {
        for _ in 0..self.num_stages {
            self.wait_empty(stage);
            stage = self.next(stage);
        }
    }
}

/// A place in the ring: the same sequence for the producer and for each consumer.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Which stage it is.
    pub stage_idx: u32,
    /// Parity of the round.
    pub phase: u32,
}

impl Stage {
    /// The first one.
    pub const FIRST: Stage = Stage { stage_idx: 0, phase: 0 };
}
