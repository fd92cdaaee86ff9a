//! Operations of encoders.

use crate::{View, WeightId};

/// `out[t, i] = (x[t, i] - mean) * rsqrt(var + eps) * weight[i] (+ bias[i])`, of the mean and the
/// variance of each row. `out` may be `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNorm {
    /// `[rows, width]` f32.
    pub x: View,
    /// `[width]`.
    pub weight: WeightId,
    /// `[width]`.
    pub bias: Option<WeightId>,
    /// Added to the variance.
    pub eps: f32,
    /// As `x`.
    pub out: View,
    /// Whether `x` becomes the output too, in f32; then `out` is another one.
    pub keeps: bool,
}
