//! The GPU kernels and their launchers. The crate is built twice: as PTX for the GPU, and for the
//! host, which launches the kernels on a GPU or on the emulator.
//!
//! One operation, one file: the formula, the kernel, and a launcher that derives the launch
//! geometry from shapes. A launcher returns `Ok(None)` where there is nothing to compute.
//!
//! The launches of a step overlap on sm_90: a kernel calls `grid::wait_for_dependencies()` before it
//! reads what earlier launches write, and `grid::launch_dependents()` right after that
//! (`docs/measurements/overlap.md`).
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]
// Register tiles are matrices: rows and columns are clearer by index.
#![allow(clippy::needless_range_loop)]
// The index of an unrolled loop is a constant, and 0 in its first iteration.
#![allow(clippy::absurd_extreme_comparisons)]

pub mod activation;
pub mod all_reduce;
pub mod attention;
pub mod delta;
pub mod element;
pub mod empty;
pub mod encoder;
pub mod gate_rows;
pub mod gather_rows;
pub mod gemm;

pub mod kv_cache;
pub mod place_columns;
pub mod qk_norm;
pub mod quantise_rows;
pub mod rms_norm;
pub mod rope;
pub mod rope_append;
pub mod sampling;
pub mod scale;
pub mod sigmoid_gate;
pub mod softcap;
pub mod tile;

#[cfg(not(target_arch = "nvptx64"))]
mod dynamic_shared_bytes;
#[cfg(not(target_arch = "nvptx64"))]
pub use dynamic_shared_bytes::dynamic_shared_bytes;
#[cfg(not(target_arch = "nvptx64"))]
mod operand;
#[cfg(not(target_arch = "nvptx64"))]
pub use operand::Rows;
