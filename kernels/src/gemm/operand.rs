//! The sources of a mainloop's operands: tiles that threads copy to shared memory by `cp.async`
//! (here), rows in global or shared memory, normed rows, and rings of TMA boxes.

pub mod normed;
pub mod ring;
pub mod rows;

use core::marker::PhantomData;
use cuda_std::Element;
use cuda_std::prelude::*;

/// How the threads of a block copy a stage of an operand. A type, not a value: LLVM simplifies the
/// addresses of copies better when it has the constants before it inlines.
pub trait CopiedTile {
    /// Columns of a stage.
    const BLOCK_K: u32;
    /// Threads of the block.
    const NUM_THREADS: u32;
    /// Elements of a copy: 16 bytes, or one element of 4 bytes where rows are unaligned.
    const COPY_ELEMS: u32;
    /// Copies of a row.
    const COPIES_PER_ROW: u32 = Self::BLOCK_K / Self::COPY_ELEMS;
    /// Rows that the threads copy by one instruction each.
    const ROWS_PER_COPY: u32 = {
        let rows = Self::NUM_THREADS / Self::COPIES_PER_ROW;
        assert!(rows.is_multiple_of(8), "the rows of a thread share their swizzle");
        rows
    };

    /// Element offset of 16-byte vector `vec_idx` of a row in a stage.
    fn swizzle(row: u32, vec_idx: u32) -> u32;
}

/// A thread's copies of an operand: the same columns of every `T::ROWS_PER_COPY`-th row.
pub struct Copier<E, T> {
    /// The thread's first row and column of the block's tile, at k = 0.
    gmem: Global<E>,
    row_stride: u32,
    /// Rows from the thread's first one to the end; rows past it are zeros in shared memory.
    rows: u32,
    /// Columns from the thread's first one to the end.
    k: u32,
    /// Offset of its first copy in a stage.
    to: u32,
    tile: PhantomData<T>,
}

impl<E, T> Clone for Copier<E, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<E, T> Copy for Copier<E, T> {}

impl<E: Element, T: CopiedTile> Copier<E, T> {
    /// The thread's part of rows `first_row ..` of a matrix `[rows, k]`.
    #[inline(always)]
    pub fn new(gmem: Global<E>, row_stride: u32, first_row: u32, [rows, k]: [u32; 2]) -> Self {
        let thread = thread::thread_idx_x();
        let (row, column) =
            (thread / T::COPIES_PER_ROW, thread % T::COPIES_PER_ROW * T::COPY_ELEMS);
        let first_row = first_row + row;
        let vec_elems = const { 16 / size_of::<E>() as u32 };
        Copier {
            gmem: gmem.wrapping_add(first_row as usize * row_stride as usize + column as usize),
            row_stride,
            rows: rows.saturating_sub(first_row),
            k: k.saturating_sub(column),
            to: T::swizzle(row, column / vec_elems) + column % vec_elems,
            tile: PhantomData,
        }
    }

    /// Issues the copies of `block_rows` rows and columns `first_k .. first_k + T::BLOCK_K` to the
    /// tile at `smem`.
    ///
    /// # Safety
    /// 1. The matrix holds `rows` rows and `k` columns; copies of 16 bytes are aligned.
    /// 2. `smem` holds `block_rows * T::BLOCK_K` elements that no thread accesses until the copies
    ///    are waited for.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_tile(self, smem: Shared<E>, block_rows: u32, first_k: u32) {
        let smem = smem.offset(self.to);
        for i in 0..block_rows / T::ROWS_PER_COPY {
            let row = i * T::ROWS_PER_COPY;
            let from = row as usize * self.row_stride as usize + first_k as usize;
            let exists = row < self.rows && first_k < self.k;
            let to = row * T::BLOCK_K;
            // SAFETY: nothing is read past the ends; the copy is inside the tile.
            unsafe {
                if T::COPY_ELEMS == 1 {
                    cp_async::copy(smem.cast(), to, self.gmem.cast(), from, exists);
                } else {
                    let bytes = if exists { 16 } else { 0 };
                    cp_async::copy_start(smem, to, self.gmem, from, bytes);
                }
            }
        }
    }
}
