//! RMSNorm.

use crate::Approx;

/// `x / sqrt(mean(x^2) + eps) * weight`, before it is stored.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<Approx> {
    let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
    let scale = (squares / x.len() as f64 + f64::from(eps)).sqrt().recip();
    let normed = x.iter().zip(weight);
    normed.map(|(&x, &weight)| Approx::f32(f64::from(x) * scale * f64::from(weight))).collect()
}
