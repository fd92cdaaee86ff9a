//! Mixtures of experts: the choice of a token's experts, and their linear layers.

use crate::activations::{Rows, RowsMut};
use crate::linear::multiply;
use crate::weights::StoredWeight;
use blocks::WeightRows;
use rayon::prelude::*;

/// A token's experts, the `experts.len()` largest of the softmax of `logits`: the largest first, of
/// equal ones the lower index. With `normalise` the weights are divided by their sum.
pub fn route(logits: &[f32], normalise: bool, experts: &mut [u32], weights: &mut [f32]) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.iter().map(|logit| (logit - max).exp()).sum();
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    // A logit that is NaN comes after all numbers.
    let key = |&expert: &u32| Some(logits[expert as usize]).filter(|logit| !logit.is_nan());
    order.sort_by(|a, b| key(b).partial_cmp(&key(a)).expect("no NaN"));
    for ((expert, weight), chosen) in experts.iter_mut().zip(&mut *weights).zip(order) {
        (*expert, *weight) = (chosen, (logits[chosen as usize] - max).exp() / total);
    }
    if normalise {
        let sum: f32 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= sum);
    }
}

/// A linear layer of experts, of which `weight` has the rows one after the other.
pub struct ExpertLinear<'a> {
    /// The matrices of all experts.
    pub weight: &'a StoredWeight,
    /// Experts of the layer.
    pub num_experts: usize,
    /// Columns of an expert's matrix.
    pub width: usize,
    /// Whether the bits of a row do not depend on the other rows.
    pub batch_invariant: bool,
}

impl ExpertLinear<'_> {
    /// Multiplies each token with its experts: `experts` are `[tokens, top_k]`. `x` has one row a
    /// token, for all of them, or `top_k`. `out` gets the products, `[tokens, top_k * n]`, or with
    /// `weights` their weighted sums, added in order, `[tokens, n]`.
    pub fn compute(&self, x: &Rows, experts: &[u32], weights: Option<&Rows>, mut out: RowsMut) {
        let num_tokens = out.num_rows();
        if num_tokens == 0 {
            return;
        }
        let top_k = experts.len() / num_tokens;
        let Some(weights) = weights else {
            let n = out.width() / top_k;
            let rows = out.rows().flat_map(|row| row.chunks_exact_mut(n)).collect();
            return self.products(x, experts, top_k, rows);
        };
        let n = out.width();
        let mut products = vec![0.0; experts.len() * n];
        self.products(x, experts, top_k, products.chunks_exact_mut(n).collect());
        out.for_each(|token, out| {
            out.fill(0.0);
            let products = products[token * top_k * n..].chunks_exact(n);
            for (product, weight) in products.zip(weights.row(token)) {
                out.iter_mut().zip(product).for_each(|(out, product)| *out += weight * product);
            }
        });
    }

    /// Row `i` of `out` is the product of expert `experts[i]`: all that an expert has to do is
    /// done together.
    fn products(&self, x: &Rows, experts: &[u32], top_k: usize, out: Vec<&mut [f32]>) {
        let mut work: Vec<Work> = Vec::new();
        work.resize_with(self.num_experts, Work::default);
        for (i, (&expert, out)) in experts.iter().zip(out).enumerate() {
            let (token, choice) = (i / top_k, i % top_k);
            let row = x.row(token);
            let row = if row.len() == self.width { row } else { &row[choice * self.width..] };
            let Work { rows, products } = &mut work[expert as usize];
            rows.push(&row[..self.width]);
            products.push(out);
        }
        let runs = self.weight.runs();
        let each = runs.iter().map(WeightRows::num_rows).sum::<usize>() / self.num_experts;
        work.into_par_iter().enumerate().for_each(|(expert, Work { rows, products })| {
            if !rows.is_empty() {
                let weight = rows_of(&runs, expert * each, each);
                multiply(rows, &weight, false, self.batch_invariant, products);
            }
        });
    }
}

/// What an expert has to do: rows of x, and where their products go.
#[derive(Default)]
struct Work<'a> {
    rows: Vec<&'a [f32]>,
    products: Vec<&'a mut [f32]>,
}

/// Rows `first..first + len` of a weight.
fn rows_of<'a>(runs: &[WeightRows<'a>], first: usize, len: usize) -> Vec<WeightRows<'a>> {
    let (mut before, mut rows) = (0, Vec::new());
    for run in runs {
        let after = before + run.num_rows();
        let (start, end) = (first.max(before), (first + len).min(after));
        if start < end {
            let (head, _) = run.split_at(end - before);
            rows.push(head.split_at(start - before).1);
        }
        before = after;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, random};

    #[test]
    fn the_largest_are_chosen_in_order() {
        let (mut experts, mut weights) = ([9; 3], [0.0; 3]);
        route(&[1.0, 3.0, f32::NAN, 3.0, -1.0], false, &mut experts, &mut weights);
        assert_eq!(experts, [1, 3, 0]);
        route(&[0.0, 2.0, 1.0, -3.0], false, &mut experts, &mut weights);
        let exps = [2.0f64, 1.0, 0.0, -3.0].map(f64::exp);
        let total: f64 = exps.iter().sum();
        assert_eq!(experts, [1, 2, 0]);
        assert_close(&weights, &[0, 1, 2].map(|i| exps[i] / total), 1e-6, "weights");
        route(&[0.0, 2.0, 1.0, -3.0], true, &mut experts, &mut weights);
        let total: f64 = exps[..3].iter().sum();
        assert_close(&weights, &[0, 1, 2].map(|i| exps[i] / total), 1e-6, "normalised weights");
    }

    /// All tokens to one expert, none to others, and uneven; one row of x a token, and one a choice.
    #[test]
    fn each_token_is_multiplied_with_its_experts() {
        let (num_experts, n, k, top_k, tokens) = (5, 37, 40, 2, 23);
        let matrices = random(1, num_experts * n * k);
        let weight = StoredWeight::of(&matrices, k);
        let choices: [fn(usize) -> u32; 3] =
            [|_| 3, |i| (i * i % 7 % 5) as u32, |i| (i % 2) as u32];
        for expert_of in choices {
            let experts: Vec<u32> = (0..tokens * top_k).map(expert_of).collect();
            let factors = random(2, tokens * top_k);
            for x_rows in [1, top_k] {
                let x = random(3, tokens * x_rows * k);
                let product = |i: usize, n: usize, row: usize| -> f64 {
                    let x = &x[(i / top_k * x_rows + i % x_rows) * k..][..k];
                    let w = &matrices[(experts[i] as usize * row + n) * k..][..k];
                    x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
                };
                let all = (0..tokens * top_k).flat_map(|i| (0..n).map(move |j| (i, j)));
                let wanted: Vec<f64> = all.map(|(i, j)| product(i, j, n)).collect();
                let layer =
                    ExpertLinear { weight: &weight, num_experts, width: k, batch_invariant: false };
                let rows = Rows::dense(&x, x_rows * k);
                let mut out = vec![f32::NAN; tokens * top_k * n];
                layer.compute(&rows, &experts, None, RowsMut::dense(&mut out, top_k * n));
                assert_close(&out, &wanted, 1e-5, "products");

                let sum = |token: usize, j: usize| -> f64 {
                    let choices = token * top_k..(token + 1) * top_k;
                    choices.map(|i| f64::from(factors[i]) * wanted[i * n + j]).sum()
                };
                let all = (0..tokens).flat_map(|token| (0..n).map(move |j| (token, j)));
                let sums: Vec<f64> = all.map(|(token, j)| sum(token, j)).collect();
                let mut out = vec![f32::NAN; tokens * n];
                let weights = Rows::dense(&factors, top_k);
                layer.compute(&rows, &experts, Some(&weights), RowsMut::dense(&mut out, n));
                assert_close(&out, &sums, 1e-5, "weighted sums");
            }
        }
    }
}
