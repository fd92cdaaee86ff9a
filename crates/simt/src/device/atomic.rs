//! Atomic operations and fences.

use super::with;
use crate::machine::Space;
use crate::schedule::suspend;

/// What an atomic operation orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    Relaxed,
    /// What the thread does behind it comes after what was released at the address.
    Acquire,
    /// What the thread did before it comes before what acquires it.
    Release,
    /// Both.
    AcqRel,
}

/// Who takes part in an order.
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

/// An atomic operation on the `len` bytes (1 to 8) at `address`: `update` turns what is there into
/// what is written, or into `None` if it only reads. Gives what was there.
///
/// Every call lets other threads run, so that a loop that waits for one of them ends.
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

/// `fence.acq_rel`: orders what the thread did before it before what it writes atomically behind it,
/// and what it read atomically before it before what it does behind it.
#[track_caller]
pub fn fence(scope: Scope) {
    with(|machine, _| {
        machine.fence(scope);
        Ok(())
    });
}

/// `fence.proxy.async`: orders the thread's accesses, and those that it knows of, before
/// asynchronous ones (of TMA and of `wgmma`) that come after it.
#[track_caller]
pub fn fence_proxy_async() {
    with(|machine, _| {
        let thread = machine.current.1;
        machine.clock().fence_proxy(thread);
        Ok(())
    });
}

/// `fence.mbarrier_init.release.cluster`: makes the thread's new mbarriers known to asynchronous
/// copies, and to the threads of the cluster behind its barrier, a relaxed one too.
#[track_caller]
pub fn fence_mbarrier_init() {
    with(|machine, _| {
        machine.fence_mbarrier_init();
        Ok(())
    });
}
