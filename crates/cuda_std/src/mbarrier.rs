//! mbarriers (SM 90): barriers in shared memory that count arrivals, and bytes of asynchronous
//! copies.
//!
//! A phase ends when the arrivals that the barrier was made for have come, and with them all bytes
//! that are expected; the next one begins at once. Phases are waited for by their parity: the first
//! one has parity 0, and the phase before it, of parity 1, counts as ended. So a consumer starts
//! with parity 0 on a full barrier, a producer with parity 1 on an empty one, and both flip it when
//! they come back to the same stage.

use crate::{Shared, cluster};
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// An mbarrier of the own block.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Mbarrier(u32);

impl Mbarrier {
    /// The barrier in the first element of `words`; those in the next ones are reached by
    /// [`Mbarrier::offset`].
    ///
    /// # Safety
    /// 1. The elements are inside the memory that the view stands for, and only the barriers'
    ///    functions and asynchronous copies access them until [`Mbarrier::inval`].
    /// 2. [`Mbarrier::init`] comes first, once, and is ordered before every other use: by a barrier
    ///    of the block for its threads, by [`fence::mbarrier_init`](crate::fence::mbarrier_init)
    ///    and a barrier of the cluster for other blocks and for asynchronous copies.
    #[inline(always)]
    pub unsafe fn new(words: Shared<u64>) -> Self {
        Mbarrier(words.element(0))
    }

    /// The barrier `stages` elements on.
    #[inline(always)]
    #[must_use]
    pub fn offset(self, stages: u32) -> Self {
        Mbarrier(self.0.wrapping_add(stages.wrapping_mul(size_of::<u64>() as u32)))
    }

    /// The same barrier of the cluster's block `rank`.
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
        /// Makes the barrier, in its first phase, of `count` arrivals a phase (1 to 2^20 - 1).
        "mbarrier.init.shared::cta.b64" => pub fn init(self, count: u32) {
            asm!("mbarrier.init.shared::cta.b64 [{}], {};", in(reg32) self.0, in(reg32) count,
                options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_init(self.0, count)
        }

        /// Ends the barrier: its memory can be used for something else.
        "mbarrier.inval.shared::cta.b64" => pub fn inval(self) {
            asm!("mbarrier.inval.shared::cta.b64 [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_inval(self.0)
        }

        /// Arrives; what the thread did before is seen by the block's threads that wait for the
        /// phase.
        "mbarrier.arrive.shared::cta.b64 _" => pub fn arrive(self) {
            asm!("mbarrier.arrive.shared::cta.b64 _, [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_arrive(self.0, 1);
        }

        /// Arrives `count` times at once; else as [`Mbarrier::arrive`].
        "mbarrier.arrive.shared::cta.b64 _, count" => pub fn arrive_count(self, count: u32) {
            asm!("mbarrier.arrive.shared::cta.b64 _, [{}], {};", in(reg32) self.0,
                in(reg32) count, options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_arrive(self.0, count);
        }

        /// Has the phase wait for `bytes` more of asynchronous copies, and then arrives.
        "mbarrier.arrive.expect_tx.shared::cta.b64 _" => pub fn arrive_expect_tx(self, bytes: u32) {
            asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{}], {};", in(reg32) self.0,
                in(reg32) bytes, options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_expect_tx(self.0, bytes);
            simt::device::mbarrier_arrive(self.0, 1);
        }

        /// Has the phase wait for `bytes` more of asynchronous copies, without an arrival.
        "mbarrier.expect_tx.shared::cta.b64" => pub fn expect_tx(self, bytes: u32) {
            asm!("mbarrier.expect_tx.shared::cta.b64 [{}], {};", in(reg32) self.0,
                in(reg32) bytes, options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_expect_tx(self.0, bytes)
        }

        /// Whether the phase of this parity (0 or 1) has ended; if not, the thread sleeps for a
        /// while first.
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

        /// Whether the phase of this parity (0 or 1) has ended, at once.
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

        /// Waits for the end of the phase of this parity (0 or 1): what was done before its
        /// arrivals, by threads of the block, and its copies are seen. What threads of other blocks
        /// did takes a barrier of the cluster.
        // In PTX a label is local to its braces.
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

        /// Arrives when all `cp.async` copies that the thread has started are done, and has the
        /// phase expect one arrival more: the count of [`Mbarrier::init`] does not include it.
        "cp.async.mbarrier.arrive.shared::cta.b64" => pub fn arrive_cp_async(self) {
            asm!("cp.async.mbarrier.arrive.shared::cta.b64 [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::copy_async_arrive(self.0, true)
        }

        /// Arrives when all `cp.async` copies that the thread has started are done: one of the
        /// arrivals that [`Mbarrier::init`] counts.
        "cp.async.mbarrier.arrive.noinc.shared::cta.b64" => pub fn arrive_cp_async_noinc(self) {
            asm!("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::copy_async_arrive(self.0, false)
        }
    }
}

/// An mbarrier of a block of the cluster, which only that block can wait for.
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
        /// Arrives at it. The block has not ended before: a barrier of the cluster sees to that.
        // `.release.cluster` would be two fences of all memory before it, and waiting threads
        // acquire no more than their block's either.
        "mbarrier.arrive.shared::cluster.b64 _" => pub fn arrive(self) {
            asm!("mbarrier.arrive.shared::cluster.b64 _, [{}];", in(reg32) self.0,
                options(nostack, preserves_flags));
        } host {
            simt::device::mbarrier_arrive(self.0, 1);
        }
    }
}
