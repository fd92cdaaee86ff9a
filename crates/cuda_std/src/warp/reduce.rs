//! Sums and maxima over a warp, in every lane. The whole warp calls them converged.

use super::{FULL_MASK, WARP_SIZE, redux_max_i32, redux_max_u32, shuffle_xor};
use crate::math;

/// The sum of `value` over the warp, in every lane: five shuffles.
#[inline(always)]
#[track_caller]
pub fn reduce_add(mut value: f32) -> f32 {
    let mut lane_mask = WARP_SIZE / 2;
    while lane_mask > 0 {
        value += shuffle_xor(value, lane_mask);
        lane_mask /= 2;
    }
    value
}

/// The greatest `value` of the warp, in every lane. Of f32, NaN is ignored unless all lanes hold
/// it, and +0 is greater than -0.
///
/// PTX: of `u32` and `i32` one
/// [`redux.sync.max`](https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-redux-sync)
/// (SM 80), of `f32` five
/// [`shfl.sync.bfly`](https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-shfl-sync)
/// and `max.f32`: neither SM 80 nor SM 90 has `redux.sync` of `f32`. CUDA C `__reduce_max_sync`.
#[inline(always)]
#[track_caller]
pub fn reduce_max<T: ReduceMax>(value: T) -> T {
    value.max_of_warp()
}

/// A type whose maximum over a warp [`reduce_max`] gives.
pub trait ReduceMax: Copy {
    #[doc(hidden)]
    #[track_caller]
    fn max_of_warp(self) -> Self;
}

impl ReduceMax for f32 {
    #[inline(always)]
    #[track_caller]
    fn max_of_warp(mut self) -> f32 {
        let mut lane_mask = WARP_SIZE / 2;
        while lane_mask > 0 {
            self = math::max(self, shuffle_xor(self, lane_mask));
            lane_mask /= 2;
        }
        self
    }
}

impl ReduceMax for u32 {
    #[inline(always)]
    #[track_caller]
    fn max_of_warp(self) -> u32 {
        redux_max_u32(FULL_MASK, self)
    }
}

impl ReduceMax for i32 {
    #[inline(always)]
    #[track_caller]
    fn max_of_warp(self) -> i32 {
        redux_max_i32(FULL_MASK, self)
    }
}
