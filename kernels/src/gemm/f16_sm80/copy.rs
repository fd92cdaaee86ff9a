//! Copies of the tiles of A and B from global to shared memory, by `cp.async`.

use super::tile::{MmaTile, VEC_ELEMS, swizzle};
use cuda_std::Element;
use cuda_std::prelude::*;

/// A thread's copies of A or B: one 16-byte vector in every `rows_per_copy`-th row.
#[derive(Clone, Copy)]
pub struct Copier<E> {
    /// The thread's first row and column of the block's tile, at k = 0.
    gmem: Global<E>,
    row_stride: u32,
    /// Rows from the thread's first one to the end; rows past it are zeros in shared memory.
    rows: u32,
    /// Columns from the thread's first one to the end.
    k: u32,
    /// Offset of its first vector in a stage.
    to: u32,
}

/// Rows that the block's threads copy by one instruction each.
const fn rows_per_copy<const M: usize, const N: usize, T: MmaTile<M, N>>() -> u32 {
    let rows = T::NUM_THREADS / (T::BLOCK_K / VEC_ELEMS);
    assert!(rows.is_multiple_of(8), "the rows of a thread share their swizzle");
    assert!(T::BLOCK_M.is_multiple_of(rows) && T::BLOCK_N.is_multiple_of(rows));
    rows
}

impl<E: Element> Copier<E> {
    /// The thread's part of rows `first_row ..` of a matrix `[rows, k]`.
    #[inline(always)]
    pub fn new<const M: usize, const N: usize, T: MmaTile<M, N>>(
        gmem: Global<E>,
        row_stride: u32,
        first_row: u32,
        rows: u32,
        k: u32,
    ) -> Self {
        let vecs_per_row = T::BLOCK_K / VEC_ELEMS;
        let thread = thread::thread_idx_x();
        let (row, vec_idx) = (thread / vecs_per_row, thread % vecs_per_row);
        let first_row = first_row + row;
        let column = vec_idx * VEC_ELEMS;
        Copier {
            gmem: gmem.wrapping_add(first_row as usize * row_stride as usize + column as usize),
            row_stride,
            rows: rows.saturating_sub(first_row),
            k: k.saturating_sub(column),
            to: swizzle(row, vec_idx, T::BLOCK_K),
        }
    }

    /// Issues the copies of `block_rows` rows and columns `first_k .. first_k + T::BLOCK_K` to the
    /// tile at `smem`.
    ///
    /// # Safety
    /// 1. The matrix holds `rows` rows and `k` columns, and its rows are 16-byte aligned.
    /// 2. `smem` holds `block_rows * T::BLOCK_K` elements that no thread accesses until the copies
    ///    are waited for.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_tile<const M: usize, const N: usize, T: MmaTile<M, N>>(
        self,
        smem: Shared<E>,
        block_rows: u32,
        first_k: u32,
    ) {
        let smem = smem.offset(self.to);
        for i in 0..block_rows / const { rows_per_copy::<M, N, T>() } {
            let row = i * const { rows_per_copy::<M, N, T>() };
            let from = row as usize * self.row_stride as usize + first_k as usize;
            let exists = row < self.rows && first_k < self.k;
            // SAFETY: nothing is read past the ends; the vector is inside the tile.
            unsafe {
                cp_async::copy_vec::<{ VEC_ELEMS as usize }, _>(
                    smem,
                    row * T::BLOCK_K,
                    self.gmem,
                    from,
                    exists,
                );
            }
        }
    }
}
