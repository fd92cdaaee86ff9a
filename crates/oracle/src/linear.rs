//! Linear layers.

use crate::{Approx, Element, Rng, SUM_ROUNDING, gated};
use gpu_types::Activation;

/// A row-major matrix.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// `[rows, cols]`.
    pub values: Vec<f64>,
}

impl Matrix {
    /// The matrix of the elements `value(row, column)`.
    pub fn new(rows: usize, cols: usize, mut value: impl FnMut(usize, usize) -> f64) -> Self {
        let at = (0..rows).flat_map(|row| (0..cols).map(move |column| (row, column)));
        Matrix { rows, cols, values: at.map(|(row, column)| value(row, column)).collect() }
    }

    /// Random elements from -1 to 1, rounded to `E`.
    pub fn random<E: Element>(rows: usize, cols: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Matrix::new(rows, cols, |_, _| E::rounded(rng.float()).into())
    }

    /// The first rows.
    #[must_use]
    pub fn first(&self, rows: usize) -> Self {
        Matrix { rows, cols: self.cols, values: self.values[..rows * self.cols].to_vec() }
    }

    /// A row.
    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.cols..][..self.cols]
    }
}

/// How products are added up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Accumulator {
    /// In f32, in any order.
    F32,
    /// In f16, 16 products at a time.
    F16,
}

/// A linear layer, `x weight^T + bias + residual`, or gated: `activation(gate) * up` of the
/// weight's first and second half of rows.
#[derive(Clone, Copy)]
pub struct Linear<'a> {
    /// `[rows, k]`.
    pub x: &'a Matrix,
    /// `[n, k]`, or `[2 * n, k]` if gated.
    pub weight: &'a Matrix,
    /// A term for each row of the weight.
    pub bias: Option<&'a [f32]>,
    /// `[rows, n]`.
    pub residual: Option<&'a Matrix>,
    /// How products are added up.
    pub accumulator: Accumulator,
    /// Largest relative error of a product.
    pub product_rounding: f64,
}

impl Linear<'_> {
    /// The outputs `[rows, n]`, before they are stored.
    pub fn outputs(&self) -> Vec<Approx> {
        let (rows, n) = (self.x.rows, self.weight.rows);
        let at = (0..rows).flat_map(|row| (0..n).map(move |column| (row, column)));
        at.map(|(row, column)| self.output(row, column)).collect()
    }

    /// The outputs `[rows, n]` after a gate, before they are stored; gate and up are rounded to `E`.
    pub fn gated_outputs<E: Element>(&self, gate: Option<Activation>) -> Vec<Approx> {
        let Some(activation) = gate else { return self.outputs() };
        let (rows, n) = (self.x.rows, self.weight.rows / 2);
        let at = (0..rows).flat_map(|row| (0..n).map(move |column| (row, column)));
        let parts = at.map(|(row, column)| [column, n + column].map(|at| self.output(row, at)));
        let gate =
            |[gate, up]: [Approx; 2]| gated::<E>(activation, gate.stored::<E>(), up.stored::<E>());
        parts.map(gate).collect()
    }

    fn output(&self, row: usize, column: usize) -> Approx {
        let (x, weight) = (self.x.row(row), self.weight.row(column));
        let (mut value, mut magnitude) = (0.0, 0.0);
        for (x, weight) in x.iter().zip(weight) {
            value += x * weight;
            magnitude += (x * weight).abs();
        }
        let mut bound = (SUM_ROUNDING + self.product_rounding) * magnitude;
        if self.accumulator == Accumulator::F16 {
            bound += f16_bound(x, weight);
        }
        let bias = self.bias.map_or(0.0, |bias| bias[column].into());
        let residual = self.residual.map_or(0.0, |residual| residual.row(row)[column]);
        Approx::new(value, bound).plus(bias).plus(residual)
    }
}

/// The most that an f16 accumulator may be off: half a unit in the last place of each partial sum,
/// which is rounded every 16 products, and a tenth more, since what is rounded is off already.
fn f16_bound(x: &[f64], weight: &[f64]) -> f64 {
    let (mut sum, mut bound) = (0.0, 1e-7);
    for (x, weight) in x.chunks(16).zip(weight.chunks(16)) {
        sum += x.iter().zip(weight).map(|(x, weight)| x * weight).sum::<f64>();
        bound += 1.1 * 2f64.powi(-11) * f64::abs(sum);
    }
    bound
}
