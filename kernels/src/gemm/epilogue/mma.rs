//! The epilogue of the `mma.sync` mainloop: four neighbouring outputs a thread.

use super::{Destination, Epilogue, add};
use crate::element::Number;
use crate::gemm::config::mma::STEP;
use crate::gemm::mainloop::mma::Accumulators;
use crate::tile::element::Operand16;
use cuda_std::mma::AccumulatorType;
use cuda_std::prelude::*;
use cuda_std::warp;

/// Consecutive outputs that a thread stores at once.
const OUT_VEC: usize = 4;

/// The element type of an output.
pub trait Output: Number {
    /// Writes `values` to `index ..` of `out` by one store.
    ///
    /// # Safety
    /// As [`GlobalMut::set_vec`].
    unsafe fn set_four(out: GlobalMut<Self>, index: usize, values: [f32; OUT_VEC]);
}

impl Output for f32 {
    #[inline(always)]
    #[track_caller]
    unsafe fn set_four(out: GlobalMut<Self>, index: usize, values: [f32; OUT_VEC]) {
        // SAFETY: the caller's promise.
        unsafe { out.set_vec(index, values) }
    }
}

impl<E: Operand16> Output for E {
    #[inline(always)]
    #[track_caller]
    unsafe fn set_four(out: GlobalMut<Self>, index: usize, [a, b, c, d]: [f32; OUT_VEC]) {
        let words = [E::pack(a, b), E::pack(c, d)];
        // SAFETY: the caller's promise; two elements are a word.
        unsafe { out.cast::<u32>().set_vec(index / 2, words) }
    }
}

impl<O: Output> Epilogue<GlobalMut<O>> {
    /// Stores the outputs of a warp whose first row and column are given.
    ///
    /// # Safety
    /// 1. The views are as long as `m` and `n` say, and no other thread accesses these outputs.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn store<const M: usize, const N: usize, S: AccumulatorType>(
        self,
        (first_row, first_column): (u32, u32),
        acc: &Accumulators<M, N, S>,
    ) {
        let (group, pair) = (warp::lane_id() / 4, warp::lane_id() % 4);
        let column = first_column + pair % 2 * 8 + pair / 2 * 4;
        let is_vector = self.is_vector();
        unroll!(j in 0..N, {
            let column = column + j as u32 * STEP;
            // SAFETY: the caller's promise.
            unsafe { self.store_columns::<M, S>(first_row + group, column, &acc[j], is_vector) };
        });
    }

    /// Stores the thread's outputs of columns `column ..`, in every eighth row from `row` on.
    ///
    /// # Safety
    /// As [`Epilogue::store`].
    #[inline(always)]
    #[track_caller]
    unsafe fn store_columns<const M: usize, S: AccumulatorType>(
        self,
        row: u32,
        column: u32,
        acc: &[[S::Accumulator; 2]; M],
        is_vector: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let bias = self.bias_of(column, is_vector);
            unroll!(i in 0..M, {
                let row = row + i as u32 * STEP;
                let [[a, b, c, d], [e, f, g, h]] = acc[i].map(S::to_f32);
                let (mut upper, mut lower) =
                    (gather_four([a, b], [e, f]), gather_four([c, d], [g, h]));
                add(&mut upper, bias);
                add(&mut lower, bias);
                self.store_four(row, column, upper, is_vector);
                self.store_four(row + STEP / 2, column, lower, is_vector);
            });
        }
    }

    /// Whether four consecutive elements of each operand are one aligned access.
    #[inline(always)]
    fn is_vector(self) -> bool {
        let strides = self.n | self.out.row_stride | self.residual.row_stride;
        let addresses = self.bias.address() | self.residual.ptr.address();
        strides.is_multiple_of(OUT_VEC as u32)
            && addresses.is_multiple_of(16)
            && self.out.ptr.address().is_multiple_of((OUT_VEC * size_of::<O>()) as u64)
    }

    /// The bias of four columns; zeros without a bias.
    ///
    /// # Safety
    /// As [`Epilogue::store`].
    #[inline(always)]
    #[track_caller]
    unsafe fn bias_of(self, column: u32, is_vector: bool) -> [f32; OUT_VEC] {
        let mut bias = [0.0; OUT_VEC];
        if !self.bias.is_null() {
            // SAFETY: the columns are inside, by the checks.
            unsafe {
                if is_vector && column < self.n {
                    bias = self.bias.get_vec(column as usize);
                } else {
                    for i in 0..OUT_VEC {
                        if column + (i as u32) < self.n {
                            bias[i] = self.bias.get(column as usize + i);
                        }
                    }
                }
            }
        }
        bias
    }

    /// Adds the residual to four outputs of a row and stores those that are inside.
    ///
    /// # Safety
    /// As [`Epilogue::store`].
    #[inline(always)]
    #[track_caller]
    unsafe fn store_four(self, row: u32, column: u32, mut four: [f32; OUT_VEC], is_vector: bool) {
        if row >= self.num_rows {
            return;
        }
        let Epilogue { residual, out, .. } = self;
        let (residual_at, out_at) = (residual.at(row, column), out.at(row, column));
        // SAFETY: the caller's promise; row and columns are inside, by the checks.
        unsafe {
            if !is_vector {
                for i in 0..OUT_VEC {
                    let mut value = four[i];
                    if column + (i as u32) < self.n {
                        if !residual.ptr.is_null() {
                            value += residual.ptr.get(residual_at + i);
                        }
                        out.ptr.store(out_at + i, value);
                    }
                }
            } else if column < self.n {
                if !residual.ptr.is_null() {
                    add(&mut four, residual.ptr.get_vec(residual_at));
                }
                O::set_four(out.ptr, out_at, four);
            }
        }
    }
}

/// Four consecutive outputs from two of the left and two of the right eight columns: even lanes get
/// those of the left, odd lanes of the right ones. So the four lanes of a row fill 32-byte sectors.
#[inline(always)]
#[track_caller]
fn gather_four(left: [f32; 2], right: [f32; 2]) -> [f32; OUT_VEC] {
    let is_odd = warp::lane_id() % 2 == 1;
    let (kept, given) = if is_odd { (right, left) } else { (left, right) };
    let taken = given.map(|value| warp::shuffle_xor(value, 1));
    let ([a, b], [c, d]) = if is_odd { (taken, kept) } else { (kept, taken) };
    [a, b, c, d]
}
