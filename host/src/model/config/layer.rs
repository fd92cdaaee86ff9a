//! What of a configuration belongs to a layer, and to its branches: attention and MLP.

use super::Family;

/// What a layer has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerConfig {
    /// The sliding window, in positions.
    pub window: Option<usize>,
    /// Which of [`Config::ropes`](super::Config::ropes) rotates Q and K; a layer without one knows no
    /// positions.
    pub rope: Option<usize>,
}

/// Over what Q and K are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself; all of them have one weight.
    PerHead,
    /// All heads of Q, and all of K, at once.
    AllHeads,
}

impl QkNorm {
    /// What every model of `family` has.
    pub(super) fn of(family: Family) -> Option<Self> {
        match family {
            Family::Qwen3 | Family::Qwen3Moe => Some(QkNorm::PerHead),
            Family::Olmo2 | Family::Olmo3 => Some(QkNorm::AllHeads),
            _ => None,
        }
    }
}

/// Experts in the place of each layer's MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts that a token goes to: those with the largest probabilities.
    pub top_k: usize,
    /// Whether the probabilities of these are divided by their sum.
    pub normalise: bool,
}

/// Where a branch has its norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// `hidden += branch(norm(hidden))`.
    Before,
    /// `hidden += norm(branch(hidden))`.
    After,
}

impl NormPlacement {
    /// What every model of `family` has.
    pub(super) fn of(family: Family) -> Self {
        match family {
            Family::Olmo2 | Family::Olmo3 => NormPlacement::After,
            _ => NormPlacement::Before,
        }
    }
}
