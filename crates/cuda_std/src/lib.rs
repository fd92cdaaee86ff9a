//! The device's standard library: one function per PTX instruction, and threads, warps, shared
//! memory and copies on top.
//!
//! Names are rust-cuda's where it has them. Kernels access global and shared memory only through
//! the views [`Global`], [`GlobalMut`] and [`Shared`], and hardware only through the functions of
//! this crate, so that one source runs on the device and on the emulator.
//!
//! The documentation of an instruction ends in its PTX mnemonic, linked to the section of the PTX
//! ISA, the least SM, and the threads that must be converged. If none are named, each thread may
//! call it on its own; instructions that take a mask of lanes are called by all lanes of the mask.
//!
//! ```
//! use cuda_std::prelude::*;
//!
//! #[kernel(launch_bounds(256, 1))]
//! pub unsafe fn add_f32(len: u32, a: Global<f32>, b: Global<f32>, out: GlobalMut<f32>) {
//!     let i = thread::index_1d();
//!     if i < len {
//!         // SAFETY: the launch passes three views of `len` elements.
//!         unsafe { out.set(i as usize, a.get(i as usize) + b.get(i as usize)) };
//!     }
//! }
//! # fn main() {}
//! ```
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(
    target_arch = "nvptx64",
    feature(
        abi_unadjusted,
        asm_experimental_arch,
        core_float_math,
        link_llvm_intrinsics,
        stdarch_nvptx
    )
)]
#![cfg_attr(target_arch = "nvptx64", allow(internal_features))]

#[macro_use]
mod isa;
#[macro_use]
mod instruction;

// The host bodies of instructions call `simt`; without the emulator that is this crate's own stand-in.
#[cfg(not(any(target_arch = "nvptx64", feature = "emulator")))]
extern crate self as simt;
#[cfg(not(any(target_arch = "nvptx64", feature = "emulator")))]
mod no_emulator;
#[cfg(not(any(target_arch = "nvptx64", feature = "emulator")))]
use no_emulator::{Space, device};

pub mod atomic;
pub mod barrier;
pub mod bf16x2;
pub mod bulk;
pub mod cluster;
pub mod convert;
pub mod cp_async;
mod element;
#[cfg(not(target_arch = "nvptx64"))]
mod emulated;
pub mod f16x2;
pub mod fence;
mod global;
pub mod grid;
#[cfg(not(target_arch = "nvptx64"))]
pub mod launch;
pub mod math;
pub mod matrix;
pub mod mbarrier;
pub mod mma;
mod packed;
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
pub mod param;
pub mod peer;
pub mod prelude;
pub mod registers;
#[cfg(not(target_arch = "nvptx64"))]
mod rounding;
pub mod shared;
pub mod tensor_map;
pub mod thread;
mod unroll;
pub mod warp;
pub mod wgmma;

pub use cuda_std_macros::{instance_set, kernel};
pub use element::Element;
pub use global::{Global, GlobalMut};
pub use gpu_types::{E4m3, E5m2};
pub use mbarrier::Mbarrier;
pub use packed::{Bf16x2, E4m3x2, E5m2x2, F16x2};
pub use shared::Shared;
pub use tensor_map::TensorMap;

/// A panic on the device ends the launch with an error: `trap`.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: `trap` has no operands.
    unsafe { core::arch::nvptx::trap() }
}

/// Runs the program of the emulator's page as a test of this crate.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/emulator.md")]
mod page_on_the_emulator {}
