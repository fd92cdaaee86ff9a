//! The device code: built as PTX for the GPU, and for the host, where it is launched from.
//!
//! One operation, one file: the formula, the kernel, and a launcher which derives the launch from
//! shapes. A launcher gives `Ok(None)` where there is nothing to compute.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]
// The tiles of a thread are matrices: rows and columns are clearer by index.
#![allow(clippy::needless_range_loop)]

pub mod attention;
pub mod element;
pub mod gather_rows;
pub mod gemm;

pub mod kv_cache;
pub mod rms_norm;
pub mod rope;
pub mod rope_append;
pub mod sampling;
pub mod silu_mul;
pub mod tile;

#[cfg(not(target_arch = "nvptx64"))]
mod operand;
#[cfg(not(target_arch = "nvptx64"))]
pub use operand::Rows;
