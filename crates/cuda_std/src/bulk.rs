//! Bulk copies and tensor copies (TMA, SM 90): one thread issues a copy of many bytes, which
//! completes on an mbarrier or in a bulk group.
//!
//! Copies access memory through the async proxy: a [`fence`](crate::fence) must order a thread's
//! own writes before a copy that reads them. Loaded bytes are visible to threads that wait on the
//! copy's mbarrier, which expects them by [`Mbarrier::arrive_expect_tx`](Mbarrier). Stored bytes
//! are visible after [`wait_group`].

mod tensor;

pub use tensor::{Coords, tensor_load, tensor_load_multicast, tensor_reduce_add, tensor_store};

use crate::cluster::PeerShared;
use crate::mbarrier::{Mbarrier, PeerMbarrier};
use crate::{Global, GlobalMut, Shared};
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// L2 eviction priority of the bytes that a copy loads: a policy of `createpolicy.fractional` for
/// all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum CacheHint {
    /// The priority of any other load.
    EvictNormal = 0x1000_0000_0000_0000,
    /// Evicted first: for bytes that are read once.
    EvictFirst = 0x12F0_0000_0000_0000,
    /// Evicted last: for bytes that many blocks read.
    EvictLast = 0x14F0_0000_0000_0000,
}

/// Copies `bytes` (a multiple of 16) from `src` to `dst`, completing on `mbarrier`. CUDA C
/// `cuda::device::memcpy_async_tx`.
#[doc = ptx!("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint")]
///
/// # Safety
/// 1. The bytes are inside both views, both 16-byte aligned.
/// 2. No thread reads or writes them in `dst`, or writes them in `src`, until the phase of
///    `mbarrier` that expects them has completed.
#[inline(always)]
#[track_caller]
pub unsafe fn load<T: Copy>(
    dst: Shared<T>,
    src: Global<T>,
    bytes: u32,
    mbarrier: Mbarrier,
    hint: CacheHint,
) {
    // SAFETY: the caller's promise.
    unsafe { bulk_load(dst.element(0), src.as_ptr().cast(), bytes, mbarrier.address(), hint) }
}

/// [`load`] to the same address in every block of the cluster whose bit is set in `blocks`; the
/// copy completes on each block's own `mbarrier`. CUDA C `cuda::ptx::cp_async_bulk`.
#[doc = ptx!(
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
)]
///
/// # Safety
/// As [`load`], in each of the blocks, none of which has exited.
#[inline(always)]
#[track_caller]
pub unsafe fn load_multicast<T: Copy>(
    dst: Shared<T>,
    src: Global<T>,
    bytes: u32,
    mbarrier: Mbarrier,
    blocks: u16,
    hint: CacheHint,
) {
    let (dst, src) = (dst.element(0), src.as_ptr().cast());
    // SAFETY: the caller's promise.
    unsafe { bulk_load_multicast(dst, src, bytes, mbarrier.address(), blocks, hint) }
}

/// Copies `bytes` (a multiple of 16) from `src` to `dst`, in the thread's current bulk group. CUDA
/// C `cuda::ptx::cp_async_bulk`.
#[doc = ptx!("cp.async.bulk.global.shared::cta.bulk_group")]
///
/// # Safety
/// 1. The bytes are inside both views, both 16-byte aligned.
/// 2. No thread writes them in `src` until [`wait_group_read`] has waited for the group, or reads
///    or writes them in `dst` until [`wait_group`] has.
#[inline(always)]
#[track_caller]
pub unsafe fn store<T: Copy>(dst: GlobalMut<T>, src: Shared<T>, bytes: u32) {
    // SAFETY: the caller's promise.
    unsafe { bulk_store(dst.as_ptr().cast(), src.element(0), bytes) }
}

/// Copies `bytes` (a multiple of 16) from `src` to `dst` in another block of the cluster,
/// completing on `mbarrier` in that block. CUDA C `cuda::ptx::cp_async_bulk`.
#[doc = ptx!("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes")]
///
/// # Safety
/// 1. The bytes are inside both views, both 16-byte aligned; the other block has not exited.
/// 2. No thread reads or writes them in `dst`, or writes them in `src`, until the phase of
///    `mbarrier` that expects them has completed.
#[inline(always)]
#[track_caller]
pub unsafe fn copy_to_peer<T: Copy>(
    dst: PeerShared<T>,
    src: Shared<T>,
    bytes: u32,
    mbarrier: PeerMbarrier,
) {
    // SAFETY: the caller's promise.
    unsafe { bulk_copy_to_peer(dst.element(0), src.element(0), bytes, mbarrier.address()) }
}

instruction! {
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint" =>
    unsafe fn bulk_load(dst: u32, src: *const u8, bytes: u32, mbarrier: u32, hint: CacheHint) {
        asm!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint \
             [{}], [{}], {}, [{}], {};",
            in(reg32) dst, in(reg64) src, in(reg32) bytes, in(reg32) mbarrier,
            in(reg64) hint as u64, options(nostack, preserves_flags)
        );
    } host {
        // The emulator has no caches.
        let _ = hint;
        simt::device::bulk_load(dst, src.addr() as u64, bytes, mbarrier, None)
    }

    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint" =>
    unsafe fn bulk_load_multicast(
        dst: u32, src: *const u8, bytes: u32, mbarrier: u32, blocks: u16, hint: CacheHint
    ) {
        asm!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes\
             .multicast::cluster.L2::cache_hint [{}], [{}], {}, [{}], {}, {};",
            in(reg32) dst, in(reg64) src, in(reg32) bytes, in(reg32) mbarrier, in(reg16) blocks,
            in(reg64) hint as u64, options(nostack, preserves_flags)
        );
    } host {
        let _ = hint;
        simt::device::bulk_load(dst, src.addr() as u64, bytes, mbarrier, Some(blocks))
    }

    "cp.async.bulk.global.shared::cta.bulk_group" =>
    unsafe fn bulk_store(dst: *mut u8, src: u32, bytes: u32) {
        asm!("cp.async.bulk.global.shared::cta.bulk_group [{}], [{}], {};", in(reg64) dst,
            in(reg32) src, in(reg32) bytes, options(nostack, preserves_flags));
    } host {
        simt::device::bulk_store(dst.addr() as u64, src, bytes)
    }

    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes" =>
    unsafe fn bulk_copy_to_peer(dst: u32, src: u32, bytes: u32, mbarrier: u32) {
        asm!(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes \
             [{}], [{}], {}, [{}];",
            in(reg32) dst, in(reg32) src, in(reg32) bytes, in(reg32) mbarrier,
            options(nostack, preserves_flags)
        );
    } host {
        simt::device::bulk_copy_to_peer(dst, src, bytes, mbarrier)
    }

    /// Closes a bulk group: the thread's bulk stores since the last one. CUDA C
    /// `cuda::ptx::cp_async_bulk_commit_group`.
    "cp.async.bulk.commit_group" => pub fn commit_group() {
        asm!("cp.async.bulk.commit_group;", options(nostack, preserves_flags));
    } host {
        simt::device::bulk_commit_group()
    }

    /// Waits until at most `PENDING` of the thread's newest bulk groups are pending; the stores of
    /// the older groups are complete. CUDA C `cuda::ptx::cp_async_bulk_wait_group`.
    "cp.async.bulk.wait_group PENDING" => pub fn wait_group<const PENDING: u32>() {
        asm!("cp.async.bulk.wait_group {};", const PENDING, options(nostack, preserves_flags));
    } host {
        simt::device::bulk_wait_group(PENDING as usize, false)
    }

    /// Waits until all but at most `PENDING` of the thread's newest bulk groups have read their
    /// sources, which may then be overwritten. CUDA C `cuda::ptx::cp_async_bulk_wait_group_read`.
    "cp.async.bulk.wait_group.read PENDING" => pub fn wait_group_read<const PENDING: u32>() {
        asm!("cp.async.bulk.wait_group.read {};", const PENDING, options(nostack, preserves_flags));
    } host {
        simt::device::bulk_wait_group(PENDING as usize, true)
    }
}
