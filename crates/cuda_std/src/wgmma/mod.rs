//! `wgmma`, the asynchronous MMA of a warpgroup (SM 90a): `D[64, n] = A[64, k] * B[k, n] (+ D)`.
//!
//! A warpgroup is four warps, 128 threads, whose first warp is a multiple of four; all of its
//! threads call every function here, converged. B is in shared memory, named by a
//! [`MatrixDescriptor`]; A likewise, or in registers as a [`FragmentA`]. D is in registers, in f32,
//! or in f16 for operands of f16: an [`Accumulator`], whose values can be read, or an [`InFlight`]
//! accumulator, which the tensor cores may be writing. Numerics, pipelining and ptxas's warnings:
//! [`InFlight`].
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
//!         // SAFETY: the caller does not write the tiles; the MMAs are committed and waited for.
//!         unsafe { d.mma(a.advance(k * 32), b.advance(k * 32), k > 0) };
//!     }
//!     wgmma::commit();
//!     d.wait::<0>()
//! }
//! ```

#[macro_use]
mod registers;

mod accumulator;
mod accumulator_type;
mod descriptor;
mod element;
mod in_flight;

pub use accumulator::{Accumulator, column, row};
pub use accumulator_type::{AccumulatorFor, AccumulatorType};
pub use descriptor::{KMajor, Major, MatrixDescriptor, MnMajor, Swizzle};
pub use element::Element;
pub use in_flight::{FragmentA, InFlight};

#[cfg(target_arch = "nvptx64")]
use {crate::warp::stay_converged, core::arch::asm};

/// Most groups that a wait can leave pending.
const MAX_PENDING: u32 = 7;

instruction! {
    /// Orders the thread's writes to registers before the MMAs that read them. Needed at the start
    /// of each iteration of a loop that keeps an accumulator in flight (ptxas inserts a missing
    /// one, C7519), after [`FragmentA::new`] for such an accumulator, and between MMAs of 16-bit
    /// and of 8-bit operands on one accumulator. [`Accumulator::start`] is one. CUTLASS
    /// `warpgroup_arrive`.
    "wgmma.fence.sync.aligned" => pub fn fence() {
        stay_converged();
        asm!("wgmma.fence.sync.aligned;", options(nostack, preserves_flags));
    } host {
        simt::device::wgmma_fence_registers()
    }

    /// Closes a group: the warpgroup's MMAs since the last one. CUTLASS `warpgroup_commit_batch`.
    "wgmma.commit_group.sync.aligned" => pub fn commit() {
        stay_converged();
        asm!("wgmma.commit_group.sync.aligned;", options(nostack, preserves_flags));
    } host {
        simt::device::wgmma_commit_group()
    }
}

/// Waits until at most `PENDING` of the newest groups are pending: the operands of older groups may
/// then be overwritten. Their accumulators can be read after their own [`wait`](InFlight::wait).
/// CUTLASS `warpgroup_wait`.
#[doc = ptx!("wgmma.wait_group.sync.aligned")]
#[inline(always)]
#[track_caller]
pub fn wait_group<const PENDING: u32>() {
    const { assert!(PENDING <= MAX_PENDING) };
    #[cfg(target_arch = "nvptx64")]
    // SAFETY: it has no register operands.
    unsafe {
        stay_converged();
        asm!("wgmma.wait_group.sync.aligned {};", const PENDING,
            options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "nvptx64"))]
    simt::device::wgmma_wait_group(PENDING as usize);
}
