//! Elementwise operations and row reductions.

use super::activations::{Rows, RowsMut};
use super::exp::{exp, softcap};
use super::vectors::{Vectors, WithVectors, dispatch};
use super::weights::StoredWeight;
use plan::Constant;
use pulp::Arch;

/// `out[t, :] = scale * table[token_ids[t], :]`.
pub fn embedding(table: &StoredWeight, token_ids: &[u32], scale: f32, out: RowsMut) {
    out.for_each(|t, row| {
        table.widen_row(token_ids[t] as usize, row);
        row.iter_mut().for_each(|x| *x *= scale);
    });
}

/// `out[r, :] = x[indices[r], :]`.
pub fn gather_rows(x: &Rows, indices: &[u32], out: RowsMut) {
    out.for_each(|r, row| row.copy_from_slice(x.row(indices[r] as usize)));
}

/// `x[t, g, i] *= rsqrt(mean_i(x[t, g, i]^2) + eps) * weight[i]`, over groups of `weight.len()`
/// columns.
pub fn rms_norm(weight: &[f32], eps: f32, x: RowsMut) {
    let arch = Arch::new();
    x.for_each(|_, row| dispatch(arch, NormRow { weight, eps, row }));
}

/// A row of [`rms_norm`].
struct NormRow<'a> {
    weight: &'a [f32],
    eps: f32,
    row: &'a mut [f32],
}

impl WithVectors for NormRow<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let NormRow { weight, eps, row } = self;
        for group in row.chunks_exact_mut(weight.len()) {
            let mut squares = [0.0; 32];
            let (chunks, tail) = group.as_chunks::<32>();
            for chunk in chunks {
                for (square, &x) in squares.iter_mut().zip(chunk) {
                    *square = simd.multiply_add(x, x, *square);
                }
            }
            let tail: f32 = tail.iter().map(|x| x * x).sum();
            let mean_square = (squares.iter().sum::<f32>() + tail) / group.len() as f32;
            let scale = 1.0 / (mean_square + eps).sqrt();
            group.iter_mut().zip(weight).for_each(|(x, weight)| *x *= scale * weight);
        }
    }
}

/// `x[t, i] = (x[t, i] - mean) / sqrt(var + eps) * weight[i] (+ bias[i])`, of the mean and the
/// variance of each row.
pub fn layer_norm(weight: &[f32], bias: Option<&[f32]>, eps: f32, x: RowsMut) {
    x.for_each(|_, row| {
        // In f64, which costs nothing beside the linear layers.
        let len = row.len() as f64;
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / len;
        let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2));
        let scale = (squares.sum::<f64>() / len + f64::from(eps)).sqrt().recip();
        for (x, weight) in row.iter_mut().zip(weight) {
            *x = ((f64::from(*x) - mean) * scale) as f32 * weight;
        }
        bias.into_iter().for_each(|bias| row.iter_mut().zip(bias).for_each(|(x, b)| *x += b));
    });
}

/// `x[t, :] += table[positions[t], :]`.
pub fn add_table(table: &Constant, positions: &[u32], x: RowsMut) {
    x.for_each(|t, row| {
        let added = &table.data[positions[t] as usize * table.cols..][..table.cols];
        row.iter_mut().zip(added).for_each(|(x, added)| *x += added);
    });
}

/// `out[r, :] =` the mean of `x[t, :]` over the tokens of the sequence that token `rows[r]` is of.
pub fn mean_rows(x: &Rows, (cu_seqlens_q, rows): (&[u32], &[u32]), out: RowsMut) {
    out.for_each(|r, out| {
        let seq = cu_seqlens_q.partition_point(|&first| first <= rows[r]) - 1;
        let tokens = cu_seqlens_q[seq] as usize..cu_seqlens_q[seq + 1] as usize;
        let mut sums = vec![0.0; out.len()];
        for row in tokens.clone().map(|token| x.row(token)) {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        let means = sums.into_iter().map(|sum| (sum / tokens.len() as f64) as f32);
        out.iter_mut().zip(means).for_each(|(out, mean)| *out = mean);
    });
}

/// `x[t, i] = cap * tanh(x[t, i] / cap)`.
pub fn softcap_rows(cap: f32, x: RowsMut) {
    let arch = Arch::new();
    x.for_each(|_, row| dispatch(arch, Capped { scores: row, cap }));
}

/// `x[t, i] *= factors[0]`, or the factor of each element's index.
pub fn scale_rows(factors: &[f32], indices: Option<&[u32]>, x: RowsMut) {
    let width = x.width();
    x.for_each(|token, row| match indices {
        None => row.iter_mut().for_each(|x| *x *= factors[0]),
        Some(indices) => {
            let pairs = row.iter_mut().zip(&indices[token * width..]);
            pairs.for_each(|(x, &index)| *x *= factors[index as usize]);
        }
    });
}

/// Capped scores, or logits.
pub(crate) struct Capped<'a> {
    pub scores: &'a mut [f32],
    pub cap: f32,
}

impl WithVectors for Capped<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        self.scores.iter_mut().for_each(|x| *x = softcap(simd, *x, self.cap));
    }
}

/// `out[t, n] += bias[n]`.
pub fn add_bias(bias: &[f32], out: RowsMut) {
    out.for_each(|_, row| row.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias));
}

/// Rotates the pairs `(i, i + rotary_dim / 2)` of each head by the angles of its token's position.
pub fn rope(table: &Constant, positions: &[u32], head_dim: usize, x: RowsMut) {
    let rotary_dim = table.cols;
    x.for_each(|t, row| {
        let angles = &table.data[positions[t] as usize * rotary_dim..][..rotary_dim];
        let (cos, sin) = angles.split_at(rotary_dim / 2);
        for head in row.chunks_exact_mut(head_dim) {
            let (low, high) = head[..rotary_dim].split_at_mut(rotary_dim / 2);
            for (i, (low, high)) in low.iter_mut().zip(high).enumerate() {
                (*low, *high) = (*low * cos[i] - *high * sin[i], *high * cos[i] + *low * sin[i]);
            }
        }
    });
}

/// `x[t, i] *= sigmoid(gate[t, i])`, where a gate of one column is that of all of them.
pub fn sigmoid_gate(gate: &Rows, x: RowsMut) {
    let arch = Arch::new();
    x.for_each(|t, x| dispatch(arch, SigmoidRow { gate: gate.row(t), x }));
}

/// A row of [`sigmoid_gate`].
struct SigmoidRow<'a> {
    gate: &'a [f32],
    x: &'a mut [f32],
}

impl WithVectors for SigmoidRow<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let SigmoidRow { gate, x } = self;
        match *gate {
            [gate] if x.len() > 1 => {
                let factor = 1.0 / (1.0 + exp(simd, -gate));
                x.iter_mut().for_each(|x| *x *= factor);
            }
            _ => x.iter_mut().zip(gate).for_each(|(x, gate)| *x /= 1.0 + exp(simd, -gate)),
        }
    }
}

/// `out += x`.
pub fn add(x: &Rows, out: RowsMut) {
    out.for_each(|t, row| row.iter_mut().zip(x.row(t)).for_each(|(out, x)| *out += x));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, random};

    #[test]
    fn embedding_and_gather_copy_rows() {
        let table = random(1, 5 * 3);
        let mut out = vec![f32::NAN; 4 * 3];
        embedding(&StoredWeight::of(&table, 3), &[4, 0, 0, 2], 1.5, RowsMut::dense(&mut out, 3));
        let rows = [&table[12..15], &table[..3], &table[..3], &table[6..9]].concat();
        assert_eq!(out, rows.iter().map(|x| 1.5 * x).collect::<Vec<_>>());
        let mut last = vec![f32::NAN; 3];
        gather_rows(&Rows::dense(&out, 3), &[3], RowsMut::dense(&mut last, 3));
        assert_eq!(last, out[9..]);
    }

    /// One group (a norm of the hidden state) and several (QK-norm); enough rows to fork.
    #[test]
    fn rms_norm_matches_oracle() {
        for (rows, groups, width) in [(0, 1, 8), (1, 1, 576), (3, 7, 64), (40, 1, 577)] {
            let (x, weight) = (random(1, rows * groups * width), random(2, width));
            let mut out = x.clone();
            rms_norm(&weight, 1e-5, RowsMut::dense(&mut out, groups * width));
            let normalise = |group: &[f32]| {
                let squares: f64 = group.iter().map(|&x| x as f64 * x as f64).sum();
                let scale = 1.0 / (squares / width as f64 + 1e-5).sqrt();
                group
                    .iter()
                    .zip(&weight)
                    .map(|(&x, &w)| x as f64 * scale * w as f64)
                    .collect::<Vec<_>>()
            };
            let wanted: Vec<f64> = x.chunks(width).flat_map(normalise).collect();
            assert_close(&out, &wanted, 1e-6, &format!("[{rows}, {groups}, {width}]"));
        }
    }

    /// A pair is a complex number, turned by its angle; columns past `rotary_dim` stay.
    #[test]
    fn rope_turns_pairs() {
        let (head_dim, rotary_dim, num_heads) = (10, 8, 3);
        let angle = |position: usize, i: usize| position as f64 * 0.3f64.powi(i as i32);
        let mut data = Vec::new();
        for position in 0..6 {
            data.extend((0..4).map(|i| angle(position, i).cos() as f32));
            data.extend((0..4).map(|i| angle(position, i).sin() as f32));
        }
        let table = Constant { name: "rope".into(), rows: 6, cols: rotary_dim, data: data.into() };
        let positions = [5u32, 0, 2];
        let x = random(1, positions.len() * num_heads * head_dim);
        let mut wanted: Vec<f64> = x.iter().map(|&x| x as f64).collect();
        for (index, head) in wanted.chunks_mut(head_dim).enumerate() {
            for i in 0..4 {
                let (sin, cos) = angle(positions[index / num_heads] as usize, i).sin_cos();
                let (re, im) = (head[i], head[i + 4]);
                (head[i], head[i + 4]) = (re * cos - im * sin, re * sin + im * cos);
            }
        }
        let mut out = x;
        rope(&table, &positions, head_dim, RowsMut::dense(&mut out, num_heads * head_dim));
        assert_close(&out, &wanted, 1e-6, "rope");
    }

    #[test]
    fn a_gate_is_of_an_element_or_of_a_row() {
        let (gates, x) = (random(1, 6), random(2, 6));
        for width in [3, 1] {
            let mut out = x.clone();
            sigmoid_gate(&Rows::dense(&gates[..2 * width], width), RowsMut::dense(&mut out, 3));
            let gated = |i: usize| {
                let gate = f64::from(gates[if width == 3 { i } else { i / 3 }]);
                f64::from(x[i]) / (1.0 + (-gate).exp())
            };
            let wanted: Vec<f64> = (0..6).map(gated).collect();
            assert_close(&out, &wanted, 1e-6, &format!("gates of {width}"));
        }
    }

    /// Rows whose mean is far from 0.
    #[test]
    fn layer_norm_matches_oracle() {
        for (rows, width) in [(0, 8), (1, 1), (3, 384), (40, 577)] {
            let x: Vec<f32> = random(1, rows * width).iter().map(|x| x + 3.0).collect();
            let (weight, bias) = (random(2, width), random(3, width));
            for bias in [None, Some(&bias[..])] {
                let mut out = x.clone();
                layer_norm(&weight, bias, 1e-5, RowsMut::dense(&mut out, width));
                let wanted =
                    x.chunks(width).flat_map(|row| oracle::layer_norm(row, &weight, bias, 1e-5));
                let wanted: Vec<f64> = wanted.map(|approx| approx.value).collect();
                assert_close(&out, &wanted, 1e-6, &format!("[{rows}, {width}]"));
            }
        }
    }

    #[test]
    fn rows_of_a_sequence_are_pooled() {
        let (x, ends) = (random(1, 9 * 3), [0u32, 4, 5, 9]);
        let mut out = vec![f32::NAN; 2 * 3];
        // The second sequence is not asked for.
        let seqs = (&ends[..], &[3u32, 5][..]);
        mean_rows(&Rows::dense(&x, 3), seqs, RowsMut::dense(&mut out, 3));
        let wanted = [&x[..12], &x[15..]].into_iter().flat_map(|rows| oracle::mean(rows, 3));
        let wanted: Vec<f64> = wanted.map(|approx| approx.value).collect();
        assert_close(&out, &wanted, 1e-6, "means");
    }

    #[test]
    fn a_table_is_added_by_position() {
        let (x, data) = (random(1, 3 * 2), random(2, 4 * 2));
        let table =
            Constant { name: "positions".into(), rows: 4, cols: 2, data: data.clone().into() };
        let mut out = x.clone();
        add_table(&table, &[3, 0, 3], RowsMut::dense(&mut out, 2));
        let added = [&data[6..], &data[..2], &data[6..]].concat();
        let wanted: Vec<f32> = x.iter().zip(added).map(|(x, added)| x + added).collect();
        assert_eq!(out, wanted);
    }

    #[test]
    fn add_bias_adds_to_every_row() {
        let mut out = vec![1.0, 2.0, 3.0, 4.0];
        add_bias(&[10.0, 20.0], RowsMut::dense(&mut out, 2));
        assert_eq!(out, [11.0, 22.0, 13.0, 24.0]);
    }
}
