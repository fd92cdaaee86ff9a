//! Linear layers of up to 16 rows whose weight stays quantised: `out[m, n] = sum_k x[m, k] *
//! weight[n, k] (+ bias[n]) (+ residual[m, n])`, or `activation(gate) * up` of a stacked weight.
//!
//! Shapes    x `[m, k]` f16, or f32 that is normed, m at most 16; weight `[n, k]` in tiles, see
//!           [`mod@format`], k a multiple of its blocks; bias `[n]`, residual `[m, n]` f32; out
//!           `[m, n]`, f32 (may be residual) or f16; row strides; rows of x 16-byte aligned. Gate:
//!           tiles of gate, then of up, bias `[2 * n]`, no residual.
//! Launch    grid of at most one block an SM, block `(512, 1, 1)`. A block has a contiguous range
//!           of rows of tiles. Its 16 warps take one to four of them at a time, and split k: shared
//!           memory holds x, the sums of its groups, and the warps' partial sums.
//! Numerics  quants are exact in f16; products are accumulated in f32 over a group of the format,
//!           then scaled in f32. A warp accumulates every `k_warps`-th tile along k in order; the
//!           epilogue adds warps in fours. The order depends on the weight and the GPU alone, so a
//!           row has the same bits in any batch. One rounding at the store; gate and up are rounded
//!           before they are multiplied.
//! Bound     memory: the weight is read once; the first loads of it are issued before the wait for
//!           the previous launch.
//!
//! Q4_K, Q5_K and Q6_K have a kernel of their own on sm_90a, in `streamed`.

pub mod dequantise;
mod epilogue;
pub mod format;
pub mod gather;
mod input;
mod mainloop;
mod norm;
pub mod prompt;
mod ring;
pub mod streamed;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub(in crate::gemm) mod packed;
#[cfg(not(target_arch = "nvptx64"))]
pub use gpu_types::BlockFormat;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{QuantisedLinear, QuantisedOperands};
#[cfg(not(target_arch = "nvptx64"))]
pub use packed::pack;

use crate::activation::GateArg;
use cuda_std::prelude::*;
use epilogue::{BiasAndResidual, Epilogue, Outputs, num_partials, store_partials};
use format::{BLOCKS, Format, Tile, TilePtr, Tiles};
use half::f16;
use input::{Input, LaneInput};
use mainloop::{AccTiles, multiply};
use norm::Norm;
use ring::Ring;

/// Warps of a block.
const NUM_WARPS: u32 = 16;

/// Threads of a block.
const NUM_THREADS: u32 = NUM_WARPS * warp::WARP_SIZE;

/// How the warps of a block share its work.
#[derive(Clone, Copy)]
pub(crate) struct WarpSplit {
    /// Warps that split k: 4, 8 or 16.
    k_warps_log2: u32,
    gate: GateArg,
}

impl WarpSplit {
    /// Rows of tiles of a round, of each part.
    #[inline(always)]
    fn row_tiles(self) -> u32 {
        (NUM_WARPS >> self.k_warps_log2) / self.gate.num_parts()
    }

    /// The warp's part, its row of tiles in a round, and its place among those that split k.
    #[inline(always)]
    fn warp_indices(self) -> [u32; 3] {
        let group = warp::warp_idx() >> self.k_warps_log2;
        let k_warp = warp::warp_idx() % (1 << self.k_warps_log2);
        [group % self.gate.num_parts(), group / self.gate.num_parts(), k_warp]
    }
}

/// A warp's next tile of the weight.
#[derive(Clone, Copy)]
struct Cursor {
    split: WarpSplit,
    /// Row of tiles, of the warp's part; one past the block's last.
    row: u32,
    end: u32,
    /// Tile along k.
    tile: u32,
    tiles: Tiles,
}

impl Cursor {
    /// The warp's first tile.
    #[inline(always)]
    fn new(split: WarpSplit, tiles: Tiles, [first, end]: [u32; 2], part_rows: u32) -> Self {
        let [part, row, k_warp] = split.warp_indices();
        Cursor { split, row: first + row, end, tile: k_warp, tiles: tiles.below(part * part_rows) }
    }

    /// The tile, none past the last one; moves to the next one.
    #[inline(always)]
    fn take<F: Format>(&mut self) -> TilePtr {
        let is_inside = self.row < self.end && self.tile < self.tiles.num_tiles;
        let tile = self.tiles.tile::<F>(self.row, self.tile, is_inside);
        self.tile += 1 << self.split.k_warps_log2;
        if self.tile >= self.tiles.num_tiles {
            self.tile = self.split.warp_indices()[2];
            self.row += self.split.row_tiles();
        }
        tile
    }
}

/// Where a warp's tiles come from: a ring, or registers, into which the next tile is loaded.
enum TileSource<F: Format, const RING: bool> {
    Ring(Ring),
    Registers(Cursor, Tile<F>),
}

impl<F: Format, const RING: bool> TileSource<F, RING> {
    /// Issues the loads of the warp's first tiles.
    ///
    /// # Safety
    /// As [`Ring::new`]; without a ring `smem` is not used.
    #[inline(always)]
    unsafe fn new(smem: Shared<u8>, mut cursor: Cursor) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            if RING {
                TileSource::Ring(Ring::new::<F>(smem, cursor))
            } else {
                let first = cursor.take::<F>().load::<F>();
                TileSource::Registers(cursor, first)
            }
        }
    }

    /// Multiplies the warp's next tile with `x`, see [`multiply`].
    ///
    /// # Safety
    /// As [`TileSource::new`] and [`multiply`].
    #[inline(always)]
    unsafe fn multiply<const TILES_M: usize>(
        &mut self,
        x: &LaneInput<TILES_M>,
        acc: &mut AccTiles<TILES_M>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                TileSource::Ring(ring) => {
                    let tile = Tile::<F>::load(ring.next::<F>());
                    multiply::<F, TILES_M>(&tile, x, acc);
                }
                TileSource::Registers(cursor, next) => {
                    let tile = *next;
                    let ptr = cursor.take::<F>();
                    multiply::<F, TILES_M>(&tile, x, acc);
                    // Not earlier: there are no registers for a second tile.
                    *next = ptr.load::<F>();
                }
            }
        }
    }
}

/// A block computes up to `8 * TILES_M` rows by its rows of tiles.
///
/// # Safety
/// 1. `num_rows` is one element, at most `max_rows`, which is from 1 to `8 * TILES_M`. `x` holds
///    `max_rows` rows, the output and `residual` `num_rows`, at their strides; `weight` holds the
///    tiles of as many weights `[n, k]` of the format `F` as `gate`, a `GateArg`, has parts, and
///    `bias` an element for each of their rows. `bias` and `residual` may be null. The output is
///    `out_f32`, or `out` if `out_f32` is null.
/// 2. The output is `residual`, or overlaps nothing that is read.
/// 3. Rows of `x` are 16-byte aligned, and so is `weight`; `k` is a multiple of 32.
/// 4. `2^k_warps_log2` is 4, 8 or 16, with a gate at most 8. Shared memory holds `chunk_tiles` tiles
///    of x along k, at least one, and two rounds of partial sums.
/// 5. `norm_weight` is null, or holds `k` elements, 16-byte aligned; elements of `x` are then f32,
///    `chunk_tiles` are all, and `max_rows` is at most 8.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        F in BLOCKS,
        gemm_f16_ring_{F}_m8 = <F, 1, true>,
        // These are streamed.
        except(gemm_f16_ring_q4_k_m8, gemm_f16_ring_q5_k_m8, gemm_f16_ring_q6_k_m8),
        gemm_f16_{F}_m16 = <F, 2, false>
    )
)]
pub unsafe fn gemm_f16_quantised<F: Format, const TILES_M: usize, const RING: bool>(
    num_rows: Global<u32>,
    max_rows: u32,
    n: u32,
    k: u32,
    gate: u32,
    k_warps_log2: u32,
    chunk_tiles: u32,
    x: Global<u16>,
    x_stride: u32,
    norm_weight: Global<f32>,
    norm_reciprocal: f32,
    norm_eps: f32,
    weight: Global<u8>,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<f16>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
) {
    let split = WarpSplit { k_warps_log2, gate: GateArg(gate) };
    let tiles = Tiles::new::<F>(weight, k);
    let row_tiles = n.div_ceil(format::TILE_ROWS);
    // The block's rows of tiles: the first blocks have one more.
    let (each, rest) = (row_tiles / thread::grid_dim_x(), row_tiles % thread::grid_dim_x());
    let block = thread::block_idx_x();
    let first = block * each + block.min(rest);
    let end = first + each + u32::from(block < rest);
    let epilogue = Epilogue { n, bias, residual, residual_stride, out, out_f32, out_stride };
    // SAFETY: the launch gives shared memory for the partial sums, x and its sums. Results of rows
    // past the last one are not stored.
    unsafe {
        // 1. Before the previous launch has ended: loads of what it does not write.
        let smem = dynamic_shared_mem::<f32>();
        let ring_smem = smem.offset(2 * num_partials(TILES_M));
        let ring_bytes = if RING { Ring::bytes::<F>(NUM_WARPS) } else { 0 };
        let input_smem = ring_smem.offset(ring_bytes / 4);
        let cursor = Cursor::new(split, tiles, [first, end], row_tiles);
        let mut source = TileSource::<F, RING>::new(ring_smem.cast(), cursor);
        let input = Input::<TILES_M>::new::<F>((x, x_stride), max_rows, k, chunk_tiles, input_smem);
        input.clear_group_sums::<F>();
        let norm = Norm { weight: norm_weight, reciprocal: norm_reciprocal, eps: norm_eps, k };
        let norm_weights = input.first_norm_weights(&norm);
        let num_rows = num_rows.get(0);

        // 2. After it.
        grid::wait_for_dependencies();
        grid::launch_dependents();
        if num_rows == 0 {
            return;
        }
        let mut is_copied = norm.exists();
        if is_copied {
            input.copy_normed::<F>(&norm, norm_weights, num_rows, smem);
            thread::sync_threads();
        }
        let lane_input = input.lane();
        let [_, warp_row, k_warp] = split.warp_indices();
        let mut round = first;
        let mut is_odd = 0;
        while round < end {
            let outputs = Outputs::<TILES_M>::new(split, round, end, num_rows);
            let mut terms = [BiasAndResidual::default(); TILES_M];
            if TILES_M == 1 {
                terms = outputs.terms(&epilogue);
            }

            // 3. Main loop: x by chunks, once for all rounds if there is one.
            let mut acc = [[0.0; 4]; TILES_M];
            let mut tile = if round + warp_row < end { k_warp } else { tiles.num_tiles };
            let mut chunk = 0;
            while chunk < tiles.num_tiles {
                let chunk_end = tiles.num_tiles.min(chunk + chunk_tiles);
                if !is_copied {
                    thread::sync_threads();
                    input.copy::<f16, F>(chunk, chunk_end - chunk);
                    thread::sync_threads();
                    is_copied = chunk_tiles == tiles.num_tiles;
                }
                while tile < chunk_end {
                    let x = lane_input.tile::<F>(tile - chunk);
                    source.multiply::<TILES_M>(&x, &mut acc);
                    tile += 1 << k_warps_log2;
                }
                chunk = chunk_end;
            }

            // 4. Epilogue. The other half of the partial sums may still be read.
            let partials = smem.offset(is_odd * num_partials(TILES_M));
            store_partials::<F, TILES_M>(partials, &acc);
            thread::sync_threads();
            if TILES_M > 1 {
                // Loaded late: there are no registers for them in the main loop.
                terms = outputs.terms(&epilogue);
            }
            outputs.store(partials, &terms, &epilogue);
            round += split.row_tiles();
            is_odd ^= 1;
        }
    }
}
