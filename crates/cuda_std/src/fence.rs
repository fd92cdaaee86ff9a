//! Fences between a thread's own accesses, the generic proxy, and those of asynchronous copies and
//! `wgmma`, the asynchronous proxy (SM 90).

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

instruction! {
    /// Orders the thread's accesses to all memory, and those that it knows of, before asynchronous
    /// ones behind it.
    "fence.proxy.async" => pub fn proxy_async() {
        asm!("fence.proxy.async;", options(nostack, preserves_flags));
    } host {
        simt::device::fence_proxy_async()
    }

    /// As [`proxy_async`], for the block's shared memory alone: before a bulk store of what threads
    /// wrote there, and before `wgmma` reads it. CUDA C `fence_proxy_async(space_shared)`.
    "fence.proxy.async.shared::cta" => pub fn proxy_async_shared() {
        asm!("fence.proxy.async.shared::cta;", options(nostack, preserves_flags));
    } host {
        simt::device::fence_proxy_async()
    }

    /// As [`proxy_async`], for global memory alone: before a bulk load of what threads wrote there.
    "fence.proxy.async.global" => pub fn proxy_async_global() {
        asm!("fence.proxy.async.global;", options(nostack, preserves_flags));
    } host {
        simt::device::fence_proxy_async()
    }

    /// Makes the mbarriers that the thread has made known to asynchronous copies, and to the
    /// threads of the cluster behind its barrier.
    "fence.mbarrier_init.release.cluster" => pub fn mbarrier_init() {
        asm!("fence.mbarrier_init.release.cluster;", options(nostack, preserves_flags));
    } host {
        simt::device::fence_mbarrier_init()
    }
}
