//! The operations of a plan on the CPU, in f32, on rayon's threads: what the executor of `halfwarp` calls, operation by
//! operation.
//!
//! A crate of its own because its loops are compiled at the highest level in every profile.

pub mod activation;
pub mod activations;
pub mod attention;
pub mod delta;
mod dot;
mod elements;
mod error;
mod exp;
pub mod experts;
pub mod host_memory;
pub mod kv;
pub mod linear;
pub mod ops;
#[cfg(test)]
mod testing;
mod vectors;
pub mod weights;

pub use elements::round;
pub use error::{CpuError, OutOfMemory};
