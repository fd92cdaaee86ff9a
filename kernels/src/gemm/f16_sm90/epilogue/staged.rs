//! 16-bit outputs: through shared memory, two strips in turn.
//!
//! `stmatrix` writes the layout of a swizzled box, and a TMA store takes it from there, which the next
//! strip does not wait for. A store has no bound of rows but the tensor's, `max_rows`, and a box has 64
//! columns: where a strip has fewer, fewer than 16 rows exist, or rows are not made of 16 bytes, the
//! lanes copy what exists.

use super::{
    CHUNK, OutElement, Output, STRIP_COLUMNS, STRIP_ELEMS, STRIP_REGS, STRIP_ROWS, WarpOutput,
};
use crate::tile::element::Operand16;
use cuda_std::matrix;
use cuda_std::prelude::*;

impl<E: Operand16> OutElement for E {
    #[inline(always)]
    fn prefetch(output: &Output<Self>) {
        if output.is_aligned() {
            output.out_map.prefetch();
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn store_strip(
        to: &mut WarpOutput<Self>,
        [row, column]: [u32; 2],
        columns: u32,
        sums: &[f32; STRIP_REGS],
    ) {
        let output = to.output;
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
            stage::<E>(&output, smem, [column, columns], sums);
            let is_aligned = output.is_aligned();
            if is_aligned && columns == STRIP_COLUMNS && row + STRIP_ROWS <= output.num_rows {
                fence::proxy_async_shared();
                warp::sync_warp();
                if lane_id == 0 {
                    bulk::tensor_store(output.out_map, [column as i32, row as i32], smem);
                }
            } else {
                warp::sync_warp();
                copy_rows(&output, smem, row, [column, columns], is_aligned);
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
unsafe fn stage<E: Operand16>(
    output: &Output<E>,
    smem: Shared<E>,
    [column, columns]: [u32; 2],
    sums: &[f32; STRIP_REGS],
) {
    // The matrices of a `stmatrix`: rows 0 and 8 of one chunk of columns, then of the next one.
    let (row, chunk) = (warp::lane_id() % STRIP_ROWS, warp::lane_id() / STRIP_ROWS);
    let smem = smem.offset(swizzle(row, chunk));
    // SAFETY: the caller's promise.
    let bias = unsafe { output.bias(column + warp::lane_id() % 4 * 2) };
    unroll!(j in 0..4, {
        let word = |i: usize| {
            let [first, second] = bias[2 * j + i / 2];
            let at = 8 * j + 2 * i;
            E::pack(sums[at] + first, sums[at + 1] + second)
        };
        let words = [word(0), word(1), word(2), word(3)];
        if 2 * CHUNK * (j as u32) < columns {
            // SAFETY: the caller's promise.
            unsafe { matrix::store_x4(smem.xor(2 * CHUNK * j as u32), words) };
        }
    });
}

/// Where a row's chunk is in a strip's box.
#[inline(always)]
fn swizzle(row: u32, chunk: u32) -> u32 {
    row * STRIP_COLUMNS + (chunk ^ (row % 8)) * CHUNK
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
    [first_column, columns]: [u32; 2],
    is_aligned: bool,
) {
    // Elements of an access.
    let step = if is_aligned { CHUNK } else { 1 };
    let num_columns = columns.min(output.n - first_column);
    let num_rows = STRIP_ROWS.min(output.num_rows - first_row);
    let mut at = warp::lane_id() * step;
    while at < num_rows * STRIP_COLUMNS {
        let (row, column) = (at / STRIP_COLUMNS, at % STRIP_COLUMNS);
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
