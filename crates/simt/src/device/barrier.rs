//! Barriers of a block, named ones too, and of a cluster.

use super::{wait_until, with};
use crate::point::Point;
use crate::schedule::suspend;

/// `bar.sync`: waits until `num_threads` threads (of all that have not ended, if `None`) have come to
/// barrier `id`, and orders what they did before it before what they do behind it.
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

/// `bar.arrive`: comes to barrier `id` of `num_threads` threads, and goes on.
#[track_caller]
pub fn bar_arrive(id: u32, num_threads: u32) {
    with(|machine, _| machine.bar_arrive(id, num_threads));
}

/// `barrier.cluster.arrive`: comes to the cluster's barrier, and goes on; `release` if what the
/// thread did before is to be ordered.
#[track_caller]
pub fn cluster_arrive(release: bool) {
    with(|machine, _| machine.cluster_arrive(release));
}

/// `barrier.cluster.wait.acquire`: waits until all threads of the cluster that have not ended have
/// come to its barrier.
#[track_caller]
pub fn cluster_wait() {
    wait_until(|machine, location| machine.cluster_wait(location));
}
