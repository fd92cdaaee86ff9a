//! `out[t, n] = sum_k x[t, k] * weight[n, k]`.
//!
//! A small batch is bound by reading the weight: inner products over blocks of weight rows, each block read from memory
//! once for all rows of x. A larger one is a matrix product by nalgebra. Both partition the weight's rows over the
//! threads: each element is read by one thread, which converts it to f32 if it has 16 bits.

use super::activations::{Rows, RowsMut};
use super::dot::dot;
use super::elements::Elements;
use nalgebra::{DMatrixView, DMatrixViewMut, Dyn};

/// Most rows for which inner products are used. A matrix product packs the weight first; at 32 rows inner products take
/// twice as long (`cargo bench --bench cpu -- linear`).
const MAX_DOT_ROWS: usize = 16;
/// Weight elements in one task's block of inner products: half of a core's L2 cache, so that the next row finds them.
const DOT_BLOCK_ELEMS: usize = 1 << 17;
/// Least weight rows in one task of a matrix product, since each task packs `x` again.
const MIN_PRODUCT_ROWS: usize = 64;
/// Weight rows in one task of a matrix product that converts them to f32 first: they stay in a core's caches.
const WIDENED_ROWS: usize = 256;
/// Least dimension of a matrix product: below it, nalgebra 0.35 reads strided views out of bounds.
const MIN_PRODUCT_DIM: usize = 6;
const _: () = assert!(MAX_DOT_ROWS >= MIN_PRODUCT_DIM);

/// `out` transposed, `[n, rows]`: it can be partitioned along the weight's rows.
type Transposed<'a> = DMatrixViewMut<'a, f32, Dyn, Dyn>;

/// Computes `out` for some rows of the weight.
type Multiply = fn(&Rows, &[f32], bool, Transposed);

/// Computes `out = x * weight^T`, or adds it to `out` with `accumulate`. `weight` is `[out.width(), x.width()]`. With
/// `batch_invariant` the bits of a row do not depend on the other rows; large batches then take twice as long.
pub fn linear(
    x: &Rows,
    weight: Elements,
    accumulate: bool,
    batch_invariant: bool,
    out: &mut RowsMut,
) {
    let (rows, n, k) = (out.len(), out.width(), x.width());
    if rows == 0 {
        return;
    }
    let (data, stride) = out.strided();
    let out = DMatrixViewMut::from_slice_with_strides_mut(data, n, rows, 1, stride);
    if batch_invariant || rows <= MAX_DOT_ROWS || n.min(k) < MIN_PRODUCT_DIM {
        let block_n = (DOT_BLOCK_ELEMS / k).max(1);
        divide(block_n, inner_products, x, weight, accumulate, out);
    } else {
        let per_thread = n.div_ceil(rayon::current_num_threads()).next_multiple_of(8);
        let block_n = match weight {
            Elements::F32(_) => per_thread.max(MIN_PRODUCT_ROWS),
            _ => WIDENED_ROWS,
        };
        divide(block_n, matrix_product, x, weight, accumulate, out);
    }
}

/// Halves the range of weight rows until a task has at most `block_n`.
fn divide(
    block_n: usize,
    multiply: Multiply,
    x: &Rows,
    weight: Elements,
    accumulate: bool,
    mut out: Transposed,
) {
    let n = out.nrows();
    if n <= block_n {
        return multiply(x, &weight.widen(), accumulate, out);
    }
    let middle = (n / 2).next_multiple_of(8).min(n - 1);
    let (weight_low, weight_high) = weight.split_at(middle * x.width());
    let (low, high) = out.rows_range_pair_mut(..middle, middle..);
    rayon::join(
        || divide(block_n, multiply, x, weight_low, accumulate, low),
        || divide(block_n, multiply, x, weight_high, accumulate, high),
    );
}

fn matrix_product(x: &Rows, weight: &[f32], accumulate: bool, mut out: Transposed) {
    let (n, k) = (out.nrows(), x.width());
    let beta = if accumulate { 1.0 } else { 0.0 };
    let weight = DMatrixView::from_slice_with_strides(weight, n, k, k, 1);
    let (data, stride) = x.strided();
    let x_transposed = DMatrixView::from_slice_with_strides(data, k, x.len(), 1, stride);
    out.gemm(1.0, &weight, &x_transposed, beta);
}

fn inner_products(x: &Rows, weight: &[f32], accumulate: bool, mut out: Transposed) {
    for (t, x_row) in x.iter().enumerate() {
        for (n, weight_row) in weight.chunks_exact(x.width()).enumerate() {
            let (out, value) = (&mut out[(n, t)], dot(weight_row, x_row));
            *out = if accumulate { *out + value } else { value };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::testing::{assert_close, random};

    fn oracle(x: &[f32], weight: &[f32], k: usize, start: &[f32]) -> Vec<f64> {
        let n = weight.len() / k;
        let product = |t: usize, n: usize| -> f64 {
            let (x, w) = (&x[t * k..][..k], &weight[n * k..][..k]);
            x.iter().zip(w).map(|(&x, &w)| x as f64 * w as f64).sum()
        };
        let rows = x.len() / k;
        let outputs = (0..rows).flat_map(|t| (0..n).map(move |n| (t, n)));
        outputs.map(|(t, i)| start[t * n + i] as f64 + product(t, i)).collect()
    }

    /// 0, 1 and several rows, on both sides of the switch to matrix products; widths around the vector and the task block.
    #[test]
    fn linear_matches_oracle() {
        for rows in [0, 1, 2, 3, MAX_DOT_ROWS, MAX_DOT_ROWS + 1, 70] {
            for (n, k) in [(1, 1), (5, 15), (7, 16), (96, 17), (256, 128), (193, 1536), (3, 70_000)]
            {
                let (x, weight) = (random(1, rows * k), random(2, n * k));
                for accumulate in [false, true] {
                    let start = if accumulate { random(3, rows * n) } else { vec![0.0; rows * n] };
                    let mut out = if accumulate { start.clone() } else { vec![f32::NAN; rows * n] };
                    let mut out_rows = RowsMut::dense(&mut out, n);
                    let stored = Elements::F32(&weight);
                    linear(&Rows::dense(&x, k), stored, accumulate, false, &mut out_rows);
                    let wanted = oracle(&x, &weight, k, &start);
                    let case = format!("{rows} rows, [{n}, {k}], accumulate {accumulate}");
                    assert_close(&out, &wanted, 1e-5, &case);
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_whatever_other_rows_there_are() {
        let (n, k) = (192, 576);
        let (x, weight) = (random(1, 3 * MAX_DOT_ROWS * k), random(2, n * k));
        let run = |rows: std::ops::Range<usize>| {
            let mut out = vec![f32::NAN; rows.len() * n];
            let x = Rows::dense(&x[rows.start * k..rows.end * k], k);
            linear(&x, Elements::F32(&weight), false, true, &mut RowsMut::dense(&mut out, n));
            out
        };
        let alone: Vec<f32> = (0..3 * MAX_DOT_ROWS).flat_map(|row| run(row..row + 1)).collect();
        assert_eq!(run(0..3 * MAX_DOT_ROWS), alone);
        assert_eq!(run(0..7), alone[..7 * n]);
    }
}
