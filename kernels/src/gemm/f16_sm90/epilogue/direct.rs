//! f32 outputs: from registers to memory, where four lanes write the 32 bytes of a sector.

use super::{CHUNK, OutElement, Output, STRIP_REGS, WarpOutput};
use cuda_std::prelude::*;

impl OutElement for f32 {
    #[inline(always)]
    fn prefetch(_: &Output<Self>) {}

    #[inline(always)]
    #[track_caller]
    unsafe fn store_strip(
        to: &mut WarpOutput<Self>,
        [row, column]: [u32; 2],
        columns: u32,
        sums: &[f32; STRIP_REGS],
    ) {
        let output = to.output;
        let row = row + warp::lane_id() / 4;
        // Rows of the upper matrix of each pair, then of the lower one.
        unroll!(half in 0..2, {
            let row = row + half as u32 * 8;
            if row < output.num_rows {
                // SAFETY: the row exists.
                unsafe { store_row::<{ half }>(&output, row, [column, columns], sums) };
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
unsafe fn store_row<const HALF: usize>(
    output: &Output<f32>,
    row: u32,
    [first_column, columns]: [u32; 2],
    sums: &[f32; STRIP_REGS],
) {
    let Output { residual, out, n, .. } = *output;
    let column = first_column + warp::lane_id() % 4 * 2;
    // SAFETY: the caller's promise.
    let bias = unsafe { output.bias(column) };
    let sum = |j: usize, i: usize| sums[4 * j + 2 * HALF + i] + bias[j][i];
    let (from, to) = (residual.at(row, column), out.at(row, column));
    let is_paired = |address: u64, stride: u32| (address as u32 | (stride * 4)).is_multiple_of(8);
    let is_whole = first_column + columns <= n;
    let all = is_whole
        && is_paired(out.ptr.address(), out.row_stride)
        && is_paired(residual.ptr.address(), residual.row_stride);
    // SAFETY: the row exists, and so do all columns, or those that are looked at.
    unsafe {
        if all {
            let mut added = [[0.0; 2]; 8];
            // All loads come before the first store, which might be to the same memory.
            if !residual.ptr.is_null() {
                unroll!(j in 0..8, {
                    if CHUNK * (j as u32) < columns {
                        added[j] = residual.ptr.get_vec(from + 8 * j);
                    }
                });
            }
            unroll!(j in 0..8, {
                if CHUNK * (j as u32) < columns {
                    let [first, second] = added[j];
                    out.ptr.set_vec(to + 8 * j, [sum(j, 0) + first, sum(j, 1) + second]);
                }
            });
        } else {
            unroll!(j in 0..8, {
                for i in 0..2 {
                    let at = 8 * j + i;
                    if CHUNK * (j as u32) < columns && column + (at as u32) < n {
                        let added =
                            if residual.ptr.is_null() { 0.0 } else { residual.ptr.get(from + at) };
                        out.ptr.set(to + at, sum(j, i) + added);
                    }
                }
            });
        }
    }
}
