//! Linear layers of prompts and batches whose weight stays quantised: the layers of
//! [`quantised`](super), for any number of rows.
//!
//! Shapes    those of [`gemm_f16_quantised`](super::gemm_f16_quantised()), any number of rows.
//! Launch    a block for 128 rows of the weight and 64 or 128 rows of x, or a cluster of blocks that
//!           split k.
//! Numerics  elements of the weight are rounded to f16, as a dense copy has them, after mins that are
//!           products; MMAs of k = 16 in f32; with split-K the partial sums are added in the order of
//!           k. One rounding at the store; gate and up are rounded before they are multiplied.
//! Bound     tensor cores, and the instructions that dequantise.
//! Source    CUTLASS (mixed-input GEMM: operand A in registers); DeepGEMM ("swap A/B").
//!
//! Operands are swapped: a warp has a row of tiles of the weight, the 16 rows of A that `wgmma` and
//! `mma.sync` take from its registers. It loads tiles from global memory a tile ahead, and
//! dequantises a step of 16 k at a time. x is in shared memory, a unit of 64 k a stage.
//!
//! Measurements: `docs/measurements/gemm_quantised_prompts.md`.

mod epilogue;
pub(in crate::gemm) mod fragment;
#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
pub mod mma;
pub mod wgmma;

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::QuantisedPrompt;

use super::format::{Format, TILE_ROWS, TilePtr, Tiles, UNIT_K};
use cuda_std::prelude::*;

/// Warps that multiply, each a row of tiles of the weight.
const NUM_WARPS: u32 = 8;

/// Threads of them.
const MMA_THREADS: u32 = NUM_WARPS * warp::WARP_SIZE;

/// Rows of the weight of a block.
const BLOCK_COLUMNS: u32 = NUM_WARPS * TILE_ROWS;

/// Bytes of a row of x in a stage.
const ROW_BYTES: u32 = UNIT_K * 2;

/// Rows of x of a block: the columns of `regs` accumulators a thread.
const fn num_rows_of(regs: usize) -> u32 {
    2 * regs as u32
}

/// Columns of the output of a block, of a weight of one or two parts.
#[inline(always)]
const fn columns_of(num_parts: u32) -> u32 {
    BLOCK_COLUMNS >> (num_parts - 1)
}

/// The tile of the output: along the columns, and along `row_tiles` rows, which is the faster, so
/// that blocks that run at the same time read few rows of the weight.
#[inline(always)]
fn tile_of(block: u32, row_tiles: u32) -> [u32; 2] {
    // Never 0; `max` tells the compiler.
    let row_tiles = row_tiles.max(1);
    [block / row_tiles, block % row_tiles]
}

/// The tiles of a warp: a row of tiles, of gate and of up in turn where there are both.
#[derive(Clone, Copy)]
struct WarpTiles {
    tiles: Tiles,
    /// Row of tiles of its part.
    row: u32,
    /// Whether it exists.
    exists: bool,
    /// One past the block's last tile along k.
    end: u32,
}

impl WarpTiles {
    /// The tiles of the warp in the block of column `column_tile`, of `n` rows of each part.
    #[inline(always)]
    fn new(tiles: Tiles, column_tile: u32, num_parts: u32, n: u32, end: u32) -> Self {
        let tile_row = column_tile * NUM_WARPS + warp::warp_idx();
        let part_rows = n.div_ceil(TILE_ROWS);
        let (part, row) = (tile_row & (num_parts - 1), tile_row >> (num_parts - 1));
        WarpTiles { tiles: tiles.below(part * part_rows), row, exists: row < part_rows, end }
    }

    #[inline(always)]
    fn tile<F: Format>(&self, tile: u32) -> TilePtr {
        self.tiles.tile::<F>(self.row, tile, self.exists && tile < self.end)
    }
}
