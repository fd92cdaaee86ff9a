//! Tile configurations: types for the kernels, one table of all for the host.

pub mod fma;
pub mod mma;
#[cfg(not(target_arch = "nvptx64"))]
mod table;
pub mod wgmma;

#[cfg(not(target_arch = "nvptx64"))]
pub(crate) use table::dynamic_shared_bytes;
#[cfg(not(target_arch = "nvptx64"))]
pub use table::{
    FMA_TILES, FP8_FAST_TILES, FP8_TWO_LEVEL_TILES, MMA_TILES, TileConfig, WGMMA_TILES,
};
