//! Barriers of a block, named ones too, and of a cluster.

use super::{wait_until, with};
use crate::point::Point;
use crate::schedule::suspend;

/// `bar.sync`: waits until `num_threads` threads (if `None`, all that have not ended) have arrived
/// at barrier `id`, and orders their accesses before it before those after it.
#[track_caller]
pub fn bar_sync(id: u32, num_threads: Option<u32>) {
    let is_last = with(|machine, location| {
        machine.check_converged(Point::Barrier(id), "bar.sync", location)?;
        machine.bar_sync(id, num_threads, location)
    });
    if !is_last {
        suspend();
    }
}

/// `bar.arrive`: arrives at barrier `id` of `num_threads` threads, and does not wait.
#[track_caller]
pub fn bar_arrive(id: u32, num_threads: u32) {
    with(|machine, _| machine.bar_arrive(id, num_threads));
}

/// `barrier.cluster.arrive`: arrives at the cluster's barrier, and does not wait; with `release` it
/// orders the thread's earlier accesses.
#[track_caller]
pub fn cluster_arrive(release: bool) {
    with(|machine, _| machine.cluster_arrive(release));
}

/// `barrier.cluster.wait.acquire`: waits until all threads of the cluster that have not ended have
/// arrived.
#[track_caller]
pub fn cluster_wait() {
    wait_until(|machine, location| machine.cluster_wait(location));
}
