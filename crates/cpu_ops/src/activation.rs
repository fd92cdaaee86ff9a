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

/// `x = gelu(x) (* up)` by the error function, no larger than `max`.
pub fn gelu(up: Option<&Rows>, max: f32, x: RowsMut) {
    let arch = Arch::new();
    x.for_each(|t, x| {
        dispatch(arch, GeluRow { x });
        up.into_iter().for_each(|up| x.iter_mut().zip(up.row(t)).for_each(|(x, up)| *x *= up));
        x.iter_mut().for_each(|x| *x = x.clamp(-max, max));
    });
}

/// A row of [`gelu`].
struct GeluRow<'a> {
    x: &'a mut [f32],
}

impl WithVectors for GeluRow<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        for x in self.x {
            // erfc(z) / 2 by Abramowitz and Stegun, 7.1.26: within 1e-7.
            let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
            let t = 1.0 / (1.0 + 0.327_591_1 * z);
            let polynomial = [-1.453_152, 1.421_413_8, -0.284_496_74, 0.254_829_6];
            let polynomial = polynomial.iter().fold(1.061_405_4, |sum, c| sum * t + c);
            let tail = 0.5 * polynomial * t * exp(simd, -z * z);
            *x *= if *x < 0.0 { tail } else { 1.0 - tail };
        }
    }
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
    fn gelu_matches_oracle() {
        let mut x: Vec<f32> = random(1, 300).iter().map(|x| x * 8.0).collect();
        x[..4].copy_from_slice(&[0.0, -200.0, 200.0, -6.0]);
        let ups = random(2, 300);
        let up = Rows::dense(&ups, 100);
        for up in [None, Some(&up)] {
            let mut out = x.clone();
            gelu(up, 100.0, RowsMut::dense(&mut out, 100));
            for (i, &got) in out.iter().enumerate() {
                let wanted = oracle::gelu(x[i].into(), up.map_or(1.0, |_| ups[i].into()));
                let off = (f64::from(got) - wanted.value.clamp(-100.0, 100.0)).abs();
                assert!(off <= wanted.bound, "gelu({}) is {got}", x[i]);
            }
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
