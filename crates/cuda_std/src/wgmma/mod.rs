//! Asynchronous matrix products of a warpgroup (SM 90a): `D[64, n] = A[64, k] * B[k, n] (+ D)`.
//!
//! A warpgroup is four warps, 128 threads, the first of them a multiple of 128; all of them call
//! every function here, converged. B lies in shared memory and is named by a [`MatrixDescriptor`];
//! A likewise, or in registers as a [`FragmentA`]. D lies in registers: an [`Accumulator`], whose
//! values can be read, or an [`InFlight`] one, whose values cannot, since the tensor cores are
//! writing them. Its sums are f32, or f16 where the operands are.
//!
//! # Numerics
//! The products are exact. The emulator adds those of one instruction and D in f64 and rounds once,
//! to nearest, to f32 or f16. The ISA leaves order and rounding open; what tensor cores do is told
//! in [`crate::mma`]: in a step of k = 16, or 32 of 8-bit elements, they align and cut off, and D
//! is rounded behind each step. So f16 sums of `k` products are off by up to `k / 16` units in the
//! last place.
//!
//! ```
//! use cuda_std::wgmma::{self, Accumulator, KMajor, MatrixDescriptor, Swizzle};
//! use cuda_std::Shared;
//! use half::f16;
//!
//! /// `a[64, 64] * b[128, 64]^T`, both K-major with rows of 128 bytes.
//! unsafe fn tile(a: Shared<f16>, b: Shared<f16>) -> Accumulator<64> {
//!     let a = MatrixDescriptor::k_major(a, Swizzle::B128);
//!     let b = MatrixDescriptor::k_major(b, Swizzle::B128);
//!     let mut d = Accumulator::zero().start();
//!     for k in 0..4 {
//!         // SAFETY: the caller's tiles stay as they are; the product is committed and waited for.
//!         unsafe { d.mma(a.advance(k * 32), b.advance(k * 32), k > 0) };
//!     }
//!     wgmma::commit();
//!     d.wait::<0>()
//! }
//! ```
//!
//! To keep one group of products under way while the next is started, [`wait_group`] says which
//! groups have been read, so that their operands may be overwritten, and the accumulator stays in
//! flight; its own [`wait`](InFlight::wait) comes behind the loop. Each round has its [`fence`] or
//! [`Accumulator::start`] right before its products.
//!
//! Values live in registers only as long as LLVM sees constant indices, and ptxas keeps products
//! asynchronous only as long as no register of theirs is touched: it says otherwise by a warning
//! C75xx. So a [`FragmentA`] is made when no product that reads one is under way (C7513).

#[macro_use]
mod registers;

mod accumulator;
mod descriptor;
mod element;
mod in_flight;
mod sum;

pub use accumulator::{Accumulator, column, row};
pub use descriptor::{KMajor, Major, MatrixDescriptor, MnMajor, Swizzle};
pub use element::Element;
pub use in_flight::{FragmentA, InFlight};
pub use sum::{Sum, SumOf};

#[cfg(target_arch = "nvptx64")]
use {crate::warp::stay_converged, core::arch::asm};

/// Most groups that a wait can leave under way.
const MAX_PENDING: u32 = 7;

instruction! {
    /// Orders what the thread wrote to registers before the products that read them: at the head of
    /// each round of a loop that keeps an accumulator in flight (without it ptxas puts one there,
    /// C7519), and behind a [`FragmentA`] for such an accumulator. [`Accumulator::start`] is one.
    "wgmma.fence.sync.aligned" => pub fn fence() {
        stay_converged();
        asm!("wgmma.fence.sync.aligned;", options(nostack, preserves_flags));
    } host {
        // A thread of the emulator has no registers that could be late.
    }

    /// Closes a group: the warpgroup's products since the last one.
    "wgmma.commit_group.sync.aligned" => pub fn commit() {
        stay_converged();
        asm!("wgmma.commit_group.sync.aligned;", options(nostack, preserves_flags));
    } host {
        simt::device::wgmma_commit_group()
    }
}

/// Waits until at most `PENDING` of the newest groups are under way: what older ones read from
/// shared memory may be overwritten. Their accumulators are read after their own
/// [`wait`](InFlight::wait).
///
/// PTX `wgmma.wait_group.sync.aligned`.
#[inline(always)]
#[track_caller]
pub fn wait_group<const PENDING: u32>() {
    const { assert!(PENDING <= MAX_PENDING) };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: it waits, and touches nothing.
    unsafe {
        stay_converged();
        asm!("wgmma.wait_group.sync.aligned {};", const PENDING,
            options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::device::wgmma_wait_group(PENDING as usize);
}
