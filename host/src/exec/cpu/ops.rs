//! The operations that touch each element once or twice.

use super::activations::{Rows, RowsMut};
use super::dot::dot;
use crate::plan::Constant;

/// `out[t, :] = table[token_ids[t], :]`.
pub fn embedding(table: &[f32], token_ids: &[u32], out: RowsMut) {
    let width = out.width();
    out.for_each(|t, row| row.copy_from_slice(&table[token_ids[t] as usize * width..][..width]));
}

/// `out[r, :] = x[indices[r], :]`.
pub fn gather_rows(x: Rows, indices: &[u32], out: RowsMut) {
    out.for_each(|r, row| row.copy_from_slice(x.row(indices[r] as usize)));
}

/// `x[t, g, i] *= rsqrt(mean_i(x[t, g, i]^2) + eps) * weight[i]`, over groups of `weight.len()` columns.
pub fn rms_norm(weight: &[f32], eps: f32, x: RowsMut) {
    x.for_each(|_, row| {
        for group in row.chunks_exact_mut(weight.len()) {
            let mean_square = dot(group, group) / group.len() as f32;
            let scale = 1.0 / (mean_square + eps).sqrt();
            group.iter_mut().zip(weight).for_each(|(x, weight)| *x *= scale * weight);
        }
    });
}

/// `out[t, n] += bias[n]`.
pub fn add_bias(bias: &[f32], out: RowsMut) {
    out.for_each(|_, row| row.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias));
}

/// Turns the pairs `(i, i + rotary_dim / 2)` of each head by the angles of its token's position.
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

/// `out = silu(gate) * up`.
pub fn silu_mul(gate: Rows, up: Rows, out: RowsMut) {
    out.for_each(|t, row| {
        for ((out, gate), up) in row.iter_mut().zip(gate.row(t)).zip(up.row(t)) {
            *out = gate / (1.0 + (-gate).exp()) * up;
        }
    });
}

/// The smallest index of the largest value of each row; NaN counts as smaller than everything.
pub fn argmax(x: Rows) -> Vec<u32> {
    let largest = |row: &[f32]| {
        let mut best = (0, f32::NEG_INFINITY);
        for (index, &value) in row.iter().enumerate() {
            if value > best.1 {
                best = (index as u32, value);
            }
        }
        best.0
    };
    x.iter().map(largest).collect()
}
