//! The operations in f64, as naively as they are defined.

use ::oracle::{MAX_SLOPE, activate, factor};
use half::{bf16, f16};
use halfwarp::plan::{Activation, Attention, CacheType, Dtype, Precision};

use crate::harness::Matrix;

/// What a result in f32 may be.
#[derive(Clone, Copy, Debug)]
pub struct Approx {
    pub value: f64,
    pub tolerance: f64,
}

impl Approx {
    /// `value` within `ulps` roundings of numbers as large as `magnitude`.
    pub fn new(value: f64, ulps: f64, magnitude: f64) -> Self {
        let tolerance = ulps * f64::from(f32::EPSILON) * magnitude + f64::from(f32::MIN_POSITIVE);
        Approx { value, tolerance }
    }

    /// Exactly `value`.
    pub fn exactly(value: f32) -> Self {
        Approx { value: f64::from(value), tolerance: 0.0 }
    }

    /// The same, stored as an operand: rounded once more, if it is no number of that type by
    /// construction.
    pub fn stored(mut self, precision: Precision) -> Self {
        if self.tolerance > 0.0 {
            let subnormal = if precision == Precision::F16 { 2f64.powi(-25) } else { 0.0 };
            self.tolerance += self.value.abs() * half_ulp(precision) + subnormal;
        }
        self
    }

    /// How many tolerances `got` is off: at most 1 is right.
    pub fn excess(&self, got: f32) -> f64 {
        let got = f64::from(got);
        if got == self.value || (got.is_nan() && self.value.is_nan()) {
            return 0.0;
        }
        let excess = (got - self.value).abs() / self.tolerance;
        if excess.is_nan() { f64::INFINITY } else { excess }
    }
}

/// The most that rounding to the operand's type changes a number, relative to it; f32's own is in
/// every tolerance.
fn half_ulp(precision: Precision) -> f64 {
    match precision.operand() {
        Dtype::F16 => 2f64.powi(-11),
        Dtype::BF16 => 2f64.powi(-8),
        _ => 0.0,
    }
}

/// Roundings that a sum of `len` elements may collect: as a random walk, with room.
fn sum_ulps(len: usize) -> f64 {
    2.0 * (len as f64).sqrt()
}

/// `out[t, g, i] = x[t, g, i] * rsqrt(mean_i(x[t, g, i]^2) + eps) * weight[i]`.
pub fn rms_norm(x: &Matrix, weight: &[f32], eps: f32) -> Vec<Approx> {
    let mut out = Vec::new();
    for group in x.data.chunks(weight.len()) {
        let sum: f64 = group.iter().map(|&x| f64::from(x).powi(2)).sum();
        let scale = (sum / weight.len() as f64 + f64::from(eps)).sqrt().recip();
        for (&x, &weight) in group.iter().zip(weight) {
            let value = f64::from(x) * scale * f64::from(weight);
            out.push(Approx::new(value, 8.0 + sum_ulps(group.len()), value.abs()));
        }
    }
    out
}

/// `out[t, n] = sum_k x[t, k] * weight[n, k] (+ bias[n]) (+ residual[t, n])`.
pub fn linear(
    x: &Matrix,
    weight: &Matrix,
    bias: Option<&[f32]>,
    residual: Option<&Matrix>,
) -> Vec<Approx> {
    let mut out = Vec::new();
    for t in 0..x.rows {
        for n in 0..weight.rows {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[n]));
            let residual = residual.map_or(0.0, |residual| f64::from(residual.row(t)[n]));
            let (mut value, mut magnitude) = (bias + residual, bias.abs() + residual.abs());
            for (&x, &weight) in x.row(t).iter().zip(weight.row(n)) {
                let product = f64::from(x) * f64::from(weight);
                value += product;
                magnitude += product.abs();
            }
            out.push(Approx::new(value, 4.0 + sum_ulps(x.cols), magnitude));
        }
    }
    out
}

/// A linear layer of `x`, whose elements are within their tolerances.
pub fn linear_of(x: &[Approx], cols: usize, weight: &Matrix, bias: Option<&[f32]>) -> Vec<Approx> {
    let data = x.iter().map(|x| x.value as f32).collect();
    let values = Matrix { rows: x.len() / cols, cols, data };
    let mut out = linear(&values, weight, bias, None);
    for (t, out) in out.chunks_mut(weight.rows).enumerate() {
        for (n, out) in out.iter_mut().enumerate() {
            let terms = x[t * cols..][..cols].iter().zip(weight.row(n));
            out.tolerance += terms.map(|(x, &w)| x.tolerance * f64::from(w.abs())).sum::<f64>();
        }
    }
    out
}

/// Rotary embedding of each head's first `table.cols` columns, halves form; row `t` of `x` is at
/// `positions[t]`.
pub fn rope(x: &Matrix, positions: &[u32], table: &Matrix, head_dim: usize) -> Vec<Approx> {
    let mut out = Vec::new();
    let half = table.cols / 2;
    for (t, &position) in positions.iter().enumerate() {
        let (cos, sin) = table.row(position as usize).split_at(half);
        for head in x.row(t).chunks(head_dim) {
            for i in 0..head_dim {
                let (own, pair, sign, frequency) = match i {
                    i if i < half => (i, i + half, -1.0, i),
                    i if i < 2 * half => (i, i - half, 1.0, i - half),
                    _ => {
                        out.push(Approx::exactly(head[i]));
                        continue;
                    }
                };
                let a = f64::from(head[own]) * f64::from(cos[frequency]);
                let b = f64::from(head[pair]) * f64::from(sin[frequency]) * sign;
                out.push(Approx::new(a + b, 4.0, a.abs() + b.abs()));
            }
        }
    }
    out
}

/// `out = activation(gate) * up`, in f16 no larger than its largest number.
pub fn gate(
    activation: Activation,
    gate: &Matrix,
    up: &Matrix,
    precision: Precision,
) -> Vec<Approx> {
    let max = if precision == Precision::F16 { 65504.0 } else { f64::INFINITY };
    let pairs = gate.data.iter().zip(&up.data);
    pairs
        .map(|(&gate, &up)| {
            let (gate, up) = (f64::from(gate), f64::from(up));
            let activated = activate(activation, gate);
            let up = factor(activation, up);
            let value = (activated * up).clamp(-max, max);
            let mut expected = Approx::new(value, 8.0, value.abs());
            // An exponential's argument is rounded before it is taken, as if the gate were. Its
            // reciprocal is 0 where it would be less than a normal number.
            let rounded = activate(activation, gate * (1.0 + 3.0 * f64::from(f32::EPSILON)));
            expected.tolerance += (up * (rounded - activated)).abs();
            expected.tolerance += (gate * up).abs() * 4.0 * f64::from(f32::MIN_POSITIVE);
            expected
        })
        .collect()
}

/// The gate of rows whose first half is gate's and whose second is up's, each element within its
/// tolerance.
pub fn gated(
    activation: Activation,
    gate_up: &[Approx],
    width: usize,
    precision: Precision,
) -> Vec<Approx> {
    let half = |start: usize| {
        let rows = gate_up.chunks(2 * width);
        let values = move |row: &[Approx]| row[start..start + width].to_vec();
        rows.flat_map(values).collect::<Vec<Approx>>()
    };
    let matrix = |half: &[Approx]| {
        let data: Vec<f32> = half.iter().map(|x| x.value as f32).collect();
        Matrix { rows: data.len() / width, cols: width, data }
    };
    let (gates, up) = (half(0), half(width));
    let mut out = gate(activation, &matrix(&gates), &matrix(&up), precision);
    for ((out, gate), up) in out.iter_mut().zip(&gates).zip(&up) {
        // No activation is larger than its argument.
        let (gate_off, up_off) = (gate.tolerance, up.tolerance);
        out.tolerance += MAX_SLOPE * gate_off * (up.value.abs() + up_off)
            + (gate.value.abs() + gate_off) * up_off;
    }
    out
}

fn bent(score: f64, cap: f64) -> f64 {
    cap * (score / cap).tanh()
}

/// Attention of the last `q.rows` positions of one sequence with these keys and values,
/// `[kv_len, num_kv_heads, head_dim]`. Tensor cores take the softmax rounded to the operand's type.
pub fn attention(
    op: &Attention,
    precision: Precision,
    q: &Matrix,
    keys: &Matrix,
    values: &Matrix,
) -> Vec<Approx> {
    let Attention { num_heads, num_kv_heads, head_dim, .. } = *op;
    let head = |matrix: &Matrix, row: usize, head: usize| -> Vec<f64> {
        matrix.row(row)[head * head_dim..][..head_dim].iter().map(|&x| f64::from(x)).collect()
    };
    let mut out = Vec::new();
    for t in 0..q.rows {
        let end = if op.causal { keys.rows - q.rows + t + 1 } else { keys.rows };
        let visible = end - op.window.map_or(end, |window| window.min(end))..end;
        for h in 0..num_heads {
            let (query, kv_head) = (head(q, t, h), h / (num_heads / num_kv_heads));
            let dot = |key: Vec<f64>| query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>();
            let scores: Vec<f64> = visible
                .clone()
                .map(|row| dot(head(keys, row, kv_head)) * f64::from(op.softmax_scale))
                .map(|score| op.softcap.map_or(score, |cap| bent(score, cap.into())))
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let (mut result, mut magnitude) = (vec![0.0; head_dim], 0.0f64);
            for (row, weight) in visible.clone().zip(&weights) {
                for (out, value) in result.iter_mut().zip(head(values, row, kv_head)) {
                    *out += weight / sum * value;
                    magnitude = magnitude.max(value.abs());
                }
            }
            let largest = scores.iter().fold(0.0f64, |largest, score| largest.max(score.abs()));
            let ulps = 32.0 + 8.0 * largest * (head_dim as f64).sqrt();
            out.extend(result.iter().map(|&value| {
                let mut expected = Approx::new(value, ulps, magnitude);
                expected.tolerance += half_ulp(precision) * magnitude;
                expected.stored(precision)
            }));
        }
    }
    out
}

/// As [`cached`], of keys, which in 4 bits are stored rotated.
pub fn cached_keys(cache_type: CacheType, head_dim: usize, rows: Matrix) -> Matrix {
    match cache_type {
        // The matrix is its own inverse.
        CacheType::Q4_0 => rotated(cached(cache_type, head_dim, rotated(rows))),
        _ => cached(cache_type, head_dim, rows),
    }
}

/// Rows whose blocks of 32 columns are multiplied by the Hadamard matrix over `sqrt(32)`.
fn rotated(mut rows: Matrix) -> Matrix {
    for block in rows.data.chunks_exact_mut(32) {
        let sign =
            |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let column = |i| (0..32).map(|j| sign(i, j) * f64::from(block[j])).sum::<f64>();
        let values: Vec<f32> = (0..32).map(|i| (column(i) / 32f64.sqrt()) as f32).collect();
        block.copy_from_slice(&values);
    }
    rows
}

/// What a cache of `cache_type` gives for rows of heads of `head_dim`: each element times the
/// inverse of its scale in f32, rounded to the numbers that there are, times the scale.
pub fn cached(cache_type: CacheType, head_dim: usize, mut rows: Matrix) -> Matrix {
    let group = match cache_type {
        CacheType::Q8_0 | CacheType::Q4_0 => 32,
        _ => head_dim,
    };
    for values in rows.data.chunks_mut(group) {
        // Of two that differ in their sign alone the negative one.
        let magnitude = |x: f32| (f64::from(x.abs()), x.is_sign_negative());
        let by_magnitude = |a: &f32, b: &f32| magnitude(*a).partial_cmp(&magnitude(*b)).unwrap();
        let largest = values.iter().copied().max_by(by_magnitude).unwrap();
        let scaled = |divisor: f32, round: &dyn Fn(f64) -> f64| {
            let scale = f16::from_f32(largest / divisor).to_f32();
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            let stored = |x: &f32| (f64::from(scale) * round(f64::from(x * inverse))) as f32;
            values.iter().map(stored).collect::<Vec<f32>>()
        };
        let divisor = |most: f32| most.copysign(largest);
        let stored = match cache_type {
            CacheType::F32 => values.to_vec(),
            CacheType::F16 => values.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
            CacheType::BF16 => values.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
            CacheType::Q8_0 => {
                scaled(divisor(127.0), &|x| x.round_ties_even().clamp(-127.0, 127.0))
            }
            CacheType::Fp8 => scaled(divisor(448.0), &nearest_e4m3),
            CacheType::Q4_0 => scaled(-8.0, &|x| ((x as f32 + 8.5).floor() as f64).min(15.0) - 8.0),
        };
        values.copy_from_slice(&stored);
    }
    rows
}

/// The nearest number of E4M3: 3 bits of fraction from 2^-6 on, multiples of 2^-9 below.
fn nearest_e4m3(x: f64) -> f64 {
    let exponent = x.abs().log2().floor().max(-6.0);
    let ulp = (exponent - 3.0).exp2();
    ((x / ulp).round_ties_even() * ulp).clamp(-448.0, 448.0)
}

/// Adds what rounding keys and values of up to 1 to the operand's type costs, once they are read.
pub fn widen_for_cache(expected: &mut [Approx], precision: Precision) {
    for expected in expected {
        expected.tolerance += 8.0 * half_ulp(precision);
    }
}
