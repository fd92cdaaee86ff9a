//! Fences between the generic proxy (a thread's own accesses) and the async proxy (asynchronous
//! copies and `wgmma`), SM 90.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

instruction! {
    /// Orders the accesses that the thread made or observed, to any memory, before later accesses
    /// of the async proxy. CUDA C `cuda::ptx::fence_proxy_async`.
    "fence.proxy.async" => pub fn proxy_async() {
        asm!("fence.proxy.async;", options(nostack, preserves_flags));
    } host {
        simt::device::fence_proxy_async()
    }

    /// [`proxy_async`] for the block's shared memory alone: needed before a bulk store or a `wgmma`
    /// reads what threads wrote there. CUDA C `cuda::ptx::fence_proxy_async(space_shared)`.
    "fence.proxy.async.shared::cta" => pub fn proxy_async_shared() {
        asm!("fence.proxy.async.shared::cta;", options(nostack, preserves_flags));
    } host {
        simt::device::fence_proxy_async()
    }

    /// [`proxy_async`] for global memory alone: needed before a bulk load reads what threads wrote
    /// there. CUDA C `cuda::ptx::fence_proxy_async(space_global)`.
    "fence.proxy.async.global" => pub fn proxy_async_global() {
        asm!("fence.proxy.async.global;", options(nostack, preserves_flags));
    } host {
        simt::device::fence_proxy_async()
    }

    /// Makes the thread's mbarrier initialisations visible to asynchronous copies, and to the
    /// cluster's threads after its barrier. CUDA C `cuda::ptx::fence_mbarrier_init`.
    "fence.mbarrier_init.release.cluster" => pub fn mbarrier_init() {
        asm!("fence.mbarrier_init.release.cluster;", options(nostack, preserves_flags));
    } host {
        simt::device::fence_mbarrier_init()
    }
}
