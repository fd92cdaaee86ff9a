//! Bulk and tensor copies (TMA) of the asynchronous proxy, waited for by bulk groups or by an
//! mbarrier.

use super::with;
use crate::bulk::Destination;

/// How a bulk store combines its source with the destination's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// `.add`.
    Add,
    /// `.min`.
    Min,
    /// `.max`.
    Max,
}

/// `cp.async.bulk.shared::cluster.global`: copies `bytes` from `src` to `dst`, then adds them to
/// the transaction count of `mbarrier`; with `multicast`, in every block of the cluster whose bit
/// is set, at the same offsets.
#[track_caller]
pub fn bulk_load(dst: u32, src: u64, bytes: u32, mbarrier: u32, multicast: Option<u16>) {
    let to = Destination { address: dst, mbarrier, multicast };
    with(|machine, location| machine.bulk_load(to, src, bytes, location));
}

/// `cp.async.bulk.global.shared::cta`: copies `bytes` from `src` to `dst`, in the open bulk group.
#[track_caller]
pub fn bulk_store(dst: u64, src: u32, bytes: u32) {
    with(|machine, location| machine.bulk_store(dst, src, bytes, location));
}

/// `cp.async.bulk.shared::cluster.shared::cta`: copies `bytes` from the own block's `src` to
/// another block's `dst`, then adds them to the transaction count of that block's `mbarrier`.
#[track_caller]
pub fn bulk_copy_to_peer(dst: u32, src: u32, bytes: u32, mbarrier: u32) {
    let to = Destination { address: dst, mbarrier, multicast: None };
    with(|machine, location| machine.bulk_copy_to_peer(to, src, bytes, location));
}

/// `st.async.shared::cluster`: stores `words` to `dst` in a block of the cluster, then adds their
/// bytes to the transaction count of that block's `mbarrier`.
#[track_caller]
pub fn store_async(dst: u32, words: &[u32], mbarrier: u32) {
    let to = Destination { address: dst, mbarrier, multicast: None };
    with(|machine, location| machine.store_async(to, words, location));
}

/// `cp.async.bulk.tensor.shared::cluster.global.tile`: copies the box of the tensor map `map` at
/// `coords` (innermost first) to `dst`, with zeros outside of the tensor; otherwise as
/// [`bulk_load`].
#[track_caller]
pub fn tensor_load(
    dst: u32,
    map: &[u8; 128],
    coords: &[i32],
    mbarrier: u32,
    multicast: Option<u16>,
) {
    let to = Destination { address: dst, mbarrier, multicast };
    with(|machine, location| machine.tensor_load(to, map, coords, location));
}

/// `cp.async.bulk.tensor.global.shared::cta.tile`, with `reduce` `cp.reduce.async.bulk.tensor`:
/// copies the box at `src` to the part of it that is inside of the tensor, in the open bulk group.
#[track_caller]
pub fn tensor_store(map: &[u8; 128], coords: &[i32], src: u32, reduce: Option<Reduce>) {
    with(|machine, location| machine.tensor_store(map, coords, src, reduce, location));
}

/// `cp.async.bulk.commit_group`: commits the thread's bulk group.
#[track_caller]
pub fn bulk_commit_group() {
    with(|machine, _| {
        let thread = machine.current.1;
        machine.block().threads[thread].bulk.commit();
        Ok(())
    });
}

/// `cp.async.bulk.wait_group`: waits until at most `pending` of the thread's newest bulk groups are
/// pending; with `read_only` (`.read`) until the others have read their sources.
#[track_caller]
pub fn bulk_wait_group(pending: usize, read_only: bool) {
    with(|machine, _| machine.wait_bulk(pending, read_only));
}
