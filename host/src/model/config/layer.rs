//! What of a configuration belongs to a layer, and to its branches: attention and MLP.

use super::{ConfigError, Family, must};
use crate::plan::{Groups, KvHeads};

/// What a layer has of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerConfig {
    /// The sliding window, in positions.
    pub window: Option<usize>,
    /// Which of [`Config::ropes`](super::Config::ropes) rotates Q and K; a layer without one knows
    /// no positions.
    pub rope: Option<usize>,
    /// Whether its MLP is a mixture of [experts](super::Config::experts).
    pub has_experts: bool,
    /// Whether it is one of [Gated DeltaNet](super::Config::delta), and not attention.
    pub is_delta: bool,
    /// KV heads of the layer and their elements, where they are not those of the model.
    pub heads: Option<KvHeads>,
    /// Where its keys and values come from.
    pub kv: KvSource,
    /// Elements between gate/up and down of its MLP, where they are not as many as the model's.
    pub intermediate_size: Option<usize>,
}

/// Where the keys and values of a layer come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvSource {
    /// A projection each.
    #[default]
    Own,
    /// One projection: values are what keys are made of, before their norm and their rotation.
    Joint,
    /// The cache of this layer, one before it.
    Layer(usize),
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
    /// What every model of `family` has; `says` whether one of a family has it that may.
    pub(super) fn of(family: Family, says: bool) -> Option<Self> {
        match family {
            Family::Qwen3 | Family::Qwen3Moe | Family::Gemma3 | Family::Gemma4 => {
                Some(QkNorm::PerHead)
            }
            _ if family.has_delta() => Some(QkNorm::PerHead),
            Family::Glm4Moe => says.then_some(QkNorm::PerHead),
            Family::Olmo2 | Family::Olmo3 => Some(QkNorm::AllHeads),
            _ => None,
        }
    }
}

/// Experts in the place of a layer's MLP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts that a token goes to: those with the largest scores.
    pub top_k: usize,
    /// Elements between gate/up and down of an expert.
    pub intermediate_size: usize,
    /// What experts are chosen by.
    pub scores: ExpertScores,
    /// Whether the scores of these are divided by their sum.
    pub normalise: bool,
    /// Multiplies the scores then.
    pub scale: f64,
    /// Whether the router, and gate, up and down of an expert have a bias.
    pub bias: bool,
    /// Elements between gate/up and down of the MLP that every token goes to besides.
    pub shared_intermediate_size: Option<usize>,
    /// Whether what that one makes of a token is multiplied by the sigmoid of a product with the
    /// token.
    pub shared_gate: bool,
    /// Whether they are added to the layer's MLP: the two have norms of their own, the router one
    /// of the residual stream, and the weight of each expert a factor.
    pub beside_mlp: bool,
}

impl Experts {
    /// Experts as most families have them: those with the largest probabilities are chosen.
    pub(super) fn new(num_experts: usize, top_k: usize, intermediate_size: usize) -> Self {
        Experts {
            num_experts,
            top_k,
            intermediate_size,
            scores: ExpertScores::Softmax,
            normalise: true,
            scale: 1.0,
            bias: false,
            shared_intermediate_size: None,
            shared_gate: false,
            beside_mlp: false,
        }
    }

    /// Checks what single fields cannot show.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Experts { num_experts, top_k, .. } = *self;
        must(
            top_k <= num_experts,
            "num_experts_per_tok",
            top_k.to_string(),
            &format!("there are {num_experts} experts"),
        )?;
        let ExpertScores::Sigmoid { groups: Some(Groups { count, top_k: top_groups }) } =
            self.scores
        else {
            return Ok(());
        };
        let of_group = num_experts / count.max(1);
        must(
            num_experts == count * of_group && of_group >= 2,
            "n_group",
            count.to_string(),
            &format!("it must divide {num_experts} experts into groups of two and more"),
        )?;
        must(
            (1..=count).contains(&top_groups) && top_k <= top_groups * of_group,
            "topk_group",
            top_groups.to_string(),
            &format!("{top_k} experts are chosen, of {count} groups of {of_group}"),
        )
    }
}

/// What experts are chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertScores {
    /// The softmax of the router's logits.
    Softmax,
    /// The sigmoid of the logits and, to choose, a bias.
    Sigmoid {
        /// Groups of experts that a token is restricted to first.
        groups: Option<Groups>,
    },
}

/// Where a branch has its norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// `hidden += branch(norm(hidden))`.
    Before,
    /// `hidden += norm(branch(hidden))`.
    After,
    /// `hidden += norm(branch(norm(hidden)))`.
    Around,
}

impl NormPlacement {
    /// What every model of `family` has.
    pub(super) fn of(family: Family) -> Self {
        match family {
            Family::Olmo2 | Family::Olmo3 => NormPlacement::After,
            family if family.is_gemma() => NormPlacement::Around,
            _ => NormPlacement::Before,
        }
    }
}
