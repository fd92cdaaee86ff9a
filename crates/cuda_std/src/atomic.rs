//! Atomic operations on elements of global and of shared memory, and what they order.
//!
//! Names and orders are those of Rust's `std::sync::atomic`; a [`Scope`] tells which threads take
//! part. Both are constants in a kernel: they are part of the instruction. An operation whose result
//! is not used becomes a reduction, `red`.
//!
//! ```
//! use cuda_std::atomic::{Order, Scope};
//! use cuda_std::prelude::*;
//!
//! /// Whether the own block is the last one that comes here, and may read what all have written.
//! unsafe fn is_last_block(counter: GlobalMut<u32>) -> bool {
//!     // SAFETY: one element, which nothing else uses.
//!     let arrived = unsafe { counter.fetch_add(0, 1, Order::AcqRel, Scope::Gpu) };
//!     arrived == thread::grid_dim_x() - 1
//! }
//! ```

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// What an atomic operation orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing.
    Relaxed,
    /// What the thread does behind it comes after what was released at the address.
    Acquire,
    /// What the thread did before it comes before what acquires it.
    Release,
    /// Both.
    AcqRel,
}

/// The threads among which an operation is atomic, and orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of the block. PTX `.cta`.
    Block,
    /// Those of the cluster (SM 90).
    Cluster,
    /// Those of the device.
    Gpu,
    /// All, of other devices and of the host too. PTX `.sys`.
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

// Behind the macro that they use.
mod elements;
#[cfg(not(target_arch = "nvptx64"))]
mod emulated;

instruction! {
    /// Orders what the thread did before it, and knew of, before what it writes behind it, for the
    /// threads of `scope`. CUDA C `__threadfence_block`, `__threadfence`, `__threadfence_system`.
    "fence.acq_rel" => pub fn fence(scope: Scope) {
        with_scope!(scope, ["fence.acq_rel"], [";"], options(nostack, preserves_flags))
    } host {
        simt::device::fence(scope.into())
    }

    /// Sleeps for at most twice `nanoseconds`, at most 1,000,000: between two looks at what another
    /// thread writes. CUDA C `__nanosleep`.
    "nanosleep.u32" => pub fn nanosleep(nanoseconds: u32) {
        asm!("nanosleep.u32 {};", in(reg32) nanoseconds, options(nomem, nostack, preserves_flags));
    } host {
        // The emulator has no time, and lets other threads run at every atomic operation.
        let _ = nanoseconds;
    }
}
