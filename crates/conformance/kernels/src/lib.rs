//! One kernel per instruction group, small enough for an oracle of a few lines.
//!
//! Device code only: inputs, launches and oracles are cases of the crate `conformance`.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

pub mod atomic;
pub mod barrier;
pub mod bulk;
pub mod cluster;
pub mod convert;
pub mod cp_async;
pub mod f16x2;
pub mod griddepcontrol;
pub mod math;
pub mod matrix;
pub mod mbarrier;
pub mod mma;
pub mod named_barrier;
pub mod ordering;
pub mod peer;
pub mod reduce;
pub mod registers;
pub mod setmaxnreg;
pub mod shuffle;
pub mod tensor;
pub mod vote;
pub mod wgmma;
