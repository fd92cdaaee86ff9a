//! Partial results of a tile whose keys are split over several items: each item stores its own in
//! global memory, and the last to do so combines them all.
//!
//! A warp's 16 queries are a matter of its own: the same warp of each item's block holds the same
//! queries, and each of its lanes the same values of them.

use crate::attention::work::Part;
use core::f32::consts::{LN_2, LOG2_E};
use cuda_std::atomic::{Order, Scope};
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;

/// Queries of a warp.
pub(super) const WARP_ROWS: u32 = 16;

/// Elements from a lane's vector to its next.
const VECTORS: usize = 4 * warp::WARP_SIZE as usize;

/// Where partial results go.
#[derive(Clone, Copy)]
pub(super) struct Partials {
    /// Results of each slot and warp: the normalised output, a vector of every lane after the
    /// other, then the logarithms of the rows' sums.
    pub results: GlobalMut<f32>,
    /// Items that have stored their results, of each slot and warp; 0 before and after a launch.
    pub counters: GlobalMut<u32>,
    /// Warps of the consumers.
    pub num_warps: u32,
}

/// A thread's two rows, of all parts.
#[derive(Clone, Copy)]
pub(super) struct Combined {
    /// Logarithm of the sum of exponentials of the part with the largest; a finite number.
    max: [f32; 2],
    /// Normalises the sum of the parts.
    scale: [f32; 2],
    /// Logarithm of the sum of exponentials.
    pub lse: [f32; 2],
}

/// Weight of each row: `exp(lse - max)`.
#[inline(always)]
fn weights(lse: [f32; 2], max: [f32; 2]) -> [f32; 2] {
    [0, 1].map(|row| math::exp2_approx((lse[row] - max[row]) * LOG2_E))
}

impl Partials {
    /// Elements of `results` that a warp has.
    pub const fn warp_elems(out_regs: usize) -> usize {
        (out_regs + 2) * warp::WARP_SIZE as usize
    }

    /// Where the lane's vectors are in the results of this warp in a slot, and the log-sum-exp of
    /// its rows.
    ///
    /// # Safety
    /// 1. There are results for the slot.
    #[inline(always)]
    unsafe fn lane<const OUT_REGS: usize>(&self, slot: u32) -> [GlobalMut<f32>; 2] {
        let place = (slot * self.num_warps + warp::warp_idx()) as usize;
        let lane = warp::lane_id() as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let results = self.results.add(place * Self::warp_elems(OUT_REGS));
            [results.add(4 * lane), results.add(OUT_REGS * warp::WARP_SIZE as usize + 2 * lane)]
        }
    }

    /// Stores the warp's part of its rows. Whether it is the last one to do so: then it sees all
    /// parts.
    ///
    /// # Safety
    /// 1. All lanes of the warp call this, once for each part.
    /// 2. There are results and counters for the part's slots.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn store<const OUT_REGS: usize>(
        &self,
        part: Part,
        out: Accumulator<OUT_REGS>,
        lse: [f32; 2],
    ) -> bool {
        let values = out.values();
        // SAFETY: the caller's promise.
        unsafe {
            let [vectors, lse_ptr] = self.lane::<OUT_REGS>(part.first_slot() + part.split());
            unroll!(high in 0..2, {
                unroll!(low in 0..16, {
                    if 16 * high + low < OUT_REGS / 4 {
                        let i = 16 * high + low;
                        let vector = [0, 1, 2, 3].map(|j| values[4 * i + j]);
                        vectors.set_vec(VECTORS * i, vector);
                    }
                });
            });
            lse_ptr.set_vec(0, lse);
            self.is_last(part)
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn is_last(&self, part: Part) -> bool {
        let counter = (part.first_slot() * self.num_warps + warp::warp_idx()) as usize;
        let mut is_last = 0;
        warp::sync_warp();
        if warp::lane_id() == 0 {
            // SAFETY: the caller's promise.
            unsafe {
                let before = self.counters.fetch_add(counter, 1, Order::AcqRel, Scope::Gpu);
                if before + 1 == part.num_splits() {
                    self.counters.store_relaxed(counter, 0, Scope::Gpu);
                    is_last = 1;
                }
            }
        }
        warp::sync_warp();
        warp::shuffle_idx(is_last, 0) != 0
    }

    /// The log-sum-exp of the lane's rows in a part.
    #[inline(always)]
    unsafe fn lse<const OUT_REGS: usize>(&self, part: Part, split: u32) -> [f32; 2] {
        // SAFETY: the caller's promise.
        unsafe { self.lane::<OUT_REGS>(part.first_slot() + split)[1].as_global().get_vec(0) }
    }

    /// What the rows' parts weigh together.
    ///
    /// # Safety
    /// 1. All parts are stored, and seen by this thread.
    #[inline(always)]
    pub unsafe fn combined<const OUT_REGS: usize>(&self, part: Part) -> Combined {
        let mut max = [f32::NEG_INFINITY; 2];
        for split in 0..part.num_splits() {
            // SAFETY: the caller's promise.
            let lse = unsafe { self.lse::<OUT_REGS>(part, split) };
            max = [math::max(max[0], lse[0]), math::max(max[1], lse[1])];
        }
        // A row without a key in any part: any finite maximum gives weights of 0.
        let max = max.map(|max| if max == f32::NEG_INFINITY { 0.0 } else { max });
        let mut total = [0.0; 2];
        for split in 0..part.num_splits() {
            // SAFETY: the caller's promise.
            let weights = weights(unsafe { self.lse::<OUT_REGS>(part, split) }, max);
            total = [total[0] + weights[0], total[1] + weights[1]];
        }
        let is_empty = total.map(|total| total == 0.0);
        let scale = |row: usize| if is_empty[row] { 0.0 } else { math::rcp_approx(total[row]) };
        let lse = |row: usize| match is_empty[row] {
            true => f32::NEG_INFINITY,
            false => math::fma(LN_2, math::log2_approx(total[row]), max[row]),
        };
        Combined { max, scale: [0, 1].map(scale), lse: [0, 1].map(lse) }
    }

    /// Values `16 * group ..` of the accumulator of all keys: the weighted sum of the parts, in their
    /// order.
    ///
    /// # Safety
    /// As [`Partials::combined`].
    #[inline(always)]
    pub unsafe fn values<const OUT_REGS: usize>(
        &self,
        part: Part,
        rows: &Combined,
        group: usize,
    ) -> [f32; 16] {
        let mut values = [0.0; 16];
        for split in 0..part.num_splits() {
            // SAFETY: the caller's promise.
            unsafe {
                let [vectors, lse_ptr] = self.lane::<OUT_REGS>(part.first_slot() + split);
                let weights = weights(lse_ptr.as_global().get_vec(0), rows.max);
                unroll!(i in 0..4, {
                    let vector = vectors.as_global().get_vec(VECTORS * (4 * group + i));
                    let vector: [f32; 4] = vector;
                    unroll!(j in 0..4, {
                        let sum = &mut values[4 * i + j];
                        *sum = math::fma(weights[j / 2], vector[j], *sum);
                    });
                });
            }
        }
        unroll!(i in 0..16, {
            values[i] *= rows.scale[i / 2 % 2];
        });
        values
    }
}
