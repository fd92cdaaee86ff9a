//! The best candidate of many: the largest key, then the smallest index.

use super::{BLOCK_COLUMNS, NUM_THREADS, NUM_WARPS, UNROLL};
use crate::tile::last_block::is_last;
use cuda_std::prelude::*;

/// Flag of an output: the other bits are the index of the first logit that is NaN or infinity.
pub(super) const NOT_FINITE: u32 = 1 << 31;

/// The output of a row of negative infinities.
pub(super) const NO_CANDIDATE: u32 = u32::MAX;

/// Key of NaN and infinity: above every finite one, so that they are always found.
const NOT_FINITE_KEY: u32 = u32::MAX;

/// Key of negative infinity: below every finite one.
const NO_CANDIDATE_KEY: u32 = 0;

/// Maps a number to an integer of the same order; both zeros are equal.
fn order_key(value: f32) -> u32 {
    // The addition turns -0.0 into 0.0.
    let bits = (value + 0.0).to_bits();
    if value.is_nan() || value == f32::INFINITY {
        NOT_FINITE_KEY
    } else if value == f32::NEG_INFINITY {
        NO_CANDIDATE_KEY
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// The best candidate so far.
#[derive(Clone, Copy)]
pub(super) struct Best {
    key: u32,
    index: u32,
}

impl Best {
    /// Worse than every candidate.
    pub const NONE: Best = Best { key: NO_CANDIDATE_KEY, index: u32::MAX };

    /// The candidate `index` with its value.
    #[inline(always)]
    pub fn new(value: f32, index: u32) -> Self {
        Best { key: order_key(value), index }
    }

    /// The best of the thread's logits of the columns of `block`.
    #[inline(always)]
    pub fn from_values(values: [f32; UNROLL as usize], block: u32) -> Self {
        let first = block * BLOCK_COLUMNS + thread::thread_idx_x();
        let mut best = Best::NONE;
        unroll!(step in 0..UNROLL as usize, {
            best = best.or(Best::new(values[step], first + step as u32 * NUM_THREADS));
        });
        best
    }

    /// The better of two: the larger key, then the smaller index.
    #[inline(always)]
    pub fn or(self, other: Best) -> Best {
        let other_wins =
            other.key > self.key || (other.key == self.key && other.index < self.index);
        if other_wins { other } else { self }
    }

    /// The value, if it is a number.
    #[inline(always)]
    pub fn finite(self) -> Option<f32> {
        let bits = if self.key >> 31 == 1 { self.key & !(1 << 31) } else { !self.key };
        let is_finite = self.key != NOT_FINITE_KEY && self.key != NO_CANDIDATE_KEY;
        is_finite.then_some(f32::from_bits(bits))
    }

    /// The output for the row that this is the best of.
    #[inline(always)]
    pub fn output(self) -> u32 {
        match self.key {
            NO_CANDIDATE_KEY => NO_CANDIDATE,
            NOT_FINITE_KEY => NOT_FINITE | self.index,
            _ => self.index,
        }
    }

    /// The token that the next step goes on with: 0 for one that does not count, if there is none.
    #[inline(always)]
    pub fn token(self) -> u32 {
        match self.key {
            NO_CANDIDATE_KEY | NOT_FINITE_KEY => 0,
            _ => self.index,
        }
    }

    /// The best of the warp's lanes, in every lane.
    #[inline(always)]
    fn reduce_warp(mut self) -> Best {
        let mut lane_mask = warp::WARP_SIZE / 2;
        while lane_mask > 0 {
            self = self.or(Best {
                key: warp::shuffle_xor(self.key, lane_mask),
                index: warp::shuffle_xor(self.index, lane_mask),
            });
            lane_mask /= 2;
        }
        self
    }

    /// The best of the block's threads, in every thread of its first warp.
    ///
    /// # Safety
    /// 1. All threads of the block call this, with the same `shared` of `2 * NUM_WARPS` elements,
    ///    which nothing else uses before the block's next barrier.
    #[inline(always)]
    pub unsafe fn reduce_block(self, shared: Shared<u32>) -> Best {
        let best = self.reduce_warp();
        // SAFETY: the warp's elements; written before the barrier and only read after it.
        unsafe {
            if warp::lane_id() == 0 {
                shared.set_vec(2 * warp::warp_idx(), [best.key, best.index]);
            }
            thread::sync_threads();
            let lane = if warp::warp_idx() == 0 { warp::lane_id() } else { 0 };
            let [key, index] = shared.get_vec(2 * lane);
            Best { key, index }.reduce_warp()
        }
    }
}

/// The bests of a row's blocks, in global memory.
#[derive(Clone, Copy)]
pub(super) struct BlockBests {
    /// `[num_blocks, 2]`.
    pub partials: GlobalMut<u32>,
    /// Blocks of a row.
    pub num_blocks: u32,
}

impl BlockBests {
    /// Stores the best of a block.
    ///
    /// # Safety
    /// 1. One thread calls this for the block; no other thread accesses its element meanwhile.
    #[inline(always)]
    pub unsafe fn set(self, block: u32, best: Best) {
        // SAFETY: the caller's promise.
        unsafe { self.partials.set_vec(2 * block as usize, [best.key, best.index]) };
    }

    /// The best of all blocks, in every lane of the warp.
    ///
    /// # Safety
    /// 1. The warp is converged; every block's best is stored, and this thread sees it.
    #[inline(always)]
    pub unsafe fn reduce(self) -> Best {
        let mut best = Best::NONE;
        let mut block = warp::lane_id();
        while block < self.num_blocks {
            // SAFETY: the caller's promise.
            let [key, index] = unsafe { self.partials.get_vec(2 * block as usize) };
            best = best.or(Best { key, index });
            block += warp::WARP_SIZE;
        }
        best.reduce_warp()
    }

    /// The best of all blocks, in every thread of the block: its first warp reads them.
    ///
    /// # Safety
    /// 1. All threads of the block call this, with the same `shared` of two elements, which nothing
    ///    else uses; every block's best is stored, and the threads see it.
    #[inline(always)]
    pub unsafe fn reduce_for_block(self, shared: Shared<u32>) -> Best {
        // SAFETY: the caller's promise; written before the barrier and only read after it.
        unsafe {
            if warp::warp_idx() == 0 {
                let best = self.reduce();
                if warp::lane_id() == 0 {
                    shared.set_vec(0, [best.key, best.index]);
                }
            }
            thread::sync_threads();
            let [key, index] = shared.get_vec(0);
            Best { key, index }
        }
    }

    /// Stores this block's best, and says whether it is the row's last block to do so.
    ///
    /// # Safety
    /// 1. As [`is_last`] and [`Best::reduce_block`].
    #[inline(always)]
    pub unsafe fn finish(
        self,
        best: Best,
        (counters, row): (GlobalMut<u32>, usize),
        shared: Shared<u32>,
    ) -> bool {
        // SAFETY: the caller's promise; the last element of `shared` is the flag's.
        unsafe {
            let best = best.reduce_block(shared);
            if thread::thread_idx_x() == 0 {
                self.set(thread::block_idx_y(), best);
            }
            is_last(counters, row, self.num_blocks, shared.offset(2 * NUM_WARPS))
        }
    }
}
