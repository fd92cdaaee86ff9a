//! Atomic operations and fences.

use super::with;
use crate::access::{By, Span};
use crate::machine::Space;
use crate::schedule::suspend;

/// What an atomic operation orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    Relaxed,
    /// What was released at the address, before what the thread does later.
    Acquire,
    /// What the thread did before, before what acquires it.
    Release,
    /// Both.
    AcqRel,
}

/// The threads that an order includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The threads of the block.
    Block,
    /// The threads of the cluster.
    Cluster,
    /// The threads of the device.
    Gpu,
    /// All.
    System,
}

/// An atomic operation on the `len` bytes (1 to 8) at `address`: `update` turns the old value into
/// the new one, or into `None` if it only reads. Gives the old value.
///
/// Every call lets other threads run, so that a loop that polls makes progress.
#[track_caller]
pub fn atomic(
    (space, address): (Space, u64),
    len: usize,
    (order, scope): (Order, Scope),
    update: impl FnOnce(u64) -> Option<u64>,
) -> u64 {
    let old = with(|machine, location| {
        let mut changes = false;
        let update = |old| {
            let new = update(old);
            changes = new.is_some_and(|new| new != old);
            new
        };
        let old = machine.atomic((space, address), len, (order, scope), update, location)?;
        let change = machine.change_at(space, address)?;
        machine.let_others_run((!changes).then_some((change, location)));
        Ok(old)
    });
    suspend();
    old
}

/// A relaxed load of system scope, of the `len` bytes (1 to 8) at `address`: their value, if it is
/// the one that the thread waits for.
#[track_caller]
pub fn poll(place: (Space, u64), len: usize, is_wanted: impl FnOnce(u64) -> bool) -> Option<u64> {
    let value = with(|machine, location| {
        let value = machine.poll(place, len, is_wanted, location)?;
        let change = machine.change_at(place.0, place.1)?;
        machine.let_others_run(value.is_none().then_some((change, location)));
        Ok(value)
    });
    suspend();
    value
}

/// What the thread has just loaded, by [`poll`], is a message that it has received: who writes the
/// bytes again without an order after that has a race.
#[track_caller]
pub fn receive(place: (Space, u64), len: usize) {
    with(|machine, location| machine.receive(place, len, location));
}

/// A fault if `address` is no multiple of `align`: for an access that is made in parts.
#[track_caller]
pub fn check_alignment(space: Space, address: u64, align: usize) {
    with(|machine, location| {
        let span = Span::read(space, address, 1, align);
        machine.target(span, By::thread(location)).map(|_| ())
    });
}

/// A choice drawn from the seed, where hardware may do either.
#[track_caller]
pub fn flip() -> bool {
    with(|machine, _| Ok(machine.rng.flip()))
}

/// `fence.acq_rel`: later relaxed atomic writes release what the thread has done, and what earlier
/// relaxed atomic reads have seen is acquired.
#[track_caller]
pub fn fence(scope: Scope) {
    with(|machine, _| {
        machine.fence(scope);
        Ok(())
    });
}

/// `fence.proxy.async`: orders the thread's accesses, and those ordered before it, before later
/// asynchronous ones (of TMA and of `wgmma`).
#[track_caller]
pub fn fence_proxy_async() {
    with(|machine, _| {
        let thread = machine.current.1;
        machine.clock().fence_proxy(thread);
        Ok(())
    });
}

/// `fence.mbarrier_init.release.cluster`: publishes the thread's new mbarriers to asynchronous
/// copies, and to threads of the cluster after its barrier, even a relaxed one.
#[track_caller]
pub fn fence_mbarrier_init() {
    with(|machine, _| {
        machine.fence_mbarrier_init();
        Ok(())
    });
}
