//! `out[t, n] = sum_k x[t, k] * weight[n, k]`.
//!
//! A small batch is bound by reading the weight: inner products over runs of weight rows, each
//! read from memory once for all rows of x. A larger one is a matrix product: by tiles for weights
//! in blocks, by nalgebra for others. Both partition the weight's rows over the threads.
//!
//! Weights in blocks are multiplied as integers, by x in 16 bits; other elements are converted to
//! f32 by the one thread that reads them.

use super::activations::{Rows, RowsMut};
use super::dot::Partial;
use super::weights::{StoredRows, StoredWeight};
use blocks::{IntegerFormat, IntegerRows, Products, TILE_COLUMNS, TILE_ROWS, Tile};
use nalgebra::{DMatrixView, DMatrixViewMut, Dyn};
use pulp::{Arch, Simd, WithSimd};

/// Most rows for which inner products are used. A matrix product packs the weight first; at 32 rows
/// inner products take twice as long (`cargo bench --bench cpu -- linear`).
const MAX_DOT_ROWS: usize = 16;
/// Weight elements in one task's block of inner products: half of a core's L2 cache, so that the
/// next row finds them.
const DOT_BLOCK_ELEMS: usize = 1 << 17;
/// Columns of a weight row that are converted to f32 together: whole blocks of every format, which
/// stay in the first-level cache.
const RUN_COLUMNS: usize = 1024;
/// Least weight rows in one task of a matrix product, since each task packs `x` again.
const MIN_PRODUCT_ROWS: usize = 64;
/// Weight rows in one task of a matrix product that converts them to f32 first: they stay in a
/// core's caches.
const WIDENED_ROWS: usize = 256;
/// Least dimension of a matrix product: below it, nalgebra 0.35 reads strided views out of bounds.
const MIN_PRODUCT_DIM: usize = 6;
const _: () = assert!(MAX_DOT_ROWS >= MIN_PRODUCT_DIM);

/// `out` transposed, `[n, rows]`: it can be partitioned along the weight's rows.
type Transposed<'a> = DMatrixViewMut<'a, f32, Dyn, Dyn>;

/// How some rows of the weight are multiplied.
#[derive(Clone, Copy)]
struct Product<'a> {
    x: &'a Rows<'a>,
    accumulate: bool,
    by_inner_products: bool,
    /// x in 16 bits, where a part of the weight is in blocks.
    integers: Option<&'a IntegerRows>,
}

/// Computes `out = x * weight^T`, or adds it to `out` with `accumulate`. `weight` is `[out.width(),
/// x.width()]`. With `batch_invariant` the bits of a row do not depend on the other rows; large
/// batches then take twice as long.
pub fn linear(
    x: &Rows,
    weight: &StoredWeight,
    accumulate: bool,
    batch_invariant: bool,
    out: &mut RowsMut,
) {
    let (rows, n, k) = (out.num_rows(), out.width(), x.width());
    if rows == 0 {
        return;
    }
    let (data, stride) = out.strided();
    let out = DMatrixViewMut::from_slice_with_strides_mut(data, n, rows, 1, stride);
    let by_inner_products = batch_invariant || rows <= MAX_DOT_ROWS || k < MIN_PRODUCT_DIM;
    let runs = weight.runs();
    let has_blocks = runs.iter().any(|run| run.integers().is_some());
    let integers =
        has_blocks.then(|| IntegerRows::new(Arch::new(), (0..rows).map(|row| x.row(row)), k));
    let integers = integers.as_ref();
    Product { x, accumulate, by_inner_products, integers }.of_runs(&runs, out);
}

impl Product<'_> {
    /// The rows that are stored alike are multiplied together.
    fn of_runs(self, weight: &[StoredRows], mut out: Transposed) {
        if let [run, ref rest @ ..] = *weight {
            let middle = run.num_rows();
            let (low, high) = out.rows_range_pair_mut(..middle, middle..);
            rayon::join(|| self.of_run(run, low), || self.of_runs(rest, high));
        }
    }

    fn of_run(mut self, weight: StoredRows, out: Transposed) {
        self.by_inner_products |= weight.num_rows() < MIN_PRODUCT_DIM;
        let block_n = if self.by_inner_products {
            (DOT_BLOCK_ELEMS / self.x.width()).max(1)
        } else if weight.integers().is_some() {
            TILE_ROWS
        } else if weight.is_f32() {
            let per_thread = weight.num_rows().div_ceil(rayon::current_num_threads());
            per_thread.next_multiple_of(8).max(MIN_PRODUCT_ROWS)
        } else {
            WIDENED_ROWS
        };
        self.divide(block_n, weight, out);
    }

    /// Halves the range of weight rows until a task has at most `block_n`.
    fn divide(self, block_n: usize, weight: StoredRows, mut out: Transposed) {
        let n = out.nrows();
        if n <= block_n {
            let integers = weight.integers().zip(self.integers);
            return match (integers, self.by_inner_products) {
                (Some((format, x)), true) => self.integer_products(format, x, weight, out),
                (Some((format, x)), false) => self.tile_product(format, x, weight, out),
                (None, true) => Arch::new().dispatch(InnerProducts { product: self, weight, out }),
                (None, false) => self.matrix_product(&weight.widen(), out),
            };
        }
        let unit = if block_n == TILE_ROWS { TILE_ROWS } else { 8 };
        let middle = (n / 2).next_multiple_of(unit).min(n - 1);
        let (weight_low, weight_high) = weight.split_at(middle);
        let (low, high) = out.rows_range_pair_mut(..middle, middle..);
        rayon::join(
            || self.divide(block_n, weight_low, low),
            || self.divide(block_n, weight_high, high),
        );
    }

    /// Inner products of a weight in blocks.
    fn integer_products(
        self,
        format: IntegerFormat,
        x: &IntegerRows,
        weight: StoredRows,
        mut out: Transposed,
    ) {
        let products = Products { format, weight: weight.bytes(), x };
        products.compute(Arch::new(), |t, n, product| {
            let out = &mut out[(n, t)];
            *out = if self.accumulate { *out + product } else { product };
        });
    }

    /// A tile's rows of a weight in blocks.
    fn tile_product(
        self,
        format: IntegerFormat,
        x: &IntegerRows,
        weight: StoredRows,
        mut out: Transposed,
    ) {
        let (arch, width) = (Arch::new(), x.width());
        let mut tile = Tile::new(format);
        let mut acc = vec![[0.0; TILE_ROWS]; x.num_rows()];
        for column in (0..width).step_by(TILE_COLUMNS) {
            tile.fill(arch, weight.bytes(), width, column);
            tile.multiply_add(arch, x, column, &mut acc);
        }
        for (mut out, acc) in out.column_iter_mut().zip(&acc) {
            for (out, &product) in out.iter_mut().zip(acc) {
                *out = if self.accumulate { *out + product } else { product };
            }
        }
    }

    fn matrix_product(self, weight: &[f32], mut out: Transposed) {
        let (n, k) = (out.nrows(), self.x.width());
        let beta = if self.accumulate { 1.0 } else { 0.0 };
        let weight = DMatrixView::from_slice_with_strides(weight, n, k, k, 1);
        let (data, stride) = self.x.strided();
        let x_transposed =
            DMatrixView::from_slice_with_strides(data, k, self.x.num_rows(), 1, stride);
        out.gemm(1.0, &weight, &x_transposed, beta);
    }
}

/// Every row of x by every row of the weight.
struct InnerProducts<'a> {
    product: Product<'a>,
    weight: StoredRows<'a>,
    out: Transposed<'a>,
}

impl WithSimd for InnerProducts<'_> {
    type Output = ();

    /// [`MAX_DOT_ROWS`] rows of x at a time, for which each element of the weight is converted
    /// once.
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let InnerProducts { product: Product { x, accumulate, .. }, weight, mut out } = self;
        let (arch, n, k) = (Arch::new(), out.nrows(), x.width());
        let (mut buffer, mut sums) = ([0.0; RUN_COLUMNS], [Partial::zero(simd); MAX_DOT_ROWS]);
        for first in (0..x.num_rows()).step_by(MAX_DOT_ROWS) {
            let batch = first..x.num_rows().min(first + MAX_DOT_ROWS);
            let sums = &mut sums[..batch.len()];
            for n in 0..n {
                sums.fill(Partial::zero(simd));
                for start in (0..k).step_by(RUN_COLUMNS) {
                    let columns = start..k.min(start + RUN_COLUMNS);
                    let buffer = &mut buffer[..columns.len()];
                    let weights = weight.widen_columns(arch, n, columns.clone(), buffer);
                    for (t, sum) in batch.clone().zip(&mut *sums) {
                        sum.add(simd, weights, &x.row(t)[columns.clone()]);
                    }
                }
                for (t, sum) in batch.clone().zip(&*sums) {
                    let (out, value) = (&mut out[(n, t)], sum.total(simd));
                    *out = if accumulate { *out + value } else { value };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, random};
    use blocks::decoder;
    use gpu_types::BlockFormat;
    use half::f16;
    use plan::{Dtype, ReadWeightError, Weight, WeightPart, WeightSource};
    use std::ops::Range;

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

    /// 0, 1 and several rows, on both sides of the switch to matrix products; widths around the
    /// vector and the task block.
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
                    let stored = StoredWeight::of(&weight, k);
                    linear(&Rows::dense(&x, k), &stored, accumulate, false, &mut out_rows);
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
        let weight = StoredWeight::of(&weight, k);
        let blocks = stored(&[(100, Dtype::Q4_0), (92, Dtype::Q8_0)], k).0;
        for weight in [&weight, &blocks] {
            let run = |rows: Range<usize>| {
                let mut out = vec![f32::NAN; rows.len() * n];
                let x = Rows::dense(&x[rows.start * k..rows.end * k], k);
                linear(&x, weight, false, true, &mut RowsMut::dense(&mut out, n));
                out
            };
            let alone: Vec<f32> = (0..3 * MAX_DOT_ROWS).flat_map(|row| run(row..row + 1)).collect();
            assert_eq!(run(0..3 * MAX_DOT_ROWS), alone);
            assert_eq!(run(0..7), alone[..7 * n]);
        }
    }

    /// The largest error of an output, over the norm of the products that it is the sum of.
    fn relative_error(got: &[f32], wanted: &[f64], x: &[f32], weight: &[f32], k: usize) -> f64 {
        let squares = |values: &[f32]| values.iter().map(|x| x * x).collect::<Vec<_>>();
        let norms = oracle(&squares(x), &squares(weight), k, &vec![0.0; wanted.len()]);
        let errors = got.iter().zip(wanted).zip(norms);
        errors
            .map(|((&got, wanted), norm)| (f64::from(got) - wanted).abs() / (norm.sqrt() + 1e-30))
            .fold(0.0, |max, error| if error <= max { max } else { error })
    }

    /// Gives any weight these bytes.
    struct Bytes(Vec<u8>);

    impl WeightSource for Bytes {
        fn read(&self, _: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
            out.copy_from_slice(&self.0);
            Ok(())
        }
    }

    /// Random elements of `dtype`, the first block all zero bytes.
    fn random_bytes(seed: u64, elems: usize, dtype: Dtype) -> Vec<u8> {
        if dtype == Dtype::F32 {
            return bytemuck::cast_slice(&random(seed, elems)).to_vec();
        }
        let halves = |seed, len| random(seed, len).into_iter().map(f16::from_f32);
        if dtype == Dtype::F16 {
            return halves(seed, elems).flat_map(f16::to_le_bytes).collect();
        }
        let Dtype::Blocks(format) = dtype else { panic!("{dtype}") };
        let f16_scales = format.facts().f16_scales;
        let len = dtype.bytes(elems).unwrap();
        let mut bytes: Vec<u8> =
            random(seed, len).iter().map(|x| (x * 1000.0) as i32 as u8).collect();
        let scales = halves(seed + 1, 2 * len / dtype.block_bytes()).collect::<Vec<_>>();
        for (block, scales) in bytes.chunks_exact_mut(dtype.block_bytes()).zip(scales.chunks(2)) {
            for (&field, scale) in f16_scales.iter().zip(scales) {
                block[field..field + 2].copy_from_slice(&scale.to_le_bytes());
            }
        }
        bytes[..dtype.block_bytes()].fill(0);
        bytes
    }

    /// A stack of so many rows of each type, and its elements.
    fn stored(parts: &[(usize, Dtype)], k: usize) -> (StoredWeight, Vec<f32>) {
        let (mut bytes, mut elements) = (Vec::new(), Vec::new());
        for (seed, &(rows, dtype)) in (10..).zip(parts) {
            let part = random_bytes(seed, rows * k, dtype);
            let mut values = vec![f32::NAN; rows * k];
            decoder(dtype).unwrap()(Arch::new(), &part, &mut values);
            bytes.extend(part);
            elements.extend(values);
        }
        let part = |&(rows, dtype): &(usize, Dtype)| WeightPart::new("part", rows, dtype);
        let mut weight = Weight::whole("stack", elements.len() / k, k, Dtype::F32);
        weight.parts = parts.iter().map(part).collect();
        assert_eq!(weight.bytes(), bytes.len());
        (StoredWeight::read(&weight, &Bytes(bytes)).unwrap(), elements)
    }

    /// Each format by itself, and in stacks as Q4_K_M has them; an f32 part after blocks, which no
    /// word starts at. x in 16 bits is off by 2^-17 of the largest of 32, evenly spread.
    #[test]
    fn blocks_match_the_oracle_on_what_they_hold() {
        use BlockFormat::*;
        let alone =
            [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, IQ4_NL, IQ2_S];
        let mut stacks = Vec::from(alone.map(|format| vec![(21, Dtype::Blocks(format))]));
        let (q4, q6) = (Dtype::Q4_K, Dtype::Q6_K);
        stacks.push(vec![(21, Dtype::F16)]);
        stacks.push(vec![(40, q4), (8, q4), (9, q6)]);
        stacks.push(vec![(3, q6), (70, Dtype::F32), (1, Dtype::Q8_0), (130, Dtype::F16)]);
        for parts in stacks {
            for k in [256, 1280] {
                let (weight, elements) = stored(&parts, k);
                let n = elements.len() / k;
                for rows in [1, 2, MAX_DOT_ROWS, MAX_DOT_ROWS + 1, 70] {
                    let x = random(1, rows * k);
                    let mut out = vec![f32::NAN; rows * n];
                    let mut out_rows = RowsMut::dense(&mut out, n);
                    linear(&Rows::dense(&x, k), &weight, false, false, &mut out_rows);
                    let wanted = oracle(&x, &elements, k, &vec![0.0; rows * n]);
                    let off = relative_error(&out, &wanted, &x, &elements, k);
                    assert!(off < 1e-4, "{off:e}: {rows} rows, k {k}, {parts:?}");
                }
            }
        }
    }
}
