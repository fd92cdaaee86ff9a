//! mbarriers: counters of arrivals and of bytes, in shared memory.
//!
//! Where the instruction allows it, an address may be in another block of the cluster.

use super::{wait_until, with};
use crate::machine::Space;
use crate::schedule::suspend;

/// `mbarrier.init`: a barrier of `count` arrivals at `address`, a multiple of 8.
#[track_caller]
pub fn mbarrier_init(address: u32, count: u32) {
    with(|machine, location| machine.mbarrier_init(address, count, location));
}

/// `mbarrier.inval`: removes the barrier at `address`.
#[track_caller]
pub fn mbarrier_inval(address: u32) {
    with(|machine, location| machine.mbarrier_inval(address, location));
}

/// `mbarrier.expect_tx`: the barrier's phase expects `bytes` more.
#[track_caller]
pub fn mbarrier_expect_tx(address: u32, bytes: u32) {
    with(|machine, location| {
        let id = machine.mbarrier(Space::Cluster, address, location)?;
        machine.mbarrier_expect(id, bytes)
    });
}

/// `mbarrier.arrive`: `count` arrivals, which release the thread's earlier accesses; gives the
/// phase's token.
#[track_caller]
pub fn mbarrier_arrive(address: u32, count: u32) -> u64 {
    with(|machine, location| {
        let id = machine.mbarrier(Space::Cluster, address, location)?;
        let thread = machine.current.1;
        let knowledge = machine.clock().release(thread);
        machine.mbarrier_arrive(id, count, &knowledge)
    })
}

/// `mbarrier.try_wait.parity`: waits, for a limited time, for the end of the phase of this parity;
/// whether it has ended. A new barrier is in phase 0; its previous phase, of parity 1, counts as
/// ended.
#[track_caller]
pub fn mbarrier_try_wait(address: u32, parity: u32) -> bool {
    let mut gives_up = false;
    let ended = with(|machine, location| {
        let id = machine.mbarrier(Space::Shared, address, location)?;
        // The limited time may be none at all.
        gives_up = machine.rng.below(8) == 0;
        machine.mbarrier_test(id, parity, !gives_up, location)
    });
    if ended {
        return true;
    }
    suspend();
    if !gives_up {
        wait_until(|machine, location| {
            let id = machine.mbarrier(Space::Shared, address, location)?;
            machine.mbarrier_test(id, parity, true, location)
        });
    }
    !gives_up
}

/// `mbarrier.test_wait.parity`: whether the phase of this parity has ended, without a wait.
#[track_caller]
pub fn mbarrier_test_wait(address: u32, parity: u32) -> bool {
    let ended = with(|machine, location| {
        let id = machine.mbarrier(Space::Shared, address, location)?;
        machine.mbarrier_test(id, parity, false, location)
    });
    if !ended {
        suspend();
    }
    ended
}

/// `cp.async.mbarrier.arrive`: arrives when all `cp.async` copies that the thread has started are
/// complete; with `counted`, the phase expects one arrival more (the form without `.noinc`).
#[track_caller]
pub fn copy_async_arrive(address: u32, counted: bool) {
    with(|machine, location| {
        let id = machine.mbarrier(Space::Shared, address, location)?;
        machine.end_copies()?;
        if counted {
            machine.mbarrier_expect_arrival(id);
        }
        let thread = machine.current.1;
        let knowledge = machine.clock().release(thread);
        machine.mbarrier_arrive(id, 1, &knowledge)
    });
}
