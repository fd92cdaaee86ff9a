//! mbarriers: counters of arrivals and of bytes, in shared memory.
//!
//! An address may be one of another block of the cluster where the instruction allows it.

/// `mbarrier.init`: a barrier of `count` arrivals at `address`, a multiple of 8.
#[track_caller]
pub fn mbarrier_init(address: u32, count: u32) {
    let _ = (address, count);
    todo!()
}

/// `mbarrier.inval`: there is no barrier at `address` any longer.
#[track_caller]
pub fn mbarrier_inval(address: u32) {
    let _ = address;
    todo!()
}

/// `mbarrier.expect_tx`: the barrier's phase waits for `bytes` more.
#[track_caller]
pub fn mbarrier_expect_tx(address: u32, bytes: u32) {
    let _ = (address, bytes);
    todo!()
}

/// `mbarrier.arrive`: `count` arrivals, which order what the thread did before; gives the phase's
/// token.
#[track_caller]
pub fn mbarrier_arrive(address: u32, count: u32) -> u64 {
    let _ = (address, count);
    todo!()
}

/// `mbarrier.try_wait.parity`: waits for a while for the end of the phase of this parity, and tells
/// whether it has come. A barrier that is new is in phase 0; the phase before, of parity 1, has
/// ended.
#[track_caller]
pub fn mbarrier_try_wait(address: u32, parity: u32) -> bool {
    let _ = (address, parity);
    todo!()
}

/// `mbarrier.test_wait.parity`: tells at once whether the phase of this parity has ended.
#[track_caller]
pub fn mbarrier_test_wait(address: u32, parity: u32) -> bool {
    let _ = (address, parity);
    todo!()
}

/// `cp.async.mbarrier.arrive`: an arrival when all `cp.async` copies that the thread has started
/// are done; with `counted`, one more is expected in this phase (the form without `.noinc`).
#[track_caller]
pub fn copy_async_arrive(address: u32, counted: bool) {
    let _ = (address, counted);
    todo!()
}
