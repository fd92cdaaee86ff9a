//! The device code: compiled to PTX for the GPU, and for the host, where its launchers and tests
//! run.
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

pub mod block_sum;
pub mod saxpy;
