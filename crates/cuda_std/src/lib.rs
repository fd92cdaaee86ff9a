//! The device's standard library: one function one PTX instruction, and thread, warp, shared memory
//! and copies on top.
//!
//! Names are rust-cuda's where it has them. Kernels reach global and shared memory through the
//! views [`Global`], [`GlobalMut`] and [`Shared`] alone, and hardware through the functions of this
//! crate alone, so that a kernel is the same text on the device and on the host.
//!
//! ```
//! use cuda_std::prelude::*;
//!
//! #[kernel(launch_bounds(256, 1))]
//! pub unsafe fn add_f32(len: u32, a: Global<f32>, b: Global<f32>, out: GlobalMut<f32>) {
//!     let i = thread::index_1d();
//!     if i < len {
//!         // SAFETY: the launch gives three views of `len` elements.
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
mod fp8;
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

pub use cuda_std_macros::kernel;
pub use element::Element;
pub use fp8::{E4m3, E5m2};
pub use global::{Global, GlobalMut};
pub use mbarrier::Mbarrier;
pub use packed::{Bf16x2, E4m3x2, E5m2x2, F16x2};
pub use shared::Shared;
pub use tensor_map::TensorMap;

/// A panic on the device stops the kernel: `trap`.
#[cfg(target_arch = "nvptx64")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: `trap` has no operands; it ends the launch with an error.
    unsafe { core::arch::nvptx::trap() }
}

/// The program in the page on the emulator is run with this crate's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/emulator.md")]
mod page_on_the_emulator {}
