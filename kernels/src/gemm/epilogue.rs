//! The epilogue of a linear layer: bias, residual or gate, the cast, and the store. What it applies
//! is the same for every mainloop ([`Epilogue`]); which outputs a thread has is not: a module each.

pub mod mma;
pub mod stream;
pub mod wgmma;
pub mod wgmma_swapped;

use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;

/// A matrix in global memory of the output's shape.
#[derive(Clone, Copy)]
pub struct Matrix<P> {
    /// First element of the matrix.
    pub ptr: P,
    /// Row stride, in elements.
    pub row_stride: u32,
}

impl<P> Matrix<P> {
    /// Index of an element.
    #[inline(always)]
    pub fn at(&self, row: u32, column: u32) -> usize {
        row as usize * self.row_stride as usize + column as usize
    }
}

impl Matrix<Global<f32>> {
    /// The matrix after its first `rows` rows; null stays null.
    #[inline(always)]
    pub fn skip_rows(self, rows: u32) -> Self {
        let ptr =
            if self.ptr.is_null() { self.ptr } else { self.ptr.wrapping_add(self.at(rows, 0)) };
        Matrix { ptr, ..self }
    }
}

impl<E: Number> Matrix<Out<E>> {
    /// The matrix after its first `rows` rows, where it is stored.
    ///
    /// # Safety
    /// 1. The matrix has so many rows.
    #[inline(always)]
    pub unsafe fn skip_rows(self, rows: u32) -> Self {
        let (at, mut ptr) = (self.at(rows, 0), self.ptr);
        // SAFETY: the caller's promise.
        unsafe {
            if ptr.f32.address() == 0 {
                ptr.half = ptr.half.add(at);
            } else {
                ptr.f32 = ptr.f32.add(at);
            }
        }
        Matrix { ptr, ..self }
    }
}

/// Where outputs are stored.
pub trait Destination: Copy {
    /// Rounds `value` to the element type and stores it.
    ///
    /// # Safety
    /// As [`GlobalMut::set`].
    unsafe fn store(self, index: usize, value: f32);
}

impl<O: Number> Destination for GlobalMut<O> {
    #[inline(always)]
    #[track_caller]
    unsafe fn store(self, index: usize, value: f32) {
        // SAFETY: the caller's promise.
        unsafe { self.set(index, O::from_f32(value)) }
    }
}

/// Outputs in `half`, or in `f32` if that is not null.
#[derive(Clone, Copy)]
pub struct Out<E> {
    /// 16-bit outputs.
    pub half: GlobalMut<E>,
    /// f32 outputs.
    pub f32: GlobalMut<f32>,
}

impl<E: Number> Destination for Out<E> {
    #[inline(always)]
    #[track_caller]
    unsafe fn store(self, index: usize, value: f32) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.f32.address() == 0 {
                self.half.store(index, value);
            } else {
                self.f32.store(index, value);
            }
        }
    }
}

/// The output, and what is added to it.
#[derive(Clone, Copy)]
pub struct Epilogue<D> {
    /// Rows that exist.
    pub num_rows: u32,
    /// Columns.
    pub n: u32,
    /// `[n]`, or null; `[2 * n]` with a gate.
    pub bias: Global<f32>,
    /// `[num_rows, n]`, or null.
    pub residual: Matrix<Global<f32>>,
    /// `[num_rows, n]`.
    pub out: Matrix<D>,
}

impl<D: Destination> Epilogue<D> {
    /// Adds bias and residual to an output, and stores it. Its indices are `at` of the row stride.
    ///
    /// # Safety
    /// 1. The views are as long as `num_rows` and `n` say; row and column are inside, and no other
    ///    thread accesses the output.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn finish(&self, column: u32, at: impl Fn(u32) -> usize, mut value: f32) {
        // SAFETY: the caller's promise.
        unsafe {
            if !self.bias.is_null() {
                value += self.bias.get(column as usize);
            }
            if !self.residual.ptr.is_null() {
                value += self.residual.ptr.get(at(self.residual.row_stride));
            }
            self.out.ptr.store(at(self.out.row_stride), value);
        }
    }
}

impl<O: Number> Epilogue<GlobalMut<O>> {
    /// Adds bias and residual to `columns` of a row, and stores them.
    ///
    /// # Safety
    /// 1. The views are as long as `num_rows` and `n` say, and aligned if `columns` says so; the
    ///    row is inside, and no other thread accesses its columns.
    #[inline(always)]
    #[track_caller]
    pub(in crate::gemm) unsafe fn finish_columns(
        &self,
        row: u32,
        columns: Columns,
        mut values: [f32; VEC_ELEMS as usize],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if !self.bias.is_null() {
                add(&mut values, columns.load(self.bias));
            }
            if !self.residual.ptr.is_null() {
                add(&mut values, columns.load(self.residual.ptr.add(self.residual.at(row, 0))));
            }
            columns.store(self.out.ptr.add(self.out.at(row, 0)), values);
        }
    }
}

/// Adds `terms` to `values`.
#[inline(always)]
fn add<const N: usize>(values: &mut [f32; N], terms: [f32; N]) {
    for i in 0..N {
        values[i] += terms[i];
    }
}
