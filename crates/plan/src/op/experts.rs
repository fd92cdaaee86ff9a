//! Mixtures of experts: which ones a token goes to, and what they make of it.

use super::{Linear, Norm, Op};
use crate::{Activation, View, WeightId};
pub use kernels::gemm::experts::SharedExpert;

/// The `experts.width` experts of a token with the largest scores, the largest first and of equal
/// ones that of the lower index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// What the logits are computed from, where that is fused with the choice.
    pub router: Option<Router>,
    /// `[tokens, num_experts]` f32, or one more where the shared expert has a gate. A router writes
    /// them.
    pub logits: View,
    /// What the experts are chosen by, and weighted with.
    pub scores: Scores,
    /// Whether the weights of a token are divided by their sum. Those of [`Scores::Softmax`] are
    /// then the softmax of the chosen logits alone.
    pub normalise: bool,
    /// Multiplies the weights, after that.
    pub scale: f32,
    /// An expert that every token goes to, after the others in number and in the token's choice.
    pub shared: Option<SharedExpert>,
    /// `[tokens, top_k]` u32: indices of the experts; one more with a shared one.
    pub experts: View,
    /// As `experts`, f32: what their outputs are multiplied with.
    pub weights: View,
}

/// [`Op::RmsNorm`] of whole rows, then a linear layer to the logits of [`Route`]. The normed rows
/// are to the same bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Router {
    /// `[tokens, k]` f32.
    pub x: View,
    /// The norm of `x`.
    pub norm: Norm,
    /// `[tokens, k]`, `x` after the norm, which the experts read.
    pub normed: View,
    /// `[num_experts, k]`, or one row more, as the logits.
    pub weight: WeightId,
    /// As many.
    pub bias: Option<WeightId>,
}

impl Route {
    /// Experts to choose from.
    pub fn num_experts(&self) -> usize {
        self.logits.width - usize::from(self.shared == Some(SharedExpert::Gated))
    }

    /// Experts of a token that are chosen.
    pub fn top_k(&self) -> usize {
        self.experts.width - usize::from(self.shared.is_some())
    }

    /// The norm and the linear layer that it begins with; none without a router.
    pub fn router_ops(&self) -> impl Iterator<Item = Op> {
        let logits = self.logits;
        self.router.into_iter().flat_map(move |router| {
            let Router { x, norm: Norm { weight: norm, eps }, normed, weight, bias } = router;
            let linear = Linear { bias, ..Linear::new(normed, weight, logits) };
            [Op::RmsNorm { x, weight: norm, out: normed, eps }, Op::Linear(linear)]
        })
    }
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scores {
    /// The softmax of the logits, for both.
    Softmax,
    /// Weights are the sigmoid of the logits; experts are chosen by it plus a bias.
    Sigmoid {
        /// `[num_experts]`.
        bias: WeightId,
        /// Groups of neighbouring experts that a token is restricted to first.
        groups: Option<Groups>,
    },
}

/// A token goes to experts of some groups alone: those with the largest sums of their two best
/// experts, and of equal ones those of the lower index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups of as many experts each, at least two.
    pub count: usize,
    /// Groups that a token is restricted to.
    pub top_k: usize,
}

/// `product(t, i, n) = sum_k x[t, i, k] * weight[experts[t, i], n, k] (+ bias[experts[t, i], n])`,
/// for each of a token's `top_k` experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertLinear {
    /// `[tokens, k]`, which all experts of a token read, or `[tokens, top_k * k]`.
    pub x: View,
    /// `[tokens, top_k]` u32, see [`Route`].
    pub experts: View,
    /// The matrices of all experts, one on the other: `[num_experts * n, k]`.
    pub weight: WeightId,
    /// `[num_experts * n]`.
    pub bias: Option<WeightId>,
    /// Up, where the products are those of the gate, and `activation(gate) * up` is meant.
    pub gate: Option<ExpertGate>,
    /// Experts of the layer.
    pub num_experts: usize,
    /// `[tokens, top_k]` f32: `out[t, n]` is the sum of the products times these, in f32 and in
    /// order. Without them `out[t, i, n]` are the products.
    pub weights: Option<View>,
    /// `[tokens, n]`, added to the sums. `out` may be it.
    pub residual: Option<View>,
    /// `[tokens, n]` with weights, `[tokens, top_k * n]` without.
    pub out: View,
}

/// What [`ExpertLinear`] multiplies its activated products with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertGate {
    /// What the gate goes through.
    pub activation: Activation,
    /// As [`ExpertLinear::weight`].
    pub up: WeightId,
    /// As [`ExpertLinear::bias`].
    pub bias: Option<WeightId>,
}
