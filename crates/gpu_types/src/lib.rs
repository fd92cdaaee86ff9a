//! The nouns that kernels, their emulator and the host share, each once: no code of the device, and
//! no operating system.
#![cfg_attr(not(test), no_std)]

mod accumulate;
mod activation;
mod block_format;
mod cache;
mod dtype;
mod fp8;
mod geometry;
mod target;

pub use accumulate::Accumulate;
pub use activation::Activation;
pub use block_format::{BlockFacts, BlockFormat, OnGpu, TILE_K, TILE_ROWS, TileLayout, UNIT_K};
pub use cache::CacheType;
pub use dtype::{Dtype, FP8_BLOCK};
pub use fp8::{E4m3, E5m2};
pub use geometry::{Geometry, LaunchError};
pub use target::Target;

/// Positions in a page of the KV cache.
pub const PAGE_SIZE: u32 = 64;

/// What a block table has in place of a page that left with its window: nothing reads it.
pub const NO_PAGE: u32 = u32::MAX;

/// Flag of a token id of a step that is the token which the step before drew: the other bits are its
/// logit row there.
pub const DRAWN: u32 = 1 << 31;

/// Buffers in a device's memory, and what is laid out in one, start at multiples of this many bytes,
/// as `cuMemAlloc`'s do: whole sectors, and any alignment that a vector load or a tensor map needs.
pub const ALIGN_BYTES: usize = 256;
