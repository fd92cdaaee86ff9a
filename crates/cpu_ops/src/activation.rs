//! The gate of a feed-forward layer.

use super::activations::{Rows, RowsMut};
use super::exp::exp;
use super::vectors::{Vectors, WithVectors, dispatch};
use gpu_types::Activation;
use pulp::Arch;

/// `out = activation(gate) * up`, no larger than `max`.
pub fn gate(activation: Activation, gate: &Rows, up: &Rows, max: f32, out: RowsMut) {
    let arch = Arch::new();
    out.for_each(|t, out| {
        let (gate, up) = (gate.row(t), up.row(t));
        dispatch(arch, GateRow { activation, gate, up, max, out });
    });
}

/// A row of [`gate`].
struct GateRow<'a> {
    activation: Activation,
    gate: &'a [f32],
    up: &'a [f32],
    max: f32,
    out: &'a mut [f32],
}

impl WithVectors for GateRow<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let GateRow { activation, gate, up, max, out } = self;
        let elems = out.iter_mut().zip(gate).zip(up);
        match activation {
            Activation::Silu => {
                for ((out, &gate), up) in elems {
                    *out = (gate / (1.0 + exp(simd, -gate)) * up).clamp(-max, max);
                }
            }
            Activation::GeluTanh => {
                let (slope, cubic) = (2.0 * Activation::GELU_SLOPE, Activation::GELU_CUBIC);
                for ((out, &gate), up) in elems {
                    let twice = slope * gate * (1.0 + cubic * gate * gate);
                    *out = (gate / (1.0 + exp(simd, -twice)) * up).clamp(-max, max);
                }
            }
            Activation::SwigluOai => {
                let (alpha, limit) = (Activation::SWIGLU_ALPHA, Activation::SWIGLU_LIMIT);
                for ((out, &gate), up) in elems {
                    // Not `min`, which loses NaN.
                    let gate = if gate > limit { limit } else { gate };
                    let activated = gate / (1.0 + exp(simd, -alpha * gate));
                    *out = (activated * (up.clamp(-limit, limit) + 1.0)).clamp(-max, max);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, random};

    #[test]
    fn gates_match_oracle() {
        let mut gates: Vec<f32> = random(1, 300).iter().map(|x| x * 20.0).collect();
        gates[..4].copy_from_slice(&[0.0, -200.0, 200.0, -0.0]);
        let up: Vec<f32> = random(2, 300).iter().map(|x| x * 10.0).collect();
        let rows = [&gates, &up].map(|data| Rows::dense(data, 100));
        for activation in Activation::ALL {
            let mut out = vec![f32::NAN; 300];
            gate(activation, &rows[0], &rows[1], f32::INFINITY, RowsMut::dense(&mut out, 100));
            let pairs = gates.iter().zip(&up).map(|(&gate, &up)| [gate, up].map(f64::from));
            let gated = |[gate, up]: [f64; 2]| {
                oracle::activate(activation, gate) * oracle::factor(activation, up)
            };
            let wanted: Vec<f64> = pairs.map(gated).collect();
            assert_close(&out, &wanted, 1e-6, activation.name());
        }
    }

    #[test]
    fn a_product_is_no_larger_than_asked() {
        let (gates, up) =
            ([300.0, 300.0, 300.0, f32::INFINITY, 1.0], [1.0, 300.0, -300.0, 2.0, f32::NAN]);
        let rows = [&gates, &up].map(|data| Rows::dense(data, 5));
        for activation in Activation::FUSED {
            let mut out = [0.0; 5];
            gate(activation, &rows[0], &rows[1], 65504.0, RowsMut::dense(&mut out, 5));
            assert_eq!(out[..4], [300.0, 65504.0, -65504.0, 65504.0]);
            assert!(out[4].is_nan());
        }
        let swiglu = Activation::SwigluOai;
        for (gates, up) in [([f32::NAN], [1.0]), ([1.0], [f32::NAN])] {
            let [gates, up] = [&gates, &up].map(|data| Rows::dense(data, 1));
            let mut out = [0.0];
            gate(swiglu, &gates, &up, f32::INFINITY, RowsMut::dense(&mut out, 1));
            assert!(out[0].is_nan());
        }
    }
}
