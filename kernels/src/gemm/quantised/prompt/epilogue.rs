//! The epilogue: accumulators are transposed through shared memory, so that rows of the output are
//! stored in whole lines; the blocks that split k are added up; then bias, residual and gate.

use super::{BLOCK_COLUMNS, MMA_THREADS, columns_of, num_rows_of};
use crate::activation::GateArg;
use crate::element::Half;
use crate::gemm::quantised::format::{TILE_ROWS, lane_group, lane_pair};
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;
use half::f16;

/// Elements between two rows in shared memory: padded, so that the lanes of a warp write to
/// different banks.
const ROW_STRIDE: u32 = BLOCK_COLUMNS + 4;

/// Outputs that a thread stores at once.
const VEC: u32 = 4;

/// Bytes of shared memory.
pub const fn staging_bytes(regs: usize) -> u32 {
    num_rows_of(regs) * ROW_STRIDE * 4
}

/// Writes a warp's accumulators.
///
/// # Safety
/// 1. `staging` holds [`staging_bytes`]; no other thread accesses this lane's.
#[inline(always)]
pub unsafe fn stage<const REGS: usize>(staging: Shared<f32>, mut acc: Accumulator<REGS>) {
    let column = warp::warp_idx() * TILE_ROWS + lane_group();
    let first = staging.offset(2 * lane_pair() * ROW_STRIDE + column);
    acc.for_each(|i, value| {
        let (row, half) = ((i / 4 * 8 + i % 2) as u32, (i / 2 % 2) as u32);
        // SAFETY: the caller's promise.
        unsafe { first.set(row * ROW_STRIDE + 8 * half, *value) };
    });
}

/// The output, and what the epilogue adds to it.
#[derive(Clone, Copy)]
pub struct Output {
    /// Rows that exist, from the block's first one on.
    pub num_rows: u32,
    /// The block's first row.
    pub first_row: u32,
    /// Columns.
    pub n: u32,
    /// The block's first column.
    pub first_column: u32,
    pub gate: GateArg,
    /// An element for each row of the weight, or null.
    pub bias: Global<f32>,
    /// `[rows, n]`, or null.
    pub residual: Global<f32>,
    pub residual_stride: u32,
    /// `[rows, n]`, if `f32` is null.
    pub half: GlobalMut<f16>,
    /// `[rows, n]`, or null.
    pub f32: GlobalMut<f32>,
    pub stride: u32,
}

impl Output {
    /// Stores the rows of the block: with split-K its share of the cluster's.
    ///
    /// # Safety
    /// 1. All of the cluster's blocks have written their accumulators to `staging`, and none exits
    ///    before all have returned.
    /// 2. All consumers call this; the operands are as the kernel requires.
    #[inline(always)]
    pub unsafe fn store<const REGS: usize, const SPLIT_K: u32>(&self, staging: Shared<f32>) {
        let rows = num_rows_of(REGS) / SPLIT_K;
        let vecs = columns_of(self.gate.num_parts()) / VEC;
        let vecs_log2 = vecs.trailing_zeros();
        let rank = if SPLIT_K > 1 { cluster::block_rank() } else { 0 };
        let is_vector = self.is_vector();
        let mut item = thread::thread_idx_x();
        while item < rows * vecs {
            let (row, vec) = (rank * rows + (item >> vecs_log2), item & (vecs - 1));
            let column = self.first_column + vec * VEC;
            if row < self.num_rows && column < self.n {
                // SAFETY: the caller's promise; row and column are inside.
                unsafe { self.store_vec::<SPLIT_K>(staging, [row, vec], column, is_vector) };
            }
            item += MMA_THREADS;
        }
    }

    /// Stores four columns of a row, as many as exist.
    ///
    /// # Safety
    /// As [`Output::store`]; the first one is inside.
    #[inline(always)]
    unsafe fn store_vec<const SPLIT_K: u32>(
        &self,
        staging: Shared<f32>,
        [row, vec]: [u32; 2],
        column: u32,
        is_vector: bool,
    ) {
        let at = |stride: u32| (self.first_row + row) as usize * stride as usize + column as usize;
        let (residual_at, out_at) = (at(self.residual_stride), at(self.stride));
        let staged = staging.offset(row * ROW_STRIDE);
        let num_columns = if is_vector { VEC } else { VEC.min(self.n - column) };
        // SAFETY: the caller's promise.
        unsafe {
            let load = |from: Global<f32>, at: usize| -> [f32; 4] {
                let mut values = [0.0; 4];
                if from.is_null() {
                } else if is_vector {
                    values = from.get_vec(at);
                } else {
                    for i in 0..VEC as usize {
                        if (i as u32) < num_columns {
                            values[i] = from.get(at + i);
                        }
                    }
                }
                values
            };
            let added = load(self.residual, residual_at);
            let bias = load(self.bias, column as usize);
            let mut values;
            if self.gate.num_parts() == 2 {
                // Rows of tiles alternate between gate and up.
                let gate_at = (vec / 4 * 2) * TILE_ROWS + vec % 4 * VEC;
                let up_bias = load(self.bias, (self.n + column) as usize);
                let gate = sum::<SPLIT_K>(staged.offset(gate_at));
                let up = sum::<SPLIT_K>(staged.offset(gate_at + TILE_ROWS));
                values = [0.0; 4];
                for i in 0..4 {
                    // As the separate operations round.
                    let [gate, up] = [gate[i] + bias[i], up[i] + up_bias[i]]
                        .map(|value| convert::f16_to_f32(convert::f32_to_f16(value)));
                    values[i] = self.gate.apply::<f16>(gate, up);
                }
            } else {
                values = sum::<SPLIT_K>(staged.offset(vec * VEC));
                for i in 0..4 {
                    values[i] = values[i] + bias[i] + added[i];
                }
            }
            let [a, b, c, d] = values;
            let is_single = self.f32.address() != 0;
            if is_vector && is_single {
                self.f32.set_vec(out_at, values);
            } else if is_vector {
                let words = [f16::pack(a, b), f16::pack(c, d)];
                self.half.cast::<u32>().set_vec(out_at / 2, words);
            } else {
                for i in 0..VEC as usize {
                    if (i as u32) < num_columns && is_single {
                        self.f32.set(out_at + i, values[i]);
                    } else if (i as u32) < num_columns {
                        self.half.set(out_at + i, convert::f32_to_f16(values[i]));
                    }
                }
            }
        }
    }

    /// Whether four consecutive elements of each operand are one aligned access.
    #[inline(always)]
    fn is_vector(&self) -> bool {
        let strides = self.n | self.stride | self.residual_stride;
        let addresses = self.bias.address() | self.residual.address() | self.f32.address();
        strides.is_multiple_of(VEC)
            && addresses.is_multiple_of(16)
            && self.half.address().is_multiple_of(8)
    }
}

/// Four accumulators at `staged`, added over the blocks of the cluster in their order.
///
/// # Safety
/// As [`Output::store`].
#[inline(always)]
unsafe fn sum<const SPLIT_K: u32>(staged: Shared<f32>) -> [f32; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        if SPLIT_K == 1 {
            return staged.get_vec(0);
        }
        let mut parts = [[0.0; 4]; 4];
        unroll!(rank in 0..4, {
            if (rank as u32) < SPLIT_K {
                parts[rank] = cluster::map_shared(staged, rank as u32).get_v4(0);
            }
        });
        let mut sum = parts[0];
        for rank in 1..SPLIT_K as usize {
            for i in 0..4 {
                sum[i] += parts[rank][i];
            }
        }
        sum
    }
}
