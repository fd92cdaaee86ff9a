//! Atomic operations and fences.

use crate::machine::Space;

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
    let _ = (space, address, len, order, scope);
    let _ = update(0);
    todo!()
}

/// `fence.acq_rel`: orders what the thread did before it before what it writes atomically behind it,
/// and what it read atomically before it before what it does behind it.
#[track_caller]
pub fn fence(scope: Scope) {
    let _ = scope;
    todo!()
}

/// `fence.proxy.async`: orders the thread's accesses, and those that it knows of, before
/// asynchronous ones (of TMA and of `wgmma`) that come after it.
#[track_caller]
pub fn fence_proxy_async() {
    todo!()
}

/// `fence.mbarrier_init.release.cluster`: makes the thread's new mbarriers known to asynchronous
/// copies.
#[track_caller]
pub fn fence_mbarrier_init() {
    todo!()
}
