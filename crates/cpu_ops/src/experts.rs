//! Mixtures of experts: the choice of a token's experts, and their linear layers.

use crate::activations::{Rows, RowsMut};
use crate::linear::multiply;
use crate::weights::StoredWeight;
use blocks::WeightRows;
use plan::{Groups, SharedExpert};
use rayon::prelude::*;

/// How a token's experts are chosen and weighted: as in [`plan::Route`].
pub struct Routing<'a> {
    /// The bias of sigmoids, and the groups of experts; none where scores are a softmax.
    pub sigmoid: Option<(&'a [f32], Option<Groups>)>,
    /// Whether the weights are divided by their sum.
    pub normalise: bool,
    /// Multiplies the weights.
    pub scale: f32,
    /// An expert that every token goes to besides.
    pub shared: Option<SharedExpert>,
}

impl Routing<'_> {
    /// A token's experts, those with the largest scores: the largest first, of equal ones the lower
    /// index; then the shared one.
    pub fn route(&self, logits: &[f32], experts: &mut [u32], weights: &mut [f32]) {
        let (logits, gate) = match (self.shared, logits.split_last()) {
            (Some(SharedExpert::Gated), Some((gate, logits))) => (logits, sigmoid(*gate)),
            _ => (logits, 1.0),
        };
        match (self.shared, experts.split_last_mut(), weights.split_last_mut()) {
            (Some(_), Some((expert, experts)), Some((weight, weights))) => {
                (*expert, *weight) = (logits.len() as u32, gate);
                self.choose(logits, experts, weights);
            }
            _ => self.choose(logits, experts, weights),
        }
    }

    fn choose(&self, logits: &[f32], experts: &mut [u32], weights: &mut [f32]) {
        let (scores, chosen) = match self.sigmoid {
            None => (softmax(logits), descending(logits)),
            Some((bias, groups)) => {
                let scores: Vec<f32> = logits.iter().map(|logit| sigmoid(*logit)).collect();
                let mut biased: Vec<f32> =
                    scores.iter().zip(bias).map(|(score, bias)| score + bias).collect();
                if let Some(groups) = groups {
                    leave_out_groups(groups, &mut biased);
                }
                (scores, descending(&biased))
            }
        };
        for ((expert, weight), chosen) in experts.iter_mut().zip(&mut *weights).zip(chosen) {
            (*expert, *weight) = (chosen as u32, scores[chosen]);
        }
        if self.normalise {
            // All sigmoids may be zeros.
            let least = if self.sigmoid.is_some() { 1e-20 } else { 0.0 };
            let sum = weights.iter().sum::<f32>() + least;
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        weights.iter_mut().for_each(|weight| *weight *= self.scale);
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.iter().map(|logit| (logit - max).exp()).sum();
    logits.iter().map(|logit| (logit - max).exp() / total).collect()
}

/// Indices of `values`, that of the largest first, NaN after all numbers.
fn descending(values: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    let key = |&index: &usize| Some(values[index]).filter(|value| !value.is_nan());
    order.sort_by(|a, b| key(b).partial_cmp(&key(a)).expect("no NaN"));
    order
}

/// Makes the scores of experts minus infinity that are of no chosen group.
fn leave_out_groups(groups: Groups, scores: &mut [f32]) {
    let of_group = scores.len() / groups.count;
    let best_two = |group: &[f32]| -> f32 {
        descending(group).into_iter().take(2).map(|expert| group[expert]).sum()
    };
    let best: Vec<f32> = scores.chunks_exact(of_group).map(best_two).collect();
    for group in descending(&best).into_iter().skip(groups.top_k) {
        scores[group * of_group..][..of_group].fill(f32::NEG_INFINITY);
    }
}

/// A linear layer of experts, of which `weight` has the rows one after the other.
pub struct ExpertLinear<'a> {
    /// The matrices of all experts.
    pub weight: &'a StoredWeight,
    /// Biases of all experts, one after the other.
    pub bias: Option<&'a [f32]>,
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
                let mut products = products;
                if let Some(bias) = self.bias {
                    let bias = &bias[expert * each..][..each];
                    products.iter_mut().for_each(|product| product.copy_from_slice(bias));
                }
                let accumulate = self.bias.is_some();
                multiply(rows, &weight, accumulate, self.batch_invariant, products);
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
        let plain = Routing { sigmoid: None, normalise: false, scale: 1.0, shared: None };
        plain.route(&[1.0, 3.0, f32::NAN, 3.0, -1.0], &mut experts, &mut weights);
        assert_eq!(experts, [1, 3, 0]);
        plain.route(&[0.0, 2.0, 1.0, -3.0], &mut experts, &mut weights);
        let exps = [2.0f64, 1.0, 0.0, -3.0].map(f64::exp);
        let total: f64 = exps.iter().sum();
        assert_eq!(experts, [1, 2, 0]);
        assert_close(&weights, &[0, 1, 2].map(|i| exps[i] / total), 1e-6, "weights");
        let normalised = Routing { normalise: true, scale: 2.5, ..plain };
        normalised.route(&[0.0, 2.0, 1.0, -3.0], &mut experts, &mut weights);
        let total: f64 = exps[..3].iter().sum();
        assert_close(&weights, &[0, 1, 2].map(|i| 2.5 * exps[i] / total), 1e-6, "normalised");
    }

    /// Groups of two experts, of which the second has the best one, but a lower sum.
    #[test]
    fn sigmoids_are_chosen_with_a_bias_and_by_group() {
        let logits = [1.0, 0.5, 3.0, -9.0, 0.0, 0.2];
        let bias = [0.0, 0.0, 0.0, 0.0, 0.9, 0.1];
        let sigmoid = |i: usize| 1.0 / (1.0 + f64::from(-logits[i]).exp());
        let (mut experts, mut weights) = ([9; 3], [0.0; 3]);
        let mut check = |groups, normalise, wanted: [usize; 3]| {
            let biased = Some((&bias[..], groups));
            let routing = Routing { sigmoid: biased, normalise, scale: 1.5, shared: None };
            routing.route(&logits, &mut experts, &mut weights);
            assert_eq!(experts, wanted.map(|i| i as u32), "{groups:?}");
            let sum: f64 = if normalise { wanted.iter().map(|&i| sigmoid(i)).sum() } else { 1.0 };
            let wanted = wanted.map(|i| 1.5 * sigmoid(i) / sum);
            assert_close(&weights, &wanted, 1e-6, &format!("{groups:?}"));
        };
        check(None, false, [4, 2, 0]);
        check(None, true, [4, 2, 0]);
        check(Some(Groups { count: 3, top_k: 2 }), true, [4, 0, 5]);

        let sigmoid = Some((&[0.0; 3][..], None));
        let routing = Routing { sigmoid, normalise: true, scale: 1.0, shared: None };
        routing.route(&[-200.0; 3], &mut experts, &mut weights);
        assert_eq!((experts, weights), ([0, 1, 2], [0.0; 3]), "no NaN");
    }

    /// Neither chosen nor scaled.
    #[test]
    fn the_shared_expert_comes_last() {
        let (mut experts, mut weights) = ([9; 3], [0.0; 3]);
        let routing = Routing {
            sigmoid: None,
            normalise: true,
            scale: 2.0,
            shared: Some(SharedExpert::Gated),
        };
        routing.route(&[1.0, 3.0, 2.0, 9.0], &mut experts, &mut weights);
        let chosen = 1.0 / (1.0 + (-1.0f64).exp());
        let wanted = [2.0 * chosen, 2.0 - 2.0 * chosen, 1.0 / (1.0 + (-9.0f64).exp())];
        assert_eq!(experts, [1, 2, 3]);
        assert_close(&weights, &wanted, 1e-6, "with a gate");
        let routing = Routing { shared: Some(SharedExpert::Whole), ..routing };
        routing.route(&[1.0, 3.0, 2.0], &mut experts, &mut weights);
        assert_eq!((experts, weights[2]), ([1, 2, 3], 1.0));
    }

    /// All tokens to one expert, none to others, and uneven; one row of x a token, and one a choice.
    #[test]
    fn each_token_is_multiplied_with_its_experts() {
        let (num_experts, n, k, top_k, tokens) = (5, 37, 40, 2, 23);
        let matrices = random(1, num_experts * n * k);
        let weight = StoredWeight::of(&matrices, k);
        let biases = random(4, num_experts * n);
        let choices: [fn(usize) -> u32; 3] =
            [|_| 3, |i| (i * i % 7 % 5) as u32, |i| (i % 2) as u32];
        for expert_of in choices {
            let experts: Vec<u32> = (0..tokens * top_k).map(expert_of).collect();
            let factors = random(2, tokens * top_k);
            for (x_rows, bias) in [(1, None), (top_k, None), (1, Some(&*biases))] {
                let x = random(3, tokens * x_rows * k);
                let product = |i: usize, n: usize, row: usize| -> f64 {
                    let x = &x[(i / top_k * x_rows + i % x_rows) * k..][..k];
                    let w = &matrices[(experts[i] as usize * row + n) * k..][..k];
                    let product: f64 =
                        x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                    let bias = bias.map_or(0.0, |bias| bias[experts[i] as usize * row + n]);
                    product + f64::from(bias)
                };
                let all = (0..tokens * top_k).flat_map(|i| (0..n).map(move |j| (i, j)));
                let wanted: Vec<f64> = all.map(|(i, j)| product(i, j, n)).collect();
                let layer = ExpertLinear {
                    weight: &weight,
                    bias,
                    num_experts,
                    width: k,
                    batch_invariant: false,
                };
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
