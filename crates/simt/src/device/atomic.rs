//! Atomic operations and fences.

use super::with;
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
