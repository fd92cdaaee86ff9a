//! 16-bit outputs, staged in shared memory in two alternating buffers.
//!
//! `stmatrix` writes a subtile in the swizzled layout of a TMA box, and a TMA store copies it to
//! memory while the next subtile is staged. TMA checks rows against the tensor's `max_rows` only,
//! and a box has 64 columns: the lanes copy a subtile that has fewer columns, fewer than 16 rows,
//! or rows that are not 16-byte aligned.

use super::{
    OutElement, Output, SUBTILE_COLUMNS, SUBTILE_ELEMS, SUBTILE_REGS, SUBTILE_ROWS, SubtileScale,
    VEC_ELEMS, WarpOutput,
};
use crate::gemm::epilogue::Epilogue;
use crate::tile::element::Operand16;
use crate::tile::smem::swizzle;
use cuda_std::matrix;
use cuda_std::prelude::*;

impl<E: Operand16> OutElement for E {
    #[inline(always)]
    fn prefetch(output: &Output<Self>) {
        if output.epilogue.is_aligned() {
            output.out_map.prefetch();
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn store_subtile(
        to: &mut WarpOutput<Self>,
        [row, column]: [u32; 2],
        columns: u32,
        values: &[f32; SUBTILE_REGS],
        scale: &impl SubtileScale,
    ) {
        let Output { epilogue, out_map } = to.output;
        if row >= epilogue.num_rows || column >= epilogue.n {
            return;
        }
        let lane_id = warp::lane_id();
        let smem = to.staging.offset(to.buffer * SUBTILE_ELEMS);
        to.buffer ^= 1;
        // SAFETY: the store before the last one has read the buffer; rows and columns are inside by
        // the checks, here and of TMA.
        unsafe {
            if lane_id == 0 {
                bulk::wait_group_read::<1>();
            }
            warp::sync_warp();
            stage::<E>(&epilogue, smem, [column, columns], values, scale);
            let is_aligned = epilogue.is_aligned();
            if is_aligned && columns == SUBTILE_COLUMNS && row + SUBTILE_ROWS <= epilogue.num_rows {
                fence::proxy_async_shared();
                warp::sync_warp();
                if lane_id == 0 {
                    bulk::tensor_store(out_map, [column as i32, row as i32], smem);
                }
            } else {
                warp::sync_warp();
                copy_rows(&epilogue, smem, row, [column, columns], is_aligned);
            }
            // One group for each subtile: an empty one where the lanes copy.
            if lane_id == 0 {
                bulk::commit_group();
            }
        }
    }
}

/// Scales, adds the bias, rounds to 16 bits, and writes a subtile in the layout of a TMA box.
///
/// # Safety
/// 1. The whole warp calls this, converged; `smem` is a buffer that nothing else accesses.
#[inline(always)]
#[track_caller]
unsafe fn stage<E: Operand16>(
    epilogue: &Epilogue<GlobalMut<E>>,
    smem: Shared<E>,
    [column, columns]: [u32; 2],
    values: &[f32; SUBTILE_REGS],
    scale: &impl SubtileScale,
) {
    // The matrices of a `stmatrix.x4`: the upper and the lower eight rows of eight columns, then of
    // the next eight.
    let (row, vec_idx) = (warp::lane_id() % SUBTILE_ROWS, warp::lane_id() / SUBTILE_ROWS);
    let smem = smem.offset(swizzle::<E, SUBTILE_COLUMNS>(row, vec_idx));
    // SAFETY: the caller's promise.
    let bias = unsafe { epilogue.bias_of_pairs(column + warp::lane_id() % 4 * 2) };
    unroll!(j in 0..4, {
        let word = |i: usize| {
            let [first, second] = bias[2 * j + i / 2];
            let at = 8 * j + 2 * i;
            let output = |at: usize, bias| scale.apply(at, values[at], bias);
            E::pack(output(at, first), output(at + 1, second))
        };
        let words = [word(0), word(1), word(2), word(3)];
        if 2 * VEC_ELEMS * (j as u32) < columns {
            // SAFETY: the caller's promise.
            unsafe { matrix::store_x4(smem.xor(2 * VEC_ELEMS * j as u32), words) };
        }
    });
}

/// Copies the rows and columns of a subtile that exist to the output.
///
/// # Safety
/// 1. The subtile is written, and visible to all lanes.
/// 2. The output is as the kernel requires; its rows start and end at multiples of 16 bytes if
///    `is_aligned`.
#[inline(always)]
#[track_caller]
unsafe fn copy_rows<E: Operand16>(
    epilogue: &Epilogue<GlobalMut<E>>,
    smem: Shared<E>,
    first_row: u32,
    [first_column, columns]: [u32; 2],
    is_aligned: bool,
) {
    // Elements of one access.
    let step = if is_aligned { VEC_ELEMS } else { 1 };
    let num_columns = columns.min(epilogue.n - first_column);
    let num_rows = SUBTILE_ROWS.min(epilogue.num_rows - first_row);
    let mut at = warp::lane_id() * step;
    while at < num_rows * SUBTILE_COLUMNS {
        let (row, column) = (at / SUBTILE_COLUMNS, at % SUBTILE_COLUMNS);
        let to = epilogue.out.at(first_row + row, first_column + column);
        let from = swizzle::<E, SUBTILE_COLUMNS>(row, column / VEC_ELEMS) + column % VEC_ELEMS;
        // SAFETY: the row exists, and the columns are checked.
        unsafe {
            if column < num_columns && is_aligned {
                epilogue.out.ptr.set_vec::<{ VEC_ELEMS as usize }>(to, smem.get_vec(from));
            } else if column < num_columns {
                epilogue.out.ptr.set(to, smem.get(from));
            }
        }
        at += warp::WARP_SIZE * step;
    }
}
