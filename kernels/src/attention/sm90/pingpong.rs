//! Ping-pong scheduling (arXiv:2407.08608, section 3.1): the consumer warpgroups issue their MMAs in turn,
//! by named barriers.

use cuda_std::prelude::*;

/// Waits until it is this warpgroup's turn to issue MMAs.
#[inline(always)]
#[track_caller]
pub(super) fn wait(consumers: u32, warpgroup: u32) {
    match (consumers, warpgroup) {
        (_, 0) => barrier::sync::<1, 256>(),
        (2, _) | (_, 1) => barrier::sync::<2, 256>(),
        _ => barrier::sync::<3, 256>(),
    }
}

/// Lets the next warpgroup issue its MMAs.
#[inline(always)]
#[track_caller]
pub(super) fn pass_on(consumers: u32, warpgroup: u32) {
    match (consumers, warpgroup) {
        (_, 0) => barrier::arrive::<2, 256>(),
        (3, 1) => barrier::arrive::<3, 256>(),
        _ => barrier::arrive::<1, 256>(),
    }
}

/// Gives the first turn to the first warpgroup: the last one calls this once.
#[inline(always)]
#[track_caller]
pub(super) fn start() {
    barrier::arrive::<1, 256>();
}
