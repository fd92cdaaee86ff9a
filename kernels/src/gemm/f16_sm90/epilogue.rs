//! From the sums in registers to memory: bias, residual, rounding.
//!
//! A warp has 16 rows of each product of its warpgroup, and stores them by itself in strips of 64
//! columns: no warp waits for another.
//!
//! - 16-bit outputs go through shared memory, two strips in turn: `stmatrix` into the layout of a
//!   swizzled box, and from there a TMA store, which the next strip does not wait for. A box has no
//!   bound of rows but the tensor's, `max_rows`: where fewer than 16 rows exist, or rows start at no
//!   multiple of 16 bytes, the lanes copy what exists.
//! - f32 outputs go straight to memory: four lanes write the 32 bytes of a sector.

use super::tiles::ROW_BYTES;
use crate::tile::element::Operand16;
use cuda_std::prelude::*;
use cuda_std::{Element, matrix};

/// Columns of a strip: rows of 128 bytes of 16-bit elements.
pub(in crate::gemm) const STRIP: u32 = 64;

/// Rows of a strip.
pub(in crate::gemm) const WARP_ROWS: u32 = 16;

/// Elements in shared memory for one strip.
const STRIP_ELEMS: u32 = WARP_ROWS * STRIP;

/// Shared memory of a warp.
pub(super) const STAGING_BYTES: u32 = 2 * WARP_ROWS * ROW_BYTES;

/// Elements of 16 bits that one access moves.
const CHUNK: u32 = 8;

/// Registers of a strip.
const STRIP_REGS: usize = 32;

/// A matrix of the output's rows and columns in global memory.
#[derive(Clone, Copy)]
pub struct Matrix<P> {
    /// Its first element.
    pub ptr: P,
    /// Elements from a row to the next.
    pub row_stride: u32,
}

impl<P> Matrix<P> {
    #[inline(always)]
    fn at(&self, row: u32, column: u32) -> usize {
        row as usize * self.row_stride as usize + column as usize
    }
}

/// What the kernel's outputs are made of and where they go.
#[derive(Clone, Copy)]
pub struct Output<O> {
    /// Rows that exist.
    pub num_rows: u32,
    /// Columns.
    pub n: u32,
    /// `[n]`, or null.
    pub bias: Global<f32>,
    /// `[num_rows, n]`, or null.
    pub residual: Matrix<Global<f32>>,
    /// `[num_rows, n]`.
    pub out: Matrix<GlobalMut<O>>,
    /// The same in boxes of a strip; not used if its rows start at no multiple of 16 bytes.
    pub out_map: TensorMap,
}

/// Where a warp stores.
pub struct WarpOutput<O> {
    output: Output<O>,
    /// Room for two strips.
    staging: Shared<O>,
    /// Which one is next.
    buffer: u32,
    /// The warp's first row and column of the tile.
    row: u32,
    column: u32,
}

impl<O> WarpOutput<O> {
    /// The output of a warp that has `STAGING_BYTES` at `staging`, a multiple of 1024.
    #[inline(always)]
    pub(super) fn new(output: Output<O>, staging: Shared<O>) -> Self {
        WarpOutput { output, staging, buffer: 0, row: 0, column: 0 }
    }

    /// Goes to a tile in which the warp's first row and column are these.
    #[inline(always)]
    pub(super) fn move_to(&mut self, row: u32, column: u32) {
        (self.row, self.column) = (row, column);
    }

    /// Waits until the warp's shared memory is read: before its block ends.
    #[inline(always)]
    #[track_caller]
    pub(super) fn finish(&self) {
        bulk::wait_group_read::<0>();
    }
}

impl<O> Output<O> {
    /// The bias of the thread's columns of a strip: `column` and the one behind it, and those of
    /// every eight columns on. Columns that do not exist have that of the last one.
    ///
    /// # Safety
    /// 1. `bias` is what the kernel asks for, and `n > 0`.
    #[inline(always)]
    #[track_caller]
    unsafe fn bias(&self, column: u32) -> [[f32; 2]; 8] {
        let mut bias = [[0.0; 2]; 8];
        if !self.bias.is_null() {
            let at = |i: u32| (column + i).min(self.n - 1) as usize;
            unroll!(j in 0..8, {
                let first = CHUNK * j as u32;
                // SAFETY: the columns are inside.
                bias[j] = unsafe { [self.bias.get(at(first)), self.bias.get(at(first + 1))] };
            });
        }
        bias
    }
}

/// What outputs can be: f32, or the operands' type.
pub trait OutElement: Element {
    /// Stores columns `64 * STRIP ..` of a product whose rows begin `first_row` below the tile's:
    /// `sums` are the thread's part of its accumulator.
    ///
    /// # Safety
    /// 1. The whole warp calls this, converged.
    /// 2. The output is what the kernel asks for.
    unsafe fn store_strip<const REGS: usize, const STRIP: usize>(
        to: &mut WarpOutput<Self>,
        first_row: u32,
        sums: &[f32; REGS],
    );
}

impl<E: Operand16> OutElement for E {
    #[inline(always)]
    #[track_caller]
    unsafe fn store_strip<const REGS: usize, const STRIP: usize>(
        to: &mut WarpOutput<Self>,
        first_row: u32,
        sums: &[f32; REGS],
    ) {
        let output = to.output;
        let (row, column) = (to.row + first_row, to.column + STRIP as u32 * self::STRIP);
        if row >= output.num_rows || column >= output.n {
            return;
        }
        let lane_id = warp::lane_id();
        let smem = to.staging.offset(to.buffer * STRIP_ELEMS);
        to.buffer ^= 1;
        // SAFETY: the buffer's last store but one has read it; rows and columns are inside by the
        // checks, here and of TMA.
        unsafe {
            if lane_id == 0 {
                bulk::wait_group_read::<1>();
            }
            warp::sync_warp();
            stage::<E, REGS, STRIP>(&output, smem, column, sums);
            let alignment =
                output.out.ptr.address() as u32 | (output.out.row_stride | output.n) * 2;
            let is_aligned = alignment.is_multiple_of(16);
            if is_aligned && row + WARP_ROWS <= output.num_rows {
                fence::proxy_async_shared();
                warp::sync_warp();
                if lane_id == 0 {
                    bulk::tensor_store(output.out_map, [column as i32, row as i32], smem);
                }
            } else {
                warp::sync_warp();
                copy_rows(&output, smem, row, column, is_aligned);
            }
            // An empty group where the lanes copy: a group for each strip.
            if lane_id == 0 {
                bulk::commit_group();
            }
        }
    }
}

/// Rounds a strip to 16 bits, with its bias, and lays it out as a box of TMA.
///
/// # Safety
/// 1. The whole warp calls this, converged; `smem` is a strip's that nobody else accesses.
#[inline(always)]
#[track_caller]
unsafe fn stage<E: Operand16, const REGS: usize, const STRIP: usize>(
    output: &Output<E>,
    smem: Shared<E>,
    column: u32,
    sums: &[f32; REGS],
) {
    // The matrices of a `stmatrix`: rows 0 and 8 of one chunk of columns, then of the next one.
    let (row, chunk) = (warp::lane_id() % WARP_ROWS, warp::lane_id() / WARP_ROWS);
    let smem = smem.offset(swizzle(row, chunk));
    // SAFETY: the caller's promise.
    let bias = unsafe { output.bias(column + warp::lane_id() % 4 * 2) };
    unroll!(j in 0..4, {
        let word = |i: usize| {
            let [first, second] = bias[2 * j + i / 2];
            let at = STRIP * STRIP_REGS + 8 * j + 2 * i;
            E::narrow_pair(sums[at] + first, sums[at + 1] + second)
        };
        let words = [word(0), word(1), word(2), word(3)];
        // SAFETY: the caller's promise.
        unsafe { matrix::store_x4(smem.xor(2 * CHUNK * j as u32), words) };
    });
}

/// Where a row's chunk is in a strip's box.
#[inline(always)]
fn swizzle(row: u32, chunk: u32) -> u32 {
    row * STRIP + (chunk ^ row % 8) * CHUNK
}

/// Copies what exists of a strip to the output.
///
/// # Safety
/// 1. The strip is written, and seen by all lanes.
/// 2. The output is what the kernel asks for; its rows start and end at multiples of 16 bytes if
///    `is_aligned`.
#[inline(always)]
#[track_caller]
unsafe fn copy_rows<E: Operand16>(
    output: &Output<E>,
    smem: Shared<E>,
    first_row: u32,
    first_column: u32,
    is_aligned: bool,
) {
    // Elements of an access.
    let step = if is_aligned { CHUNK } else { 1 };
    let num_columns = STRIP.min(output.n - first_column);
    let num_rows = WARP_ROWS.min(output.num_rows - first_row);
    let mut at = warp::lane_id() * step;
    while at < num_rows * STRIP {
        let (row, column) = (at / STRIP, at % STRIP);
        let to = output.out.at(first_row + row, first_column + column);
        let from = swizzle(row, column / CHUNK) + column % CHUNK;
        // SAFETY: the row exists, and the columns are checked.
        unsafe {
            if column < num_columns && is_aligned {
                output.out.ptr.set_vec::<{ CHUNK as usize }>(to, smem.get_vec(from));
            } else if column < num_columns {
                output.out.ptr.set(to, smem.get(from));
            }
        }
        at += warp::WARP_SIZE * step;
    }
}

impl OutElement for f32 {
    #[inline(always)]
    #[track_caller]
    unsafe fn store_strip<const REGS: usize, const STRIP: usize>(
        to: &mut WarpOutput<Self>,
        first_row: u32,
        sums: &[f32; REGS],
    ) {
        let output = to.output;
        let row = to.row + first_row + warp::lane_id() / 4;
        let column = to.column + STRIP as u32 * self::STRIP + warp::lane_id() % 4 * 2;
        // Rows of the upper matrix of each pair, then of the lower one.
        unroll!(half in 0..2, {
            let row = row + half as u32 * 8;
            if row < output.num_rows {
                // SAFETY: the row exists.
                unsafe { store_row::<REGS, STRIP, { half }>(&output, row, column, sums) };
            }
        });
    }
}

/// Stores a thread's part of a row of a strip: two columns of every eight.
///
/// # Safety
/// 1. The row exists, and the output is what the kernel asks for.
#[inline(always)]
#[track_caller]
unsafe fn store_row<const REGS: usize, const STRIP: usize, const HALF: usize>(
    output: &Output<f32>,
    row: u32,
    column: u32,
    sums: &[f32; REGS],
) {
    let Output { residual, out, n, .. } = *output;
    // SAFETY: the caller's promise.
    let bias = unsafe { output.bias(column) };
    let sum = |j: usize, i: usize| sums[STRIP * STRIP_REGS + 4 * j + 2 * HALF + i] + bias[j][i];
    let (from, to) = (residual.at(row, column), out.at(row, column));
    let is_paired = |address: u64, stride: u32| (address as u32 | stride * 4).is_multiple_of(8);
    let is_whole = column / self::STRIP * self::STRIP + self::STRIP <= n;
    let all = is_whole
        && is_paired(out.ptr.address(), out.row_stride)
        && is_paired(residual.ptr.address(), residual.row_stride);
    // SAFETY: the row exists, and so do all columns, or those that are looked at.
    unsafe {
        if all {
            let mut added = [[0.0; 2]; 8];
            // All loads come before the first store, which might be to the same memory.
            if !residual.ptr.is_null() {
                unroll!(j in 0..8, { added[j] = residual.ptr.get_vec(from + 8 * j) });
            }
            unroll!(j in 0..8, {
                let [first, second] = added[j];
                out.ptr.set_vec(to + 8 * j, [sum(j, 0) + first, sum(j, 1) + second]);
            });
        } else {
            unroll!(j in 0..8, {
                for i in 0..2 {
                    let at = 8 * j + i;
                    if column + (at as u32) < n {
                        let added =
                            if residual.ptr.is_null() { 0.0 } else { residual.ptr.get(from + at) };
                        out.ptr.set(to + at, sum(j, i) + added);
                    }
                }
            });
        }
    }
}
