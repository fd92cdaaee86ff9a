//! The epilogue: adds the warps' partial sums in shared memory, in a fixed order, and applies bias,
//! residual and gate.

use super::{Destination, Epilogue, Out};
use crate::activation::Gate;
use crate::gemm::mainloop::stream::{
    LaneRow, TILE_MN, TileOrder, TileScales, lane_group, lane_pair,
};
use crate::tile::element::Operand16;
use crate::tile::weight::{Scales, WeightElement};
use core::marker::PhantomData;
use cuda_std::mma::Accumulator;
use cuda_std::prelude::*;

/// Most outputs of a thread.
pub const MAX_OUTPUTS: usize = 8;

/// Partial sums of a warp in one column tile and all rows, and padding that puts the columns of a
/// row that a warp reads at a time, `part_tiles` tiles, into different banks.
const fn tile_stride(tiles_m: usize, part_tiles: usize) -> u32 {
    let at_once = if part_tiles > 2 { 4 } else { part_tiles as u32 };
    tiles_m as u32 * TILE_MN * TILE_MN + (32 / at_once) % 32
}

/// Partial sums of a warp, padded.
const fn warp_stride(tiles_m: usize, tiles_n: usize, num_parts: usize) -> u32 {
    tiles_n as u32 * tile_stride(tiles_m, tiles_n / num_parts)
}

/// Floats of shared memory for the partial sums of all warps: a multiple of 16 bytes.
pub const fn num_partials(tiles_m: usize, tiles_n: usize, num_parts: usize, warps: usize) -> u32 {
    warps as u32 * warp_stride(tiles_m, tiles_n, num_parts)
}

/// Most columns of an output tile.
pub const fn max_columns(tiles_n: usize, num_parts: usize) -> u32 {
    (tiles_n / num_parts) as u32 * TILE_MN
}

/// The outputs of a thread: one column, a row in every `ROWS_APART`.
pub struct Outputs<const TILES_M: usize, const TILES_N: usize, const WARPS: usize, A> {
    /// First column of the output tile.
    block_n: u32,
    /// The thread's column, from there.
    block_column: u32,
    /// One past the last column of the output tile.
    end: u32,
    n: u32,
    first_row: u32,
    /// Row orders of the MMA tiles: of x and of the weight.
    orders: [TileOrder; 2],
    gate: PhantomData<A>,
}

impl<const TILES_M: usize, const TILES_N: usize, const WARPS: usize, A: Gate>
    Outputs<TILES_M, TILES_N, WARPS, A>
{
    /// MMA tiles along n of a part: gate's, then up's.
    const PART_TILES: u32 = (TILES_N / A::PARTS) as u32;
    const NUM_THREADS: u32 = WARPS as u32 * warp::WARP_SIZE;
    /// Threads of a row: a power of two against bank conflicts; the last ones may have no column.
    const ROW_THREADS: u32 = Self::BLOCK_N.next_power_of_two();
    const ROWS_APART: u32 = Self::NUM_THREADS / Self::ROW_THREADS;
    /// Outputs of a thread.
    const NUM: usize = (TILES_M as u32 * TILE_MN).div_ceil(Self::ROWS_APART) as usize;

    const BLOCK_N: u32 = max_columns(TILES_N, A::PARTS);

    /// The thread's outputs in the tile of columns `block_n .. end`, at most [`max_columns`], of
    /// `n`.
    #[inline(always)]
    pub fn new(block_n: u32, end: u32, n: u32, orders: [TileOrder; 2]) -> Self {
        const { assert!(Self::NUM <= MAX_OUTPUTS && WARPS.is_multiple_of(4)) };
        const { assert!(TILES_N.is_multiple_of(A::PARTS)) };
        let block_column = thread::thread_idx_x() % Self::ROW_THREADS;
        let first_row = thread::thread_idx_x() / Self::ROW_THREADS;
        Outputs { block_n, block_column, end, n, first_row, orders, gate: PhantomData }
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

    /// The lane's row of the weight in MMA tile `tile`; past the last row, the last row. Rows are
    /// `stride` units of 16 bits apart.
    #[inline(always)]
    pub fn weight_row(&self, tile: usize, stride: u32) -> LaneRow {
        let (part, tile) = (tile as u32 / Self::PART_TILES, tile as u32 % Self::PART_TILES);
        let column = self.block_n + tile * TILE_MN + lane_group();
        LaneRow::new(column.min(self.n - 1), stride, 1).down(part * self.n, stride)
    }

    /// The scales of the output tile's parts, of a weight with `scales`.
    #[inline(always)]
    pub fn tile_scales(&self, scales: Scales) -> TileScales {
        let first_rows = [0, 1].map(|part| part * self.n + self.block_n.min(self.n - 1));
        TileScales { scales, first_rows, part_tiles: Self::PART_TILES as usize }
    }

    /// What the column's sums are multiplied by; with a gate, gate's and up's.
    ///
    /// # Safety
    /// 1. `scales` are those of the weight, if it is scaled.
    #[inline(always)]
    pub unsafe fn scales<E: Operand16, W: WeightElement<E>>(&self, scales: Scales) -> [f32; 2] {
        let mut values = [1.0; 2];
        if W::IS_SCALED && self.has_column() {
            for part in 0..A::PARTS {
                let row = part as u32 * self.n + self.column();
                // SAFETY: inside, by the check.
                values[part] = unsafe { scales.row_scale(row) } * W::FACTOR;
            }
        }
        values
    }

    /// The row of the thread's output `output`, if that is inside.
    #[inline(always)]
    fn row(&self, output: usize, num_rows: u32) -> Option<u32> {
        // In the order of the lanes' groups, whose partial sums are in different banks.
        let row = self.first_row + output as u32 * Self::ROWS_APART;
        let row = row / TILE_MN * TILE_MN + self.orders[0].row_of(row % TILE_MN);
        (row < num_rows && self.has_column()).then_some(row)
    }

    /// The column's `bias`, 0 without one; with a gate, gate's and up's.
    ///
    /// # Safety
    /// 1. `bias` is null or holds an element for each row of the weight.
    #[inline(always)]
    pub unsafe fn bias(&self, bias: Global<f32>) -> [f32; 2] {
        let mut values = [0.0; 2];
        if !bias.is_null() && self.has_column() {
            for part in 0..A::PARTS {
                let at = part as u32 * self.n + self.column();
                // SAFETY: inside, by the check.
                values[part] = unsafe { bias.get(at as usize) };
            }
        }
        values
    }

    /// The residual of each output, 0 without one.
    ///
    /// # Safety
    /// 1. The residual is as the kernel requires.
    #[inline(always)]
    pub unsafe fn residual<D>(&self, epilogue: &Epilogue<D>) -> [f32; MAX_OUTPUTS] {
        let (residual, num_rows) = (epilogue.residual, epilogue.num_rows);
        let mut values = [0.0; MAX_OUTPUTS];
        if !residual.ptr.is_null() {
            unroll!(output in 0..Self::NUM, {
                if let Some(row) = self.row(output, num_rows) {
                    // SAFETY: row and column are inside.
                    values[output] = unsafe { residual.ptr.get(residual.at(row, self.column())) };
                }
            });
        }
        values
    }

    /// Adds the accumulators of all warps, applies `scales`, `bias` and `residual`, or the gate, and stores.
    ///
    /// # Safety
    /// 1. `smem` holds [`num_partials`] elements that no thread has used since the last barrier;
    ///    all threads of the block call this.
    /// 2. The outputs are as the kernel requires, and no other block accesses them.
    #[inline(always)]
    pub unsafe fn store<E: Operand16>(
        &self,
        smem: Shared<f32>,
        acc: &[[Accumulator; TILES_N]; TILES_M],
        scales: [f32; 2],
        bias: [f32; 2],
        residual: &[f32; MAX_OUTPUTS],
        epilogue: &Epilogue<Out<E>>,
    ) {
        // SAFETY: the launch gives the bytes; each lane writes its own elements, and they are read
        // after the barrier. Row and column are inside, by the check.
        unsafe {
            store_partials::<TILES_M, TILES_N, A>(smem, acc);
            thread::sync_threads();
            unroll!(output in 0..Self::NUM, {
                if let Some(row) = self.row(output, epilogue.num_rows) {
                    let value = if A::PARTS == 2 {
                        let [gate, up] = [0, 1].map(|part| {
                            let sum = scales[part as usize] * self.reduce_warps(smem, part, row);
                            E::from_f32(sum + bias[part as usize]).to_f32()
                        });
                        A::apply::<E>(gate, up)
                    } else {
                        scales[0] * self.reduce_warps(smem, 0, row) + bias[0] + residual[output]
                    };
                    epilogue.out.ptr.store(epilogue.out.at(row, self.column()), value);
                }
            });
        }
    }

    /// The sum over warps of the thread's column, in `row` of `part`.
    ///
    /// # Safety
    /// 1. `smem` holds what [`store_partials`] wrote for every warp.
    #[inline(always)]
    unsafe fn reduce_warps(&self, smem: Shared<f32>, part: u32, row: u32) -> f32 {
        let tile = part * Self::PART_TILES + self.block_column / TILE_MN;
        let tile = tile * tile_stride(TILES_M, Self::PART_TILES as usize);
        let [x, weight] = self.orders;
        let row = row / TILE_MN * TILE_MN + x.group_of(row % TILE_MN);
        let smem = smem.offset(tile + row * TILE_MN + weight.group_of(self.block_column % TILE_MN));
        let mut sum = 0.0;
        for quad in 0..WARPS as u32 / 4 {
            let of_warp = |i| (4 * quad + i) * warp_stride(TILES_M, TILES_N, A::PARTS);
            // SAFETY: the caller's promise.
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| unsafe { smem.get(of_warp(i)) });
            sum += (a + b) + (c + d);
        }
        sum
    }
}

/// Writes the warp's partial sums as `[tile, row, column]`, with rows and columns of a tile in the
/// order of the lanes' groups.
///
/// # Safety
/// 1. `smem` holds the partial sums of all warps; no other thread accesses this lane's.
#[inline(always)]
unsafe fn store_partials<const TILES_M: usize, const TILES_N: usize, A: Gate>(
    smem: Shared<f32>,
    acc: &[[Accumulator; TILES_N]; TILES_M],
) {
    let smem = smem.offset(
        warp::warp_idx() * warp_stride(TILES_M, TILES_N, A::PARTS)
            + lane_group() * TILE_MN
            + 2 * lane_pair(),
    );
    for tile_m in 0..TILES_M {
        for tile_n in 0..TILES_N {
            let [c0, c1, c2, c3] = acc[tile_m / 2][tile_n];
            let partials = if tile_m % 2 == 0 { [c0, c1] } else { [c2, c3] };
            let tile = tile_n as u32 * tile_stride(TILES_M, TILES_N / A::PARTS);
            // SAFETY: the caller's promise.
            unsafe { smem.set_vec(tile + tile_m as u32 * TILE_MN * TILE_MN, partials) };
        }
    }
}
