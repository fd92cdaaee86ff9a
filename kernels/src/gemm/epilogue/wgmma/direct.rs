//! f32 outputs, stored from registers: four lanes write a 32-byte sector.

use super::{OutElement, Output, SUBTILE_REGS, SubtileScale, VEC_ELEMS, WarpOutput};
use crate::gemm::epilogue::Epilogue;
use cuda_std::prelude::*;

impl OutElement for f32 {
    #[inline(always)]
    fn prefetch(_: &Output<Self>) {}

    #[inline(always)]
    #[track_caller]
    unsafe fn store_subtile(
        to: &mut WarpOutput<Self>,
        [row, column]: [u32; 2],
        columns: u32,
        values: &[f32; SUBTILE_REGS],
        scale: &impl SubtileScale,
    ) {
        let epilogue = to.output.epilogue;
        let row = row + warp::lane_id() / 4;
        // The upper eight rows of the MMA, then the lower ones.
        unroll!(half in 0..2, {
            let row = row + half as u32 * 8;
            if row < epilogue.num_rows {
                // SAFETY: the row exists.
                unsafe { store_row::<{ half }>(&epilogue, row, [column, columns], values, scale) };
            }
        });
    }
}

/// Stores a thread's part of a row of a subtile: two columns of every eight.
///
/// # Safety
/// 1. The row exists, and the output is as the kernel requires.
#[inline(always)]
#[track_caller]
unsafe fn store_row<const HALF: usize>(
    epilogue: &Epilogue<GlobalMut<f32>>,
    row: u32,
    [first_column, columns]: [u32; 2],
    values: &[f32; SUBTILE_REGS],
    scale: &impl SubtileScale,
) {
    let Epilogue { residual, out, n, .. } = *epilogue;
    let column = first_column + warp::lane_id() % 4 * 2;
    // SAFETY: the caller's promise.
    let bias = unsafe { epilogue.bias_of_pairs(column) };
    let value = |j: usize, i: usize| {
        let at = 4 * j + 2 * HALF + i;
        scale.apply(at, values[at], bias[j][i])
    };
    let (from, to) = (residual.at(row, column), out.at(row, column));
    let is_vec2 = |address: u64, stride: u32| (address as u32 | (stride * 4)).is_multiple_of(8);
    let is_full = first_column + columns <= n;
    let all = is_full
        && is_vec2(out.ptr.address(), out.row_stride)
        && is_vec2(residual.ptr.address(), residual.row_stride);
    // SAFETY: the row exists; so do all columns, or each is checked.
    unsafe {
        if all {
            let mut added = [[0.0; 2]; 8];
            // The residual may be the output: all loads come before the first store.
            if !residual.ptr.is_null() {
                unroll!(j in 0..8, {
                    if VEC_ELEMS * (j as u32) < columns {
                        added[j] = residual.ptr.get_vec(from + 8 * j);
                    }
                });
            }
            unroll!(j in 0..8, {
                if VEC_ELEMS * (j as u32) < columns {
                    let [first, second] = added[j];
                    out.ptr.set_vec(to + 8 * j, [value(j, 0) + first, value(j, 1) + second]);
                }
            });
        } else {
            unroll!(j in 0..8, {
                for i in 0..2 {
                    let at = 8 * j + i;
                    if VEC_ELEMS * (j as u32) < columns && column + (at as u32) < n {
                        let added =
                            if residual.ptr.is_null() { 0.0 } else { residual.ptr.get(from + at) };
                        out.ptr.set(to + at, value(j, i) + added);
                    }
                }
            });
        }
    }
}
