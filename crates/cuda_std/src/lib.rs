//! The device's standard library: one function one PTX instruction, and thread, warp, shared memory and copies on top.
#![cfg_attr(target_arch = "nvptx64", no_std)]

#[cfg(not(target_arch = "nvptx64"))]
pub mod launch;
