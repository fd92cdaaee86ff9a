//! The epilogue: adds the warps' partial sums in shared memory, in a fixed order, and applies bias,
//! residual and gate.

use super::super::epilogue::Epilogue;
use super::super::format::{TILE_ROWS, lane_pair};
use super::super::input::TILE_M;
use super::super::mainloop::AccTiles;
use super::super::{NUM_THREADS, NUM_WARPS};
use super::{BlockRows, WarpSplit, late_lane_id};
use crate::element::Number;
use cuda_std::prelude::*;
use cuda_std::unroll;
use half::f16;

/// Elements between the partial sums of two rows of x: 16 and padding, so that at most two lanes of
/// a warp write to a bank. Two more, and 16 rows in Q8_0 would not fit into shared memory.
const COLUMN_STRIDE: u32 = TILE_ROWS + 2;

/// Bytes of the partial sums of a row of tiles a group of warps.
pub const fn partials_bytes(max_rows: u32) -> u32 {
    NUM_WARPS * max_rows * COLUMN_STRIDE * size_of::<f32>() as u32
}

/// Bytes of the terms of the threads' first outputs.
pub const TERMS_BYTES: u32 = NUM_THREADS * size_of::<[f32; 2]>() as u32;

/// The partial sums of a batch of rows of tiles.
#[derive(Clone, Copy)]
pub struct Partials {
    smem: Shared<f32>,
    split: WarpSplit,
    max_rows: u32,
}

/// A lane's partial sums of a row of tiles.
#[derive(Clone, Copy)]
pub struct Slot {
    partials: Shared<f32>,
    max_rows: u32,
}

impl Partials {
    /// The partial sums in `smem`.
    #[inline(always)]
    pub fn new(smem: Shared<f32>, split: WarpSplit, max_rows: u32) -> Self {
        Partials { smem, split, max_rows }
    }

    /// The lane's of its first row of the batch.
    #[inline(always)]
    pub fn first_slot(&self) -> Slot {
        let lane = late_lane_id();
        let first = (warp::warp_idx() * self.max_rows + lane % 4 * 2) * COLUMN_STRIDE;
        Slot { partials: self.smem.offset(first + lane / 4), max_rows: self.max_rows }
    }

    /// The sum over the warps that split k, of row `row` of part `part` of a batch of `len` rows,
    /// for a row of x and a row of the tile.
    ///
    /// # Safety
    /// 1. All warps have stored theirs.
    #[inline(always)]
    unsafe fn sum(&self, [part, row, len]: [u32; 3], x_row: u32, in_tile: u32) -> f32 {
        let num_groups = self.split.num_groups();
        let group = row & (num_groups - 1);
        // A group has the rows of gate, then those of up.
        let round = part * self.split.rows_of(group, len)
            + (row >> (NUM_WARPS.ilog2() - self.split.k_warps_log2));
        let warp = round * NUM_WARPS + group * self.split.k_warps();
        let smem = self.smem.offset((warp * self.max_rows + x_row) * COLUMN_STRIDE + in_tile);
        let stride = self.max_rows * COLUMN_STRIDE;
        let mut sum = 0.0;
        unroll!(quad in 0..4, {
            if 4 * (quad as u32) < self.split.k_warps() {
                let at = |i| (4 * quad as u32 + i) * stride;
                // SAFETY: the caller's promise.
                let [a, b, c, d] = [0, 1, 2, 3].map(|i| unsafe { smem.get(at(i)) });
                sum += (a + b) + (c + d);
            }
        });
        sum
    }
}

impl Slot {
    /// The lane's partial sums of the next row of its warp.
    #[inline(always)]
    #[must_use]
    pub fn next(self) -> Self {
        Slot { partials: self.partials.offset(NUM_WARPS * self.max_rows * COLUMN_STRIDE), ..self }
    }

    /// Where the lane's sum `i` of a tile of rows of x is, and whether there is such a row.
    #[inline(always)]
    fn at(&self, tile_m: usize, i: usize) -> (u32, bool) {
        let column = tile_m as u32 * TILE_M + i as u32 % 2;
        let is_row = 2 * lane_pair() + column < self.max_rows;
        (column * COLUMN_STRIDE + i as u32 / 2 * 8, is_row)
    }

    /// The lane's partial sums.
    ///
    /// # Safety
    /// 1. The lane has stored them.
    #[inline(always)]
    pub unsafe fn load<const TILES_M: usize>(&self) -> AccTiles<TILES_M> {
        let mut acc = [[0.0; 4]; TILES_M];
        for tile_m in 0..TILES_M {
            for i in 0..4 {
                let (at, is_row) = self.at(tile_m, i);
                if is_row {
                    // SAFETY: the caller's promise.
                    acc[tile_m][i] = unsafe { self.partials.get(at) };
                }
            }
        }
        acc
    }

    /// Stores the lane's partial sums.
    ///
    /// # Safety
    /// 1. No other thread accesses them.
    #[inline(always)]
    pub unsafe fn store<const TILES_M: usize>(&self, acc: &AccTiles<TILES_M>) {
        for tile_m in 0..TILES_M {
            for i in 0..4 {
                let (at, is_row) = self.at(tile_m, i);
                if is_row {
                    // SAFETY: the caller's promise.
                    unsafe { self.partials.set(at, acc[tile_m][i]) };
                }
            }
        }
    }
}

/// The thread, see [`late_lane_id`].
#[inline(always)]
fn late_thread_idx() -> u32 {
    warp::warp_idx() * warp::WARP_SIZE + late_lane_id()
}

/// The outputs of a block, and what is added to them.
#[derive(Clone, Copy)]
pub struct Outputs {
    pub rows: BlockRows,
    pub max_rows: u32,
    pub num_rows: Global<u32>,
    pub epilogue: Epilogue<f16>,
}

/// The terms that are added to an output.
#[derive(Clone, Copy, Default)]
pub struct BiasAndResidual {
    pub bias: f32,
    /// The bias of up, or the residual.
    pub other: f32,
}

/// An output of a thread.
#[derive(Clone, Copy)]
struct Output {
    /// Row of tiles in the batch.
    row_tile: u32,
    /// Row of x, and column of the output.
    row: u32,
    column: u32,
    is_inside: bool,
}

impl Outputs {
    /// Issues the loads of the terms of the thread's first output in the `len` rows of tiles from
    /// `first` on.
    ///
    /// # Safety
    /// 1. The operands are as the kernel requires.
    #[inline(always)]
    pub unsafe fn first_terms(&self, rows: [u32; 2]) -> BiasAndResidual {
        // SAFETY: there is one count.
        unsafe { self.terms(self.output(thread::thread_idx_x(), rows, self.num_rows.get(0))) }
    }

    /// Rows of x as outputs are numbered: a power of two.
    #[inline(always)]
    fn rows_log2(&self) -> u32 {
        32 - (self.max_rows - 1).leading_zeros()
    }

    #[inline(always)]
    fn output(&self, at: u32, [first, len]: [u32; 2], num_rows: u32) -> Output {
        let (in_tile, at) = (at % TILE_ROWS, at / TILE_ROWS);
        let (row, row_tile) = (at & ((1 << self.rows_log2()) - 1), at >> self.rows_log2());
        let column = (self.rows.first + first + row_tile) * TILE_ROWS + in_tile;
        let is_inside = row_tile < len && row < num_rows && column < self.epilogue.n;
        Output { row_tile, row, column, is_inside }
    }

    /// Issues the loads of bias and residual.
    ///
    /// # Safety
    /// 1. The operands are as the kernel requires.
    #[inline(always)]
    unsafe fn terms(&self, output: Output) -> BiasAndResidual {
        let Output { row, column, is_inside, .. } = output;
        let Epilogue { n, bias, residual, residual_stride, .. } = self.epilogue;
        let mut terms = BiasAndResidual::default();
        // SAFETY: row and column are inside.
        unsafe {
            if is_inside && !bias.is_null() {
                terms.bias = bias.get(column as usize);
                if self.rows.gate.num_parts() == 2 {
                    terms.other = bias.get((n + column) as usize);
                }
            }
            if is_inside && !residual.is_null() {
                let at = row as usize * residual_stride as usize + column as usize;
                terms.other = residual.get(at);
            }
        }
        terms
    }

    /// Adds the partial sums of the `len` rows of tiles from `first` on, applies the terms, `terms`
    /// of the thread's first output, or the gate, and stores.
    ///
    /// # Safety
    /// 1. All warps have stored their partial sums. No other block accesses these outputs.
    #[inline(always)]
    pub unsafe fn store(
        &self,
        [first, len]: [u32; 2],
        partials: &Partials,
        mut terms: BiasAndResidual,
    ) {
        let Epilogue { out, out_f32, out_stride, .. } = self.epilogue;
        let mut at = late_thread_idx();
        // Again, from L1: the main loop has no register for it.
        // SAFETY: the caller's promise.
        let num_rows = unsafe { self.num_rows.get(0) };
        let num_outputs = (len * TILE_ROWS) << self.rows_log2();
        while at < num_outputs {
            let output = self.output(at, [first, len], num_rows);
            // SAFETY: the caller's promise; row and column are inside.
            unsafe {
                if at >= NUM_THREADS {
                    terms = self.terms(output);
                }
                let Output { row_tile, row, column, is_inside } = output;
                if is_inside {
                    let in_tile = column % TILE_ROWS;
                    let mut value = partials.sum([0, row_tile, len], row, in_tile) + terms.bias;
                    if self.rows.gate.num_parts() == 2 {
                        let up = partials.sum([1, row_tile, len], row, in_tile);
                        // As the separate operations round.
                        let [gate, up] =
                            [value, up + terms.other].map(|value| f16::from_f32(value).to_f32());
                        value = self.rows.gate.apply::<f16>(gate, up);
                    } else {
                        value += terms.other;
                    }
                    let at = row as usize * out_stride as usize + column as usize;
                    if out_f32.address() == 0 {
                        out.set(at, Number::from_f32(value));
                    } else {
                        out_f32.set(at, value);
                    }
                }
            }
            at += NUM_THREADS;
        }
    }
}
