//! What encoders compute that decoders do not.

use crate::{Approx, SUM_ROUNDING};

/// `(x - mean) / sqrt(var + eps) * weight (+ bias)` of a row, before it is stored.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<Approx> {
    let len = x.len() as f64;
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / len;
    let size = x.iter().map(|&x| f64::from(x).abs()).sum::<f64>() / len;
    let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / len;
    let scale = (variance + f64::from(eps)).sqrt().recip();
    let normed = |(i, &x): (usize, &f32)| {
        let factor = scale * f64::from(weight[i]);
        let value = (f64::from(x) - mean) * factor;
        // The mean is off by a rounding of what it is a sum of.
        let off = SUM_ROUNDING * ((size + f64::from(x).abs()) * factor.abs() + 2.0 * value.abs());
        let normed = Approx::new(value, off);
        bias.map_or(normed, |bias| normed.plus(bias[i].into()))
    };
    x.iter().enumerate().map(normed).collect()
}

/// `x * (1 + erf(x / sqrt(2))) / 2 * up`, clamped to no type yet.
pub fn gelu(x: f64, up: f64) -> Approx {
    /// The error of a polynomial in f32.
    const ERF_ERROR: f64 = 2e-7;
    let value = x * up * 0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2));
    let off = ERF_ERROR * (-x * x / 16.0).exp() * (x * up).abs();
    Approx::new(value, off + SUM_ROUNDING * value.abs())
}

/// `2 / sqrt(pi) * exp(-x^2) * sum_n 2^n x^(2n + 1) / (2n + 1)!!`, whose terms have one sign.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut sum, mut term) = (0.0, x);
    for n in 1..200 {
        sum += term;
        term *= 2.0 * x * x / f64::from(2 * n + 1);
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// The mean of rows of `width`.
pub fn mean(rows: &[f32], width: usize) -> Vec<Approx> {
    let num_rows = (rows.len() / width) as f64;
    let of_column = |column: usize| {
        let values = || rows[column..].iter().step_by(width).map(|&x| f64::from(x));
        let size: f64 = values().map(f64::abs).sum();
        Approx::new(values().sum::<f64>() / num_rows, 2.0 * SUM_ROUNDING * size / num_rows)
    };
    (0..width).map(of_column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_is_that_of_tables() {
        for (x, wanted) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (-2.0, -0.995_322_265_018_952_7),
            (3.5, 0.999_999_256_901_627_7),
            (9.0, 1.0),
        ] {
            assert!((erf(x) - wanted).abs() < 1e-14, "{x}: {}", erf(x));
        }
    }
}
