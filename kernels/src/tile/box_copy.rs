//! Boxes of a weight that threads copy by `cp.async` in the layout of TMA: rows of 64 columns, 128
//! bytes, with the 128-byte swizzle.
//!
//! For the first boxes of a launch: TMA first reads its tensor map, and one lane issues box after
//! box, whereas all threads copy at once. TMA is faster for the later ones, whose copies would take
//! issue slots from the MMAs (`docs/measurements/gemm_small_m.md`).

use super::smem::swizzle;
use cuda_std::prelude::*;

/// Columns of a box.
const BOX_K: u32 = 64;

/// Elements of a 16-byte copy.
const VEC_ELEMS: u32 = 8;

/// Copies of a row.
const ROW_VECS: u32 = BOX_K / VEC_ELEMS;

/// Rows of gate, and of up, that alternate in a box of both.
pub const GATE_ROWS: u32 = 8;

/// A weight in global memory.
#[derive(Clone, Copy)]
pub struct Weight {
    /// Elements of the weight.
    pub elems: Global<u16>,
    /// Row stride, in elements.
    pub stride: u32,
    /// Rows.
    pub rows: u32,
    /// Columns.
    pub k: u32,
    /// Whether the rows of boxes are [`GATE_ROWS`] of the first half and of the second in turn.
    pub is_gated: bool,
}

/// The threads that copy a box together.
#[derive(Clone, Copy)]
pub struct CopyThreads {
    /// How many there are, a multiple of 8.
    pub num_threads: u32,
    /// Index of this thread among them.
    pub thread: u32,
}

impl Weight {
    /// The row of the weight that is row `row` of all boxes.
    #[inline(always)]
    fn row(&self, row: u32) -> u32 {
        if !self.is_gated {
            return row;
        }
        let (group, row) = (row / GATE_ROWS, row % GATE_ROWS);
        group / 2 * GATE_ROWS + row + group % 2 * (self.rows / 2)
    }

    /// Issues the thread's copies of a box: columns `k ..` of rows `first_row .. first_row +
    /// num_rows`, to rows `to ..` of `smem`. Rows past the last one are the last one; columns past
    /// the end zeros.
    ///
    /// # Safety
    /// 1. Rows of the weight hold `k` elements and are 16-byte aligned; `k` is a multiple of 8.
    /// 2. `smem` is aligned to 1024 bytes and holds `to + num_rows` rows, which no other thread
    ///    accesses until the copies are waited for.
    #[inline(always)]
    pub unsafe fn copy_box(
        &self,
        threads: CopyThreads,
        [k, first_row]: [u32; 2],
        num_rows: u32,
        smem: Shared<u16>,
        to: u32,
    ) {
        let (vec_idx, mut row) = (threads.thread % ROW_VECS, threads.thread / ROW_VECS);
        let column = k + vec_idx * VEC_ELEMS;
        while row < num_rows {
            let (to, from) = (to + row, self.row((first_row + row).min(self.rows - 1)));
            let to = swizzle::<u16, BOX_K>(to, vec_idx);
            let from = from as usize * self.stride as usize + column as usize;
            // SAFETY: the caller's promise; nothing is read past a row's end.
            unsafe {
                cp_async::copy_vec::<{ VEC_ELEMS as usize }, _>(
                    smem,
                    to,
                    self.elems,
                    from,
                    column < self.k,
                );
            }
            row += threads.num_threads / ROW_VECS;
        }
    }
}

/// Commits the thread's copies, for [`wait_for_copies`].
#[inline(always)]
pub fn end_copies() {
    cp_async::commit();
}

/// Waits for the thread's copies. After a barrier, other threads and TMA may access what they
/// wrote.
#[inline(always)]
pub fn wait_for_copies() {
    cp_async::wait(0);
    fence::proxy_async_shared();
}
