//! Gated DeltaNet: attention with a state of fixed size in the place of keys and values.

use crate::{View, WeightId};

/// `out[t, c] = silu(sum_j weight[c, j] * x[t - taps + 1 + j, c])` over the tokens of a sequence;
/// before those of the step are the inputs that its state keeps, and at the start zeros. The last
/// inputs become the state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CausalConv {
    /// Layer of the states.
    pub layer: usize,
    /// `[tokens, channels]`.
    pub x: View,
    /// `[channels, taps]` f32.
    pub weight: WeightId,
    /// As `x`.
    pub out: View,
}

/// The gated delta rule, token after token of a sequence. A head of values has a state `S [k_dim,
/// v_dim]` in f32; `q` and `k` are those of its head of keys, with lengths 1 and `q` divided by
/// `sqrt(k_dim)`:
///
/// - `S *= exp(rate * softplus(a + bias))`;
/// - `S += k d^T`, where `d = sigmoid(b) * (v - S^T k)`;
/// - `out = S^T q`.
///
/// Source: arXiv:2412.06464.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaRule {
    /// Layer of the states.
    pub layer: usize,
    /// `[tokens, num_k_heads * k_dim]`.
    pub q: View,
    /// As `q`.
    pub k: View,
    /// `[tokens, num_heads * v_dim]`.
    pub v: View,
    /// `[tokens, 2 * num_heads]`: `b` of each head of values, then `a` of each.
    pub gates: View,
    /// `[num_heads]`: not above 0.
    pub rate: WeightId,
    /// `[num_heads]`, added to `a`.
    pub bias: WeightId,
    /// Heads of keys; each is for as many heads of values.
    pub num_k_heads: usize,
    /// Whether the heads of values that share a head of keys are `num_k_heads` apart; else they are
    /// neighbours.
    pub is_tiled: bool,
    /// As `v`.
    pub out: View,
}

impl DeltaRule {
    /// What is added to the sum of squares of `q` and of `k`, before they are divided by its root.
    pub const NORM_EPS: f32 = 1e-6;

    /// The head of keys of a head of values, of which there are `num_heads`.
    pub const fn k_head(&self, head: usize, num_heads: usize) -> usize {
        match self.is_tiled {
            true => head % self.num_k_heads,
            false => head / (num_heads / self.num_k_heads),
        }
    }
}
