//! Atomic operations on elements of global and shared memory, and fences.
//!
//! Names and memory orders are those of Rust's `std::sync::atomic`; a [`Scope`] says which threads
//! take part. Order and scope are constants in a kernel, since the instruction encodes them. ptxas
//! turns an operation whose result is unused into a reduction, `red`.
//!
//! ```
//! use cuda_std::atomic::{Order, Scope};
//! use cuda_std::prelude::*;
//!
//! /// Whether this block is the last to arrive, and may read what all blocks have written.
//! unsafe fn is_last_block(counter: GlobalMut<u32>) -> bool {
//!     // SAFETY: one element, which nothing else uses.
//!     let arrived = unsafe { counter.fetch_add(0, 1, Order::AcqRel, Scope::Gpu) };
//!     arrived == thread::grid_dim_x() - 1
//! }
//! ```

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// The memory order of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Atomic, without ordering other accesses.
    Relaxed,
    /// The thread's later accesses come after the accesses that were released at the address.
    Acquire,
    /// The thread's earlier accesses come before those of a thread that acquires the value.
    Release,
    /// [`Order::Acquire`] and [`Order::Release`].
    AcqRel,
}

/// The threads among which an operation is atomic and ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The block's threads, `.cta`.
    Block,
    /// The cluster's threads, `.cluster` (SM 90).
    Cluster,
    /// The device's threads, `.gpu`.
    Gpu,
    /// All threads, those of other devices and of the host included, `.sys`.
    System,
}

/// `asm!` of the instruction `head`, the scope, `tail`.
#[cfg(target_arch = "nvptx64")]
macro_rules! with_scope {
    ($scope:expr, [$($head:literal)+], [$($tail:literal)+], $($operands:tt)+) => {
        match $scope {
            Scope::Block => asm!(concat!($($head,)+ ".cta", $($tail),+), $($operands)+),
            Scope::Cluster => asm!(concat!($($head,)+ ".cluster", $($tail),+), $($operands)+),
            Scope::Gpu => asm!(concat!($($head,)+ ".gpu", $($tail),+), $($operands)+),
            Scope::System => asm!(concat!($($head,)+ ".sys", $($tail),+), $($operands)+),
        }
    };
}

// Declared after the macro that it uses.
mod elements;
#[cfg(not(target_arch = "nvptx64"))]
mod emulated;

instruction! {
    /// Orders the accesses that the thread made or observed before the fence before its accesses
    /// after it, for the threads of `scope`. CUDA C `__threadfence_block`, `__threadfence`,
    /// `__threadfence_system`.
    "fence.acq_rel" => pub fn fence(scope: Scope) {
        with_scope!(scope, ["fence.acq_rel"], [";"], options(nostack, preserves_flags))
    } host {
        simt::device::fence(scope.into())
    }

    /// Suspends the thread for up to twice `nanoseconds` (at most 1,000,000), for polling loops.
    /// CUDA C `__nanosleep`.
    "nanosleep.u32" => pub fn nanosleep(nanoseconds: u32) {
        asm!("nanosleep.u32 {};", in(reg32) nanoseconds, options(nomem, nostack, preserves_flags));
    } host {
        // The emulator has no clock, and switches threads at every atomic operation.
        let _ = nanoseconds;
    }
}
