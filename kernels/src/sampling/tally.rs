//! How many tokens there are, and their mass.

use super::NUM_WARPS;
use cuda_std::prelude::*;

/// A number of tokens and their mass.
#[derive(Clone, Copy)]
pub(super) struct Tally {
    pub count: u32,
    pub mass: u64,
}

/// Elements of the shared memory that a reduction or a scan of the block needs.
pub(super) const TALLIES_LEN: u32 = 4 * NUM_WARPS;

impl Tally {
    /// No token.
    pub const ZERO: Tally = Tally { count: 0, mass: 0 };

    /// Tokens and mass of both tallies together.
    #[inline(always)]
    pub fn plus(self, other: Tally) -> Tally {
        Tally { count: self.count + other.count, mass: self.mass + other.mass }
    }

    #[inline(always)]
    fn words(self) -> [u32; 4] {
        [self.count, self.mass as u32, (self.mass >> 32) as u32, 0]
    }

    #[inline(always)]
    fn from_words([count, low, high, _]: [u32; 4]) -> Self {
        Tally { count, mass: u64::from(high) << 32 | u64::from(low) }
    }

    #[inline(always)]
    fn map(self, f: impl Fn(u32) -> u32) -> Self {
        let [count, low, high, _] = self.words();
        Tally::from_words([f(count), f(low), f(high), 0])
    }

    /// The sum of the warp's lanes up to and with this one.
    #[inline(always)]
    fn scan_warp(mut self) -> Tally {
        let mut delta = 1;
        while delta < warp::WARP_SIZE {
            let before = self.map(|word| warp::shuffle_up(word, delta));
            if warp::lane_id() >= delta {
                self = self.plus(before);
            }
            delta *= 2;
        }
        self
    }

    /// The sum of the block's threads before this one, and the sum of all.
    ///
    /// # Safety
    /// 1. All threads of the block call this, with the same `shared` of [`TALLIES_LEN`] elements at
    ///    a multiple of 16 bytes, which nothing else uses meanwhile.
    #[inline(always)]
    pub unsafe fn scan_block(self, shared: Shared<u32>) -> (Tally, Tally) {
        let through = self.scan_warp();
        let (warp_idx, lane_id) = (warp::warp_idx(), warp::lane_id());
        // SAFETY: each warp's elements; barriers are between writes and reads.
        unsafe {
            thread::sync_threads();
            if lane_id == warp::WARP_SIZE - 1 {
                shared.set_vec(4 * warp_idx, through.words());
            }
            thread::sync_threads();
            let of_warps = Tally::from_words(shared.get_vec(4 * lane_id)).scan_warp();
            let at = |lane: u32| of_warps.map(|word| warp::shuffle_idx(word, lane));
            let total = at(NUM_WARPS - 1);
            let warps_before = at(if warp_idx == 0 { 0 } else { warp_idx - 1 });
            let mut before =
                Tally { count: through.count - self.count, mass: through.mass - self.mass };
            if warp_idx > 0 {
                before = before.plus(warps_before);
            }
            (before, total)
        }
    }
}
