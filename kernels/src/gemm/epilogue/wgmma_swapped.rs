//! The epilogue of swapped operands: a thread has two columns, eight apart, and two neighbouring
//! rows of every eight rows of x. With a gate the former are gate and up of one column.

use super::wgmma::SUBTILE_REGS;
use super::{Destination, Epilogue, Out};
use crate::activation::Gate;
use crate::gemm::mainloop::accumulators::Accumulators;
use crate::tile::element::Operand16;
use cuda_std::prelude::*;

/// Columns of a warpgroup, those of gate and of up together.
pub struct Columns {
    /// The first one that it has accumulators of.
    pub first: u32,
    /// The first one that it stores, and the one after the last.
    pub start: u32,
    pub end: u32,
}

/// The rows and columns of a thread's outputs.
struct Cells {
    columns: [u32; 2],
    /// Whether they are stored.
    has_column: [bool; 2],
    first_row: u32,
    num_rows: u32,
}

impl Cells {
    #[inline(always)]
    fn new<G: Gate>(columns: &Columns, num_rows: u32) -> Self {
        let parts = G::PARTS as u32;
        let [first, start, end] = [columns.first, columns.start, columns.end].map(|x| x / parts);
        let warp_idx = warp::warp_idx() % 4;
        let column = first + warp_idx * (16 / parts) + warp::lane_id() / 4;
        let columns = [column, column + 8];
        let mut has_column = columns.map(|column| start <= column && column < end);
        has_column[1] &= parts == 1;
        Cells { columns, has_column, first_row: warp::lane_id() % 4 * 2, num_rows }
    }

    /// Element of value `i` in a matrix whose rows are `stride` apart, if it is stored.
    #[inline(always)]
    fn element(&self, i: usize, stride: u32) -> Option<usize> {
        let (row, column) = (self.first_row + (i / 4 * 8 + i % 2) as u32, i / 2 % 2);
        let is_inside = row < self.num_rows && self.has_column[column];
        is_inside.then(|| row as usize * stride as usize + self.columns[column] as usize)
    }
}

impl<E: Operand16> Epilogue<Out<E>> {
    /// Stores a warpgroup's accumulators of `columns`.
    ///
    /// # Safety
    /// 1. The columns are inside, and no other warpgroup stores them; the outputs are as the kernel
    ///    requires.
    #[inline(always)]
    pub unsafe fn store_swapped<A: Accumulators, G: Gate>(&self, columns: &Columns, acc: A) {
        let cells = Cells::new::<G>(columns, self.num_rows);
        let Out { half, f32 } = self.out.ptr;
        let mut bias = [0.0; 2];
        let mut added = [0.0; SUBTILE_REGS];
        // SAFETY: cells are inside.
        unsafe {
            for i in 0..2 {
                let (cell, part) = if G::PARTS == 1 { (i, 0) } else { (0, i as u32) };
                if cells.has_column[cell] && !self.bias.is_null() {
                    bias[i] = self.bias.get((part * self.n + cells.columns[cell]) as usize);
                }
            }
            // The residual may be the output: all loads come before the first store.
            if !self.residual.ptr.is_null() {
                for_each_value::<A>(|i| {
                    if let Some(at) = cells.element(i, self.residual.row_stride) {
                        added[i] = self.residual.ptr.get(at);
                    }
                });
            }
            acc.for_each_subtile(|_, values| {
                let sum = |i: usize| values[i] + bias[i / 2 % 2] + added[i];
                let value = |i: usize| {
                    if G::PARTS == 1 {
                        return sum(i);
                    }
                    // As the separate operations round.
                    let [gate, up] = [sum(i), sum(i + 2)].map(|x| E::from_f32(x).to_f32());
                    G::apply::<E>(gate, up)
                };
                if G::PARTS == 1 && f32.address() != 0 {
                    for_each_value::<A>(|i| {
                        if let Some(at) = cells.element(i, self.out.row_stride) {
                            f32.set(at, value(i));
                        }
                    });
                } else if self.are_words(columns) {
                    self.store_words::<A, G>(&cells, value);
                } else {
                    for_each_value::<A>(|i| {
                        if let Some(at) = cells.element(i, self.out.row_stride) {
                            half.store(at, value(i));
                        }
                    });
                }
            });
        }
    }

    /// Whether an even column's 16-bit output and the next one are an aligned word, and the end of
    /// the columns splits none.
    #[inline(always)]
    fn are_words(&self, columns: &Columns) -> bool {
        let bytes = (self.out.row_stride | columns.end) * size_of::<E>() as u32;
        (self.out.ptr.half.address() as u32 | bytes).is_multiple_of(4)
    }

    /// Stores 16-bit outputs as words: lanes of neighbouring columns exchange values, so that each
    /// has both columns of one of its two rows.
    ///
    /// # Safety
    /// 1. The whole warp calls this, converged, where outputs are words; cells are inside.
    #[inline(always)]
    unsafe fn store_words<A: Accumulators, G: Gate>(
        &self,
        cells: &Cells,
        value: impl Fn(usize) -> f32,
    ) {
        let is_odd = warp::lane_id() / 4 % 2 == 1;
        unroll!(pair in 0..16, {
            if (pair as u32) < A::COLUMNS / 4 && pair.is_multiple_of(G::PARTS) {
                let (upper, lower) = (value(2 * pair), value(2 * pair + 1));
                let got = warp::shuffle_xor(if is_odd { upper } else { lower }, 4);
                let word = if is_odd { E::pack(got, lower) } else { E::pack(upper, got) };
                if let Some(at) = cells.element(2 * pair + is_odd as usize, self.out.row_stride) {
                    // SAFETY: the cell is inside. An odd column's word starts at the even column.
                    unsafe { self.out.ptr.half.cast::<u32>().set(at / 2, word) };
                }
            }
        });
    }
}

/// Calls `f` with the index of each of a thread's values, unrolled.
#[inline(always)]
fn for_each_value<A: Accumulators>(mut f: impl FnMut(usize)) {
    unroll!(rows in 0..8, {
        if (rows as u32) < A::COLUMNS / 8 {
            for i in 0..4 {
                f(4 * rows + i);
            }
        }
    });
}
