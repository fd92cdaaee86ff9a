//! The epilogue: adds the warps' partial sums in shared memory, in a fixed order, and applies bias,
//! residual and gate.

use super::format::{Format, TILE_ROWS, lane_group, lane_pair, quant_scale};
use super::input::TILE_M;
use super::mainloop::AccTiles;
use super::{NUM_THREADS, NUM_WARPS, WarpSplit};
use crate::element::Half;
use cuda_std::prelude::*;
use cuda_std::unroll;

/// Elements between the partial sums of two rows of x: 16 and padding, so that the lanes of a warp
/// write to different banks.
const COLUMN_STRIDE: u32 = TILE_ROWS + 4;

/// Partial sums of a warp.
const fn warp_partials(tiles_m: usize) -> u32 {
    tiles_m as u32 * TILE_M * COLUMN_STRIDE
}

/// Floats of shared memory for the partial sums of all warps of a round.
pub const fn num_partials(tiles_m: usize) -> u32 {
    NUM_WARPS * warp_partials(tiles_m)
}

/// Writes a warp's partial sums.
///
/// # Safety
/// 1. `smem` holds [`num_partials`]; no other thread accesses this lane's.
#[inline(always)]
pub unsafe fn store_partials<F: Format, const TILES_M: usize>(
    smem: Shared<f32>,
    acc: &AccTiles<TILES_M>,
) {
    let first =
        warp::warp_idx() * warp_partials(TILES_M) + 2 * lane_pair() * COLUMN_STRIDE + lane_group();
    for tile in 0..TILES_M {
        for i in 0..4 {
            let column = tile as u32 * TILE_M + i % 2;
            let at = first + column * COLUMN_STRIDE + i / 2 * 8;
            let sum = acc[tile][i as usize] * quant_scale::<F>(i as usize / 2);
            // SAFETY: the caller's promise.
            unsafe { smem.set(at, sum) };
        }
    }
}

/// What the epilogue applies, and where outputs go: to `out_f32`, or to `out` if `out_f32` is null.
#[derive(Clone, Copy)]
pub struct Epilogue<E> {
    pub n: u32,
    pub bias: Global<f32>,
    pub residual: Global<f32>,
    pub residual_stride: u32,
    pub out: GlobalMut<E>,
    pub out_f32: GlobalMut<f32>,
    pub out_stride: u32,
}

/// A thread's outputs of a round: one for each tile of rows of x.
#[derive(Clone, Copy)]
pub struct Outputs<const TILES_M: usize> {
    split: WarpSplit,
    /// First row of tiles of the round, and one past the block's last.
    first: u32,
    end: u32,
    num_rows: u32,
}

/// The terms that are added to an output: bias of gate and up, or of the one part; residual.
#[derive(Clone, Copy, Default)]
pub struct BiasAndResidual {
    bias: [f32; 2],
    residual: f32,
}

/// An output of a thread.
#[derive(Clone, Copy)]
struct Output {
    /// Row of tiles, from the round's first.
    row_tile: u32,
    /// Row of x, and column of the output.
    row: u32,
    column: u32,
}

impl<const TILES_M: usize> Outputs<TILES_M> {
    /// The outputs of the rows of tiles `first .. end`, as many as a round has.
    #[inline(always)]
    pub fn new(split: WarpSplit, first: u32, end: u32, num_rows: u32) -> Self {
        Outputs { split, first, end, num_rows }
    }

    /// The output `index` of the thread, if there is one.
    #[inline(always)]
    fn output(&self, index: usize, n: u32) -> Option<Output> {
        const { assert!(TILES_M == 1 || TILES_M == 2) };
        let rows = TILES_M as u32 * TILE_M;
        let at = thread::thread_idx_x() + index as u32 * NUM_THREADS;
        let (row_tile, row) = (at / (TILE_ROWS * rows), at / TILE_ROWS % rows);
        let column = (self.first + row_tile) * TILE_ROWS + at % TILE_ROWS;
        let is_inside = row_tile < self.split.row_tiles()
            && self.first + row_tile < self.end
            && row < self.num_rows
            && column < n;
        is_inside.then_some(Output { row_tile, row, column })
    }

    /// Issues the loads of bias and residual.
    ///
    /// # Safety
    /// 1. The operands are as the kernel requires.
    #[inline(always)]
    pub unsafe fn terms<E>(&self, epilogue: &Epilogue<E>) -> [BiasAndResidual; TILES_M] {
        let &Epilogue { n, bias, residual, residual_stride, .. } = epilogue;
        let mut terms = [BiasAndResidual::default(); TILES_M];
        unroll!(i in 0..4, {
            if i < TILES_M
                && let Some(Output { row, column, .. }) = self.output(i, n)
            {
                // SAFETY: row and column are inside.
                unsafe {
                    if !bias.is_null() {
                        terms[i].bias[0] = bias.get(column as usize);
                        if self.split.gate.num_parts() == 2 {
                            terms[i].bias[1] = bias.get((n + column) as usize);
                        }
                    }
                    if !residual.is_null() {
                        let at = row as usize * residual_stride as usize + column as usize;
                        terms[i].residual = residual.get(at);
                    }
                }
            }
        });
        terms
    }

    /// Adds the partial sums, applies `terms` or the gate, and stores.
    ///
    /// # Safety
    /// 1. `smem` holds what [`store_partials`] wrote for every warp of the round.
    /// 2. No other block accesses these outputs.
    #[inline(always)]
    pub unsafe fn store<E: Half>(
        &self,
        smem: Shared<f32>,
        terms: &[BiasAndResidual; TILES_M],
        epilogue: &Epilogue<E>,
    ) {
        unroll!(i in 0..4, {
            if i < TILES_M
                && let Some(output) = self.output(i, epilogue.n)
            {
                let BiasAndResidual { bias, residual } = terms[i];
                // SAFETY: the caller's promise; row and column are inside.
                unsafe {
                    let mut value = self.sum(smem, output, 0) + bias[0];
                    if self.split.gate.num_parts() == 2 {
                        let up = self.sum(smem, output, 1) + bias[1];
                        // As the separate operations round.
                        let [gate, up] = [value, up].map(|value| E::from_f32(value).to_f32());
                        value = self.split.gate.apply::<E>(gate, up);
                    }
                    value += residual;
                    let at = output.row as usize * epilogue.out_stride as usize
                        + output.column as usize;
                    if epilogue.out_f32.address() == 0 {
                        epilogue.out.set(at, E::from_f32(value));
                    } else {
                        epilogue.out_f32.set(at, value);
                    }
                }
            }
        });
    }

    /// The sum over the warps that split k.
    ///
    /// # Safety
    /// As [`Outputs::store`].
    #[inline(always)]
    unsafe fn sum(&self, smem: Shared<f32>, output: Output, part: u32) -> f32 {
        let first_warp =
            (output.row_tile * self.split.gate.num_parts() + part) << self.split.k_warps_log2;
        let in_warp = output.row * COLUMN_STRIDE + output.column % TILE_ROWS;
        let smem = smem.offset(first_warp * warp_partials(TILES_M) + in_warp);
        let mut sum = 0.0;
        for quad in 0..(1_u32 << self.split.k_warps_log2) / 4 {
            let of_warp = |i| (4 * quad + i) * warp_partials(TILES_M);
            // SAFETY: the caller's promise.
            let [a, b, c, d] = [0, 1, 2, 3].map(|i| unsafe { smem.get(of_warp(i)) });
            sum += (a + b) + (c + d);
        }
        sum
    }
}
