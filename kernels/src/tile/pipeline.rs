//! The pipeline of shared-memory stages between a producer, which fills them by asynchronous
//! copies, and consumers, which read them.
//!
//! Every stage has two mbarriers: the full barrier completes when its bytes have arrived, the empty
//! barrier when all consumers have released it.

use cuda_std::prelude::*;

/// The barriers of a pipeline.
#[derive(Clone, Copy)]
pub struct Pipeline {
    full_barriers: Mbarrier,
    empty_barriers: Mbarrier,
    num_stages: u32,
}

impl Pipeline {
    /// Shared memory of the barriers, in `u64`s.
    pub const fn num_words(num_stages: u32) -> u32 {
        2 * num_stages
    }

    /// The pipeline whose barriers are in `words`.
    ///
    /// # Safety
    /// 1. `words` holds [`Pipeline::num_words`] elements, which nothing else uses.
    /// 2. One thread of the block calls [`Pipeline::init`], and a barrier of the block or its
    ///    cluster separates that from any other use.
    #[inline(always)]
    pub unsafe fn new(words: Shared<u64>, num_stages: u32) -> Self {
        // SAFETY: the caller's promise.
        let full_barriers = unsafe { Mbarrier::new(words) };
        Pipeline { full_barriers, empty_barriers: full_barriers.offset(num_stages), num_stages }
    }

    /// Initialises the barriers: one arrival completes a full barrier, `num_consumers` arrivals an
    /// empty one.
    #[inline(always)]
    #[track_caller]
    pub fn init(self, num_consumers: u32) {
        self.init_for(1, num_consumers);
    }

    /// [`Pipeline::init`] where `num_producers` arrivals complete a full barrier.
    #[inline(always)]
    #[track_caller]
    pub fn init_for(self, num_producers: u32, num_consumers: u32) {
        for stage_idx in 0..self.num_stages {
            self.full_barriers.offset(stage_idx).init(num_producers);
            self.empty_barriers.offset(stage_idx).init(num_consumers);
        }
        fence::mbarrier_init();
    }

    /// The barrier that the producer arrives on with the stage's bytes, and consumers wait for.
    #[inline(always)]
    pub fn full_barrier(self, stage: Stage) -> Mbarrier {
        self.full_barriers.offset(stage.stage_idx)
    }

    /// The barrier that consumers arrive on when they have read the stage.
    #[inline(always)]
    pub fn empty_barrier(self, stage: Stage) -> Mbarrier {
        self.empty_barriers.offset(stage.stage_idx)
    }

    /// Waits until the stage is full.
    #[inline(always)]
    #[track_caller]
    pub fn wait_full(self, stage: Stage) {
        self.full_barrier(stage).wait(stage.phase);
    }

    /// Waits until the stage is empty; returns at once in the first round.
    #[inline(always)]
    #[track_caller]
    pub fn wait_empty(self, stage: Stage) {
        self.empty_barrier(stage).wait(stage.phase ^ 1);
    }

    /// The stage after `count` others: one register for a position, where divisions by the number
    /// of stages are cheap.
    #[inline(always)]
    #[must_use]
    pub fn stage(self, count: u32) -> Stage {
        Stage { stage_idx: count % self.num_stages, phase: count / self.num_stages % 2 }
    }

    /// The stage after `stage`.
    #[inline(always)]
    #[must_use]
    pub fn next(self, stage: Stage) -> Stage {
        if stage.stage_idx + 1 == self.num_stages {
            Stage { stage_idx: 0, phase: stage.phase ^ 1 }
        } else {
            Stage { stage_idx: stage.stage_idx + 1, phase: stage.phase }
        }
    }

    /// Waits until consumers have released every stage; `stage` is the one that would be filled
    /// next. A block must not exit while other blocks of its cluster still arrive on its barriers.
    #[inline(always)]
    #[track_caller]
    pub fn drain(self, mut stage: Stage) {
        for _ in 0..self.num_stages {
            self.wait_empty(stage);
            stage = self.next(stage);
        }
    }
}

/// A position in the pipeline: producer and consumers step through the same sequence.
#[derive(Clone, Copy)]
pub struct Stage {
    /// Index of the stage.
    pub stage_idx: u32,
    /// Parity of the round.
    pub phase: u32,
}

impl Stage {
    /// The first one.
    pub const FIRST: Stage = Stage { stage_idx: 0, phase: 0 };
}
