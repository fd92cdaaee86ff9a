//! The outputs of a block: its warps' sums meet in shared memory, and are added in their order.

use super::mainloop::{LaneRow, TILE, TileOrder, lane_group, lane_pair};
use crate::silu_mul::{gated, num_parts};
use crate::tile::element::Operand16;
use cuda_std::mma::Accumulator;
use cuda_std::prelude::*;

/// Most outputs of a thread.
pub const MAX_OUTPUTS: usize = 8;

/// Sums of a warp in eight columns and all rows, and as many words more as put the columns of a row
/// that a warp reads at once, `part_tiles` tiles, into banks of their own.
const fn tile_stride(tiles_m: usize, part_tiles: usize) -> u32 {
    let at_once = if part_tiles > 2 { 4 } else { part_tiles as u32 };
    tiles_m as u32 * TILE * TILE + (32 / at_once) % 32
}

/// Sums of a warp.
const fn warp_stride(tiles_m: usize, tiles_n: usize, gated: bool) -> u32 {
    tiles_n as u32 * tile_stride(tiles_m, tiles_n / num_parts(gated))
}

/// Floats of shared memory: the sums of all warps, a multiple of 16 bytes.
pub const fn num_sums(tiles_m: usize, tiles_n: usize, gated: bool, warps: usize) -> u32 {
    warps as u32 * warp_stride(tiles_m, tiles_n, gated)
}

/// Where outputs go: to `half`, or to `single` if there is one.
pub struct Destination<E> {
    pub half: GlobalMut<E>,
    pub single: GlobalMut<f32>,
    pub stride: u32,
}

/// Columns that a block has outputs of at once, at most.
pub const fn max_columns(tiles_n: usize, gated: bool) -> u32 {
    (tiles_n / num_parts(gated)) as u32 * TILE
}

/// The outputs of a thread: one column, a row in every `ROWS_APART`.
pub struct Outputs<
    const TILES_M: usize,
    const TILES_N: usize,
    const WARPS: usize,
    const GATED: bool,
> {
    /// First column of the weights' rows.
    block_n: u32,
    /// The column behind it.
    block_column: u32,
    /// Where the columns end: those of the weights' rows, and all.
    end: u32,
    n: u32,
    first_row: u32,
    /// How the lanes took the rows of x and of the weight.
    orders: [TileOrder; 2],
}

impl<const TILES_M: usize, const TILES_N: usize, const WARPS: usize, const GATED: bool>
    Outputs<TILES_M, TILES_N, WARPS, GATED>
{
    const PARTS: usize = num_parts(GATED);
    /// Tiles of a part: gate's come first.
    const PART_TILES: u32 = (TILES_N / Self::PARTS) as u32;
    const NUM_THREADS: u32 = WARPS as u32 * warp::WARP_SIZE;
    /// Threads of a row: a power of two, of which the last ones may have no column. (Tried on an H200: 40 for
    /// 40 columns, 32 rows of 9728 x 896 7.5 us for 8.0, but its reads share banks; two or four columns a
    /// thread, 8.6, and 47.3 for 46.3 of 22016 x 4096.)
    const ROW_THREADS: u32 = Self::BLOCK_N.next_power_of_two();
    const ROWS_APART: u32 = Self::NUM_THREADS / Self::ROW_THREADS;
    /// Outputs of a thread.
    const NUM: usize = (TILES_M as u32 * TILE).div_ceil(Self::ROWS_APART) as usize;

    const BLOCK_N: u32 = max_columns(TILES_N, GATED);

    /// The thread's outputs of `n` columns: of those from `block_n` on, up to [`max_columns`], below
    /// `end`, which is at most `n`.
    #[inline(always)]
    pub fn new(block_n: u32, end: u32, n: u32, orders: [TileOrder; 2]) -> Self {
        const { assert!(Self::NUM <= MAX_OUTPUTS && WARPS.is_multiple_of(4)) };
        const { assert!(TILES_N.is_multiple_of(Self::PARTS)) };
        let block_column = thread::thread_idx_x() % Self::ROW_THREADS;
        let first_row = thread::thread_idx_x() / Self::ROW_THREADS;
        Outputs { block_n, block_column, end, n, first_row, orders }
    }

    #[inline(always)]
    fn column(&self) -> u32 {
        self.block_n + self.block_column
    }

    /// Whether the thread's column is one of the block's.
    #[inline(always)]
    fn has_column(&self) -> bool {
        self.block_column < Self::BLOCK_N && self.column() < self.end
    }

    /// The lane's row of the weight in a tile, the last one where there is none, of rows `stride`
    /// elements apart.
    #[inline(always)]
    pub fn weight_row(&self, tile: usize, stride: u32) -> LaneRow {
        let (part, tile) = (tile as u32 / Self::PART_TILES, tile as u32 % Self::PART_TILES);
        let column = self.block_n + tile * TILE + lane_group();
        LaneRow::new(column.min(self.n - 1), stride).down(part * self.n, stride)
    }

    /// The row of output `output`, if it is one of `num_rows` and of `n` columns.
    #[inline(always)]
    fn row(&self, output: usize, num_rows: u32) -> Option<u32> {
        // By the lanes' groups, whose sums are in banks of their own.
        let row = self.first_row + output as u32 * Self::ROWS_APART;
        let row = row / TILE * TILE + self.orders[0].row_of(row % TILE);
        (row < num_rows && self.has_column()).then_some(row)
    }

    /// Element of the thread's column in `row`.
    #[inline(always)]
    fn element(&self, row: u32, stride: u32) -> usize {
        row as usize * stride as usize + self.column() as usize
    }

    /// The column's `bias`, 0 without one; under a gate, that of gate and that of up.
    ///
    /// # Safety
    /// 1. `bias` is null or holds an element for each row of the weight.
    #[inline(always)]
    pub unsafe fn bias(&self, bias: Global<f32>) -> [f32; 2] {
        let mut values = [0.0; 2];
        if !bias.is_null() && self.has_column() {
            for part in 0..Self::PARTS {
                let at = part as u32 * self.n + self.column();
                // SAFETY: inside, by the check.
                values[part] = unsafe { bias.get(at as usize) };
            }
        }
        values
    }

    /// The outputs' elements of `residual`, 0 without one.
    ///
    /// # Safety
    /// 1. `residual` is null or holds `num_rows` rows of `n` elements.
    #[inline(always)]
    pub unsafe fn residual(
        &self,
        num_rows: u32,
        residual: Global<f32>,
        stride: u32,
    ) -> [f32; MAX_OUTPUTS] {
        let mut values = [0.0; MAX_OUTPUTS];
        if !residual.is_null() {
            unroll!(output in 0..Self::NUM, {
                if let Some(row) = self.row(output, num_rows) {
                    // SAFETY: row and column are inside.
                    values[output] = unsafe { residual.get(self.element(row, stride)) };
                }
            });
        }
        values
    }

    /// Writes the sums of all warps' `acc`, plus `bias`, plus `residual`; or the gated ones.
    ///
    /// # Safety
    /// 1. `smem` has room for [`num_sums`], which nobody uses since all threads have been behind a
    ///    barrier; all of the block's threads call this.
    /// 2. `out` holds `num_rows` rows of `n` elements, which no other block accesses.
    #[inline(always)]
    pub unsafe fn store<E: Operand16>(
        &self,
        smem: Shared<f32>,
        num_rows: u32,
        acc: &[[Accumulator; TILES_N]; TILES_M],
        bias: [f32; 2],
        residual: &[f32; MAX_OUTPUTS],
        out: &Destination<E>,
    ) {
        // SAFETY: the launch gives the bytes; each lane writes what is its own, and all is read
        // behind the barrier. Row and column are inside, by the check.
        unsafe {
            store_sums::<TILES_M, TILES_N, GATED>(smem, acc);
            thread::sync_threads();
            unroll!(output in 0..Self::NUM, {
                if let Some(row) = self.row(output, num_rows) {
                    let value = if GATED {
                        let [gate, up] = [0, 1].map(|part| {
                            E::from_f32(self.sum(smem, part, row) + bias[part as usize]).to_f32()
                        });
                        gated::<E>(gate, up)
                    } else {
                        self.sum(smem, 0, row) + bias[0] + residual[output]
                    };
                    let at = self.element(row, out.stride);
                    if out.single.address() == 0 {
                        out.half.set(at, E::from_f32(value));
                    } else {
                        out.single.set(at, value);
                    }
                }
            });
        }
    }

    /// The sum over warps for the thread's column in `part`, of `row`.
    ///
    /// # Safety
    /// 1. `smem` holds what [`store_sums`] wrote for every warp.
    #[inline(always)]
    unsafe fn sum(&self, smem: Shared<f32>, part: u32, row: u32) -> f32 {
        let tile = part * Self::PART_TILES + self.block_column / TILE;
        let tile = tile * tile_stride(TILES_M, Self::PART_TILES as usize);
        let [x, weight] = self.orders;
        let row = row / TILE * TILE + x.group_of(row % TILE);
        let smem = smem.offset(tile + row * TILE + weight.group_of(self.block_column % TILE));
        let mut sum = 0.0;
        for quad in 0..WARPS as u32 / 4 {
            let of_warp = |i| (4 * quad + i) * warp_stride(TILES_M, TILES_N, GATED);
            // SAFETY: the caller's promise.
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| unsafe { smem.get(of_warp(i)) });
            sum += (a + b) + (c + d);
        }
        sum
    }
}

/// Writes the warp's sums: `[tile, row, column]`, rows and columns of a tile by the lanes' groups.
///
/// # Safety
/// 1. `smem` has room for every warp's, and no other thread accesses this one's.
#[inline(always)]
unsafe fn store_sums<const TILES_M: usize, const TILES_N: usize, const GATED: bool>(
    smem: Shared<f32>,
    acc: &[[Accumulator; TILES_N]; TILES_M],
) {
    let smem = smem.offset(
        warp::warp_idx() * warp_stride(TILES_M, TILES_N, GATED)
            + lane_group() * TILE
            + 2 * lane_pair(),
    );
    for tile_m in 0..TILES_M {
        for tile_n in 0..TILES_N {
            let [c0, c1, c2, c3] = acc[tile_m / 2][tile_n];
            let sums = if tile_m % 2 == 0 { [c0, c1] } else { [c2, c3] };
            let tile = tile_n as u32 * tile_stride(TILES_M, TILES_N / num_parts(GATED));
            // SAFETY: the caller's promise.
            unsafe { smem.set_vec(tile + tile_m as u32 * TILE * TILE, sums) };
        }
    }
}
