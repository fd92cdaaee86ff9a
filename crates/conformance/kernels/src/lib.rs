//! Kernels of one instruction group each, small enough that an oracle of a few lines says what they write.
//!
//! Device code alone: inputs, launches and oracles are cases of the crate `conformance`.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

pub mod barrier;
pub mod cp_async;
pub mod math;
pub mod registers;
pub mod shuffle;
