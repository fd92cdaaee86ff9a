//! mbarriers: barriers in shared memory that count arrivals and the bytes of asynchronous copies.
//!
//! A phase completes when the expected number of arrivals and all expected bytes have arrived; the
//! next phase begins at once. Threads wait for a phase by its parity. The first phase has parity 0;
//! the phase before it, of parity 1, counts as complete. So a consumer starts with parity 0 on a
//! full barrier, a producer with parity 1 on an empty barrier, and both flip the parity each time
//! they return to a stage.

use crate::{Shared, cluster};
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// An mbarrier in the shared memory of this block.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Mbarrier(u32);

impl Mbarrier {
    /// The barrier in the first element of `words`; [`Mbarrier::offset`] returns those in the
    /// elements after it.
    ///
    /// # Safety
    /// 1. The elements are inside the memory of the view, and only the barriers' functions and
    ///    asynchronous copies access them until [`Mbarrier::inval`].
    /// 2. [`Mbarrier::init`] is called first, once, and is ordered before every other use: for the
    ///    block's threads by a barrier of the block; for other blocks and for asynchronous copies
    ///    by [`fence::mbarrier_init`](crate::fence::mbarrier_init) and a barrier of the cluster.
    #[inline(always)]
    pub unsafe fn new(words: Shared<u64>) -> Self {
        Mbarrier(words.element(0))
    }

    /// The barrier `stages` elements after this one.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, stages: u32) -> Self {
        Mbarrier(self.0.wrapping_add(stages.wrapping_mul(size_of::<u64>() as u32)))
    }

    /// The same barrier in block `rank` of the cluster.
    #[doc = ptx!("mapa.shared::cluster.u32")]
    #[inline(always)]
    #[track_caller]
    pub fn peer(self, rank: u32) -> PeerMbarrier {
        PeerMbarrier(cluster::mapa(self.0, rank))
    }

    /// Address in the shared window.
    #[inline(always)]
    pub(crate) fn address(self) -> u32 {
        self.0
    }

    instruction! {
        /// Initialises the barrier for `count` arrivals per phase (1 to 2^20 - 1). CUDA C
        /// `cuda::ptx::mbarrier_init`.
        "mbarrier.init.shared::cta.b64" => pub fn init(self, count: u32) {
            asm!("mbarrier.init.shared::cta.b64 [{}], {};", in(reg32) self.0, in(reg32) count,
                options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_init(self.0, count)
        }

        /// Invalidates the barrier, whose memory can then be reused. CUDA C
        /// `cuda::ptx::mbarrier_inval`.
        "mbarrier.inval.shared::cta.b64" => pub fn inval(self) {
            asm!("mbarrier.inval.shared::cta.b64 [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_inval(self.0)
        }

        /// Arrives on the barrier. The thread's earlier writes are visible to the block's threads
        /// that wait for the phase. CUDA C `cuda::ptx::mbarrier_arrive`.
        "mbarrier.arrive.shared::cta.b64 _" => pub fn arrive(self) {
            asm!("mbarrier.arrive.shared::cta.b64 _, [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_arrive(self.0, 1);
        }

        /// [`Mbarrier::arrive`] that counts as `count` arrivals. CUDA C
        /// `cuda::ptx::mbarrier_arrive`.
        "mbarrier.arrive.shared::cta.b64 _, count" => pub fn arrive_count(self, count: u32) {
            asm!("mbarrier.arrive.shared::cta.b64 _, [{}], {};", in(reg32) self.0,
                in(reg32) count, options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_arrive(self.0, count);
        }

        /// Adds `bytes` to what the phase expects of asynchronous copies, then arrives. CUDA C
        /// `cuda::ptx::mbarrier_arrive_expect_tx`.
        "mbarrier.arrive.expect_tx.shared::cta.b64 _" => pub fn arrive_expect_tx(self, bytes: u32) {
            asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {};", in(reg32) self.0,
                in(reg32) bytes, options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_expect_tx(self.0, bytes);
            simt::device::mbarrier_arrive(self.0, 1);
        }

        /// Adds `bytes` to what the phase expects of asynchronous copies, without an arrival. CUDA
        /// C `cuda::ptx::mbarrier_expect_tx`.
        "mbarrier.expect_tx.shared::cta.b64" => pub fn expect_tx(self, bytes: u32) {
            asm!("mbarrier.expect_tx.shared::cta.b64 [{}], {};", in(reg32) self.0,
                in(reg32) bytes, options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_expect_tx(self.0, bytes)
        }

        /// Whether the phase of this parity (0 or 1) is complete; if it is not, the thread is
        /// suspended for a time limit of the system first. CUDA C
        /// `cuda::ptx::mbarrier_try_wait_parity`.
        "mbarrier.try_wait.parity.shared::cta.b64" => pub fn try_wait(self, parity: u32) -> bool {
            let ended: u32;
            asm!(
                "{{",
                ".reg .pred ended;",
                "mbarrier.try_wait.parity.shared::cta.b64 ended, [{}], {};",
                "selp.u32 {}, 1, 0, ended;",
                "}}",
                in(reg32) self.0, in(reg32) parity, out(reg32) ended,
                options(nostack, preserves_flags)
            );
            ended != 0
        } host {
            simt::device::mbarrier_try_wait(self.0, parity)
        }

        /// Whether the phase of this parity (0 or 1) is complete, without suspending the thread.
        /// CUDA C `cuda::ptx::mbarrier_test_wait_parity`.
        "mbarrier.test_wait.parity.shared::cta.b64" => pub fn test_wait(self, parity: u32) -> bool {
            let ended: u32;
            asm!(
                "{{",
                ".reg .pred ended;",
                "mbarrier.test_wait.parity.shared::cta.b64 ended, [{}], {};",
                "selp.u32 {}, 1, 0, ended;",
                "}}",
                in(reg32) self.0, in(reg32) parity, out(reg32) ended,
                options(nostack, preserves_flags)
            );
            ended != 0
        } host {
            simt::device::mbarrier_test_wait(self.0, parity)
        }

        /// Waits until the phase of this parity (0 or 1) is complete. Writes of the block's threads
        /// before their arrivals, and the phase's copies, are then visible; writes of other blocks
        /// need a barrier of the cluster.
        // A PTX label is local to its braces.
        #[allow(named_asm_labels)]
        "mbarrier.try_wait.parity.shared::cta.b64, in a loop" => pub fn wait(self, parity: u32) {
            asm!(
                "{{",
                ".reg .pred ended;",
                "retry:",
                "mbarrier.try_wait.parity.shared::cta.b64 ended, [{}], {};",
                "@!ended bra retry;",
                "}}",
                in(reg32) self.0, in(reg32) parity, options(nostack, preserves_flags)
            );
        } host {
            while !simt::device::mbarrier_try_wait(self.0, parity) {}
        }

        /// Arrives once all `cp.async` copies that the thread has issued are complete, and adds one
        /// to the arrivals that the phase expects: the count of [`Mbarrier::init`] excludes it.
        /// CUDA C `cuda::ptx::cp_async_mbarrier_arrive`.
        "cp.async.mbarrier.arrive.shared::cta.b64" => pub fn arrive_cp_async(self) {
            asm!("cp.async.mbarrier.arrive.shared::cta.b64 [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::copy_async_arrive(self.0, true)
        }

        /// Arrives once all `cp.async` copies that the thread has issued are complete; the count of
        /// [`Mbarrier::init`] includes this arrival. CUDA C
        /// `cuda::ptx::cp_async_mbarrier_arrive_noinc`.
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64" => pub fn arrive_cp_async_noinc(self) {
            asm!("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::copy_async_arrive(self.0, false)
        }
    }
}

/// An mbarrier of another block of the cluster. Only its own block can wait on it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct PeerMbarrier(u32);

impl PeerMbarrier {
    /// Address in the cluster's shared window.
    #[inline(always)]
    pub(crate) fn address(self) -> u32 {
        self.0
    }

    instruction! {
        /// Arrives on it. The block must not have exited, which a barrier of the cluster can
        /// ensure. CUDA C `cuda::ptx::mbarrier_arrive`.
        // `.release.cluster` would add two fences of all memory, and the waiting threads acquire at
        // block scope only.
        "mbarrier.arrive.shared::cluster.b64 _" => pub fn arrive(self) {
            asm!("mbarrier.arrive.shared::cluster.b64 _, [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_arrive(self.0, 1);
        }
    }
}
