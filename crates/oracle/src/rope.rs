//! Rotary position embedding.

use crate::{Approx, SUM_ROUNDING};

/// A head whose first columns are rotated: column `i` with column `i + angles.len() / 2`, by the
/// cosines and then sines of a position. Before it is stored.
pub fn rope(head: &[f32], angles: &[f32]) -> Vec<Approx> {
    let half = angles.len() / 2;
    let rotated = |i: usize| {
        if i >= angles.len() {
            return Approx::exact(head[i]);
        }
        let (cos, sin) = (f64::from(angles[i % half]), f64::from(angles[i % half + half]));
        let [a, b] = [i % half, i % half + half].map(|at| f64::from(head[at]));
        let (first, second) = if i < half { (a * cos, -b * sin) } else { (b * cos, a * sin) };
        Approx::new(first + second, SUM_ROUNDING * (first.abs() + second.abs()))
    };
    (0..head.len()).map(rotated).collect()
}
