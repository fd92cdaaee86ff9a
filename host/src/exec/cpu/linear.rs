//! `out[t, n] = sum_k x[t, k] * weight[n, k]`.
//!
//! A few rows are bound by reading the weights: inner products over blocks of weight rows, each block read once for all
//! rows. More rows are a matrix product, in nalgebra's kernels. Either way the weight's rows are divided over the
//! threads, so that each of its elements is read by one of them.

use super::activations::{Rows, RowsMut};
use super::dot::dots;
use nalgebra::{DMatrixView, DMatrixViewMut, Dyn};

/// Rows up to which inner products are faster than a matrix product, which packs the weight first.
const MAX_DOT_ROWS: usize = 8;
/// Rows that share one read of a weight row: their partial sums fill the vector registers.
const DOT_ROWS: usize = 4;
/// Weight elements in the block of one task: half of a core's L2 cache.
const BLOCK_ELEMS: usize = 1 << 17;
/// Least weight rows in the block of one task of a matrix product, which packs `x` anew for each.
const MIN_PRODUCT_ROWS: usize = 96;

/// `out` transposed, `[n, rows]`: what can be divided by rows of the weight.
type Transposed<'a> = DMatrixViewMut<'a, f32, Dyn, Dyn>;

/// Computes `out = x * weight^T`, or adds it to `out` where `accumulate`. `weight` is `[out.width(), x width]`.
pub fn linear(x: Rows, weight: &[f32], accumulate: bool, out: &mut RowsMut) {
    let (rows, n) = (out.len(), out.width());
    if rows == 0 {
        return;
    }
    let (data, stride) = out.strided();
    let out = DMatrixViewMut::from_slice_with_strides_mut(data, n, rows, 1, stride);
    divide(x, weight, accumulate, out);
}

/// Divides the weight's rows over tasks until one task has a block of them.
fn divide(x: Rows, weight: &[f32], accumulate: bool, mut out: Transposed) {
    let (n, k) = (out.nrows(), x.width());
    let few_rows = x.len() <= MAX_DOT_ROWS;
    let block_n = if few_rows { BLOCK_ELEMS / k } else { (BLOCK_ELEMS / k).max(MIN_PRODUCT_ROWS) };
    if n > block_n.max(1) {
        let middle = (n / 2).next_multiple_of(8).min(n - 1);
        let (weight_low, weight_high) = weight.split_at(middle * k);
        let (low, high) = out.rows_range_pair_mut(..middle, middle..);
        rayon::join(
            || divide(x, weight_low, accumulate, low),
            || divide(x, weight_high, accumulate, high),
        );
    } else if few_rows {
        inner_products(x, weight, accumulate, out);
    } else {
        let beta = if accumulate { 1.0 } else { 0.0 };
        let weight = DMatrixView::from_slice_with_strides(weight, n, k, k, 1);
        let (data, stride) = x.strided();
        let x_transposed = DMatrixView::from_slice_with_strides(data, k, x.len(), 1, stride);
        out.gemm(1.0, &weight, &x_transposed, beta);
    }
}

fn inner_products(x: Rows, weight: &[f32], accumulate: bool, mut out: Transposed) {
    for first in (0..x.len()).step_by(DOT_ROWS) {
        match x.len() - first {
            1 => dot_rows::<1>(x, first, weight, accumulate, &mut out),
            2 => dot_rows::<2>(x, first, weight, accumulate, &mut out),
            3 => dot_rows::<3>(x, first, weight, accumulate, &mut out),
            _ => dot_rows::<DOT_ROWS>(x, first, weight, accumulate, &mut out),
        }
    }
}

/// Rows `first .. first + M` of `x` with every row of `weight`.
fn dot_rows<const M: usize>(
    x: Rows,
    first: usize,
    weight: &[f32],
    accumulate: bool,
    out: &mut Transposed,
) {
    let x_rows: [&[f32]; M] = std::array::from_fn(|m| x.row(first + m));
    for (n, weight_row) in weight.chunks_exact(x.width()).enumerate() {
        for (m, value) in dots(weight_row, x_rows).into_iter().enumerate() {
            let out = &mut out[(n, first + m)];
            *out = if accumulate { *out + value } else { value };
        }
    }
}
