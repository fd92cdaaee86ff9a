//! The normalised configuration of a model, whatever family and file it comes from.

mod delta;
mod encoder;
mod fields;
mod gemma4;
mod gguf;
mod gguf_experts;
mod hf;
mod hf_experts;
mod hf_layers;
mod layer;
mod rope_hf;
#[cfg(test)]
mod tests;

pub use delta::DeltaNet;
pub use encoder::{Encoder, LearnedPositions};
pub use gemma4::PerLayerInputs;
pub use layer::{ExpertScores, Experts, KvSource, LayerConfig, NormPlacement, QkNorm};

use super::rope::{QueryScaling, Rope, RopeScaling};
use crate::plan::KvHeads;
use crate::weights::WeightsError;
use gpu_types::Activation;
use std::ops::RangeInclusive;

/// A family of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Mixtral,
    Phi3,
    Granite,
    SmolLm3,
    Olmo2,
    Olmo3,
    Ministral3,
    GptOss,
    Glm4Moe,
    GraniteMoe,
    Gemma2,
    Gemma3,
    Gemma4,
    Qwen3Next,
    Qwen35,
    Qwen35Moe,
    Bert,
    /// XLM-RoBERTa too.
    Roberta,
    ModernBert,
}

impl Family {
    /// Every family, by the names that `model_type` and `general.architecture` have for it.
    pub const ALL: [(&'static str, Family); 37] = [
        ("llama", Family::Llama),
        ("mistral", Family::Mistral),
        ("qwen2", Family::Qwen2),
        ("qwen3", Family::Qwen3),
        ("qwen3_moe", Family::Qwen3Moe),
        // As GGUF calls it, where Mixtral is `llama`.
        ("qwen3moe", Family::Qwen3Moe),
        ("mixtral", Family::Mixtral),
        ("phi3", Family::Phi3),
        ("granite", Family::Granite),
        ("smollm3", Family::SmolLm3),
        // Of OLMo 3 too, in GGUF.
        ("olmo2", Family::Olmo2),
        ("olmo3", Family::Olmo3),
        ("ministral3", Family::Ministral3),
        // As GGUF calls it.
        ("mistral3", Family::Ministral3),
        ("gpt_oss", Family::GptOss),
        ("gpt-oss", Family::GptOss),
        ("glm4_moe", Family::Glm4Moe),
        ("glm4moe", Family::Glm4Moe),
        ("granitemoe", Family::GraniteMoe),
        ("gemma2", Family::Gemma2),
        ("gemma3_text", Family::Gemma3),
        // As GGUF calls it.
        ("gemma3", Family::Gemma3),
        // An encoder of the same layers.
        ("gemma-embedding", Family::Gemma3),
        ("gemma4_text", Family::Gemma4),
        // Of 12B.
        ("gemma4_unified_text", Family::Gemma4),
        // As GGUF calls both.
        ("gemma4", Family::Gemma4),
        ("qwen3_next", Family::Qwen3Next),
        // As GGUF calls them.
        ("qwen3next", Family::Qwen3Next),
        ("qwen35", Family::Qwen35),
        ("qwen35moe", Family::Qwen35Moe),
        // The language model of one that takes images.
        ("qwen3_5_text", Family::Qwen35),
        ("qwen3_5_moe_text", Family::Qwen35Moe),
        ("bert", Family::Bert),
        ("roberta", Family::Roberta),
        ("xlm-roberta", Family::Roberta),
        ("modernbert", Family::ModernBert),
        // As GGUF calls it.
        ("modern-bert", Family::ModernBert),
    ];

    /// Whether it is one of Gemma, which have an embedding that is multiplied by the root of its
    /// width, norms around the branches and a gate of GELU.
    fn is_gemma(self) -> bool {
        matches!(self, Family::Gemma2 | Family::Gemma3 | Family::Gemma4)
    }

    /// Whether it has layers of Gated DeltaNet, attention with a gate at its output, and a quarter
    /// of each head that is rotated.
    fn has_delta(self) -> bool {
        matches!(self, Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe)
    }

    /// Whether its models are encoders, each of a [`Config::encoder`].
    fn is_encoder(self) -> bool {
        matches!(self, Family::Bert | Family::Roberta | Family::ModernBert)
    }

    /// The family called `name`.
    ///
    /// # Errors
    /// [`ConfigError::UnknownFamily`].
    pub fn from_name(name: &str) -> Result<Self, ConfigError> {
        let known = Self::ALL.iter().find(|(known, _)| *known == name);
        known.map(|(_, family)| *family).ok_or_else(|| {
            // A family that has several names by the first of them.
            let is_first = |index: &usize| {
                let (_, family) = Self::ALL[*index];
                Self::ALL[..*index].iter().all(|(_, before)| *before != family)
            };
            let known: Vec<&str> =
                (0..Self::ALL.len()).filter(is_first).map(|index| Self::ALL[index].0).collect();
            ConfigError::UnknownFamily { found: shown(name), known: known.join(", ") }
        })
    }
}

/// What a decoder needs to know of a model: checked, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The family.
    pub family: Family,
    /// Tokens of the vocabulary: rows of the embedding.
    pub vocab_size: usize,
    /// Elements of the residual stream.
    pub hidden_size: usize,
    /// Elements between gate/up and down of layers without experts.
    pub intermediate_size: usize,
    /// The experts of the layers that have some.
    pub experts: Option<Experts>,
    /// What the gate goes through.
    pub activation: Activation,
    /// Query heads; a multiple of `num_kv_heads`.
    pub num_heads: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Elements of a head: even, at most [`Config::MAX_HEAD_DIM`].
    pub head_dim: usize,
    /// The largest context.
    pub max_position_embeddings: usize,
    /// Added to the mean of squares in every norm.
    pub rms_norm_eps: f32,
    /// Whether the embedding is the output projection too.
    pub tie_word_embeddings: bool,
    /// Whether Q, K and V have a bias.
    pub qkv_bias: bool,
    /// Whether attention's output projection has a bias.
    pub attention_out_bias: bool,
    /// Whether gate, up and down of layers without experts have a bias.
    pub mlp_bias: bool,
    /// How Q and K are normalised before RoPE, if they are.
    pub qk_norm: Option<QkNorm>,
    /// Whether each head of V is divided by the root of its mean square.
    pub norms_values: bool,
    /// Where a branch of a layer has its norm.
    pub norms: NormPlacement,
    /// Whether the residual stream is multiplied by a number of the layer after it.
    pub scales_layers: bool,
    /// What each token has as an input of every layer.
    pub per_layer_inputs: Option<PerLayerInputs>,
    /// Multiplies the rows of the embedding.
    pub embedding_multiplier: f64,
    /// Whether that factor is rounded to bf16 where the embedding is in bf16 or in blocks: as the
    /// models were trained.
    pub rounds_embedding_multiplier: bool,
    /// Multiplies what attention and MLP add to the residual stream; 1 unless the norms are before
    /// them.
    pub residual_multiplier: f64,
    /// Whether each query head has a sink: a score without a key.
    pub has_sinks: bool,
    /// Multiplies the scores of attention.
    pub softmax_scale: f64,
    /// Bends the scaled scores `s` of attention to `cap * tanh(s / cap)`.
    pub attention_softcap: Option<f64>,
    /// Divides the logits.
    pub logits_scaling: f64,
    /// Bends the logits `x` to `cap * tanh(x / cap)`.
    pub logits_softcap: Option<f64>,
    /// By what Q grows with its position, if it does.
    pub query_scaling: Option<QueryScaling>,
    /// Whether what attention makes of each query head is gated, by as many rows of the projection
    /// of Q.
    pub attention_gate: bool,
    /// The layers that have a recurrent state in the place of keys and values.
    pub delta: Option<DeltaNet>,
    /// Whether a token sees no position after its own; else a text is read as a whole.
    pub is_causal: bool,
    /// What an encoder has that decoders do not.
    pub encoder: Option<Encoder>,
    /// What each layer has of its own.
    pub layers: Vec<LayerConfig>,
    /// The rotary embeddings, which layers refer to.
    pub ropes: Vec<Rope>,
}

impl Config {
    /// The largest head that attention is built for.
    pub const MAX_HEAD_DIM: usize = 512;

    /// The largest context: positions beyond are no longer exact in f32.
    pub const MAX_POSITIONS: usize = 1 << 24;

    /// Whether activations are known to be beyond f16.
    pub fn overflows_f16(&self) -> bool {
        self.family == Family::Gemma3
    }

    /// Whether a layer has an MLP that is none of experts.
    pub fn has_dense_layers(&self) -> bool {
        let beside = self.experts.is_some_and(|experts| experts.beside_mlp);
        self.layers.iter().any(|layer| !layer.has_experts || beside)
    }

    /// KV heads of `layer`, and the elements of each of its heads.
    pub fn heads(&self, layer: usize) -> KvHeads {
        let Config { num_kv_heads, head_dim, .. } = *self;
        self.layers[layer].heads.unwrap_or(KvHeads { num_kv_heads, head_dim })
    }

    /// Elements between gate/up and down of the MLP of `layer`, if it has one that is none of
    /// experts.
    pub fn intermediate_size_of(&self, layer: usize) -> usize {
        self.layers[layer].intermediate_size.unwrap_or(self.intermediate_size)
    }

    /// The layers whose keys and values are in the cache, in its order.
    pub fn cached_layers(&self) -> impl Iterator<Item = usize> {
        let is_cached =
            |layer: &LayerConfig| !layer.is_delta && !matches!(layer.kv, KvSource::Layer(_));
        (0..self.num_layers()).filter(move |&layer| is_cached(&self.layers[layer]))
    }

    /// The largest window of a cached layer; `None` if no layer has one.
    pub fn window(&self) -> Option<usize> {
        let windows = self.cached_layers().filter_map(|layer| self.layers[layer].window);
        windows.max().filter(|_| self.is_causal)
    }

    /// Layers of Gated DeltaNet among the first `num_layers`.
    pub fn num_delta_layers(&self, num_layers: usize) -> usize {
        self.layers[..num_layers].iter().filter(|layer| layer.is_delta).count()
    }

    /// Layers.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Checks what single fields cannot show.
    fn checked(self) -> Result<Self, ConfigError> {
        let Config { num_heads, num_kv_heads, head_dim, .. } = self;
        must(
            num_heads.is_multiple_of(num_kv_heads),
            "num_key_value_heads",
            num_kv_heads.to_string(),
            &format!("it must divide the {num_heads} query heads"),
        )?;
        self.experts.as_ref().map_or(Ok(()), Experts::check)?;
        must(
            head_dim.is_multiple_of(2) && (2..=Self::MAX_HEAD_DIM).contains(&head_dim),
            "head_dim",
            head_dim.to_string(),
            "it must be even, from 2 to 512",
        )?;
        for (index, layer) in self.layers.iter().enumerate() {
            let KvHeads { num_kv_heads, head_dim } = self.heads(index);
            must(
                num_heads.is_multiple_of(num_kv_heads),
                "KV heads of a layer",
                num_kv_heads.to_string(),
                &format!("they must divide the {num_heads} query heads"),
            )?;
            must(
                head_dim.is_multiple_of(2),
                "head size of a layer",
                head_dim.to_string(),
                "it must be even",
            )?;
            layer.rope.map_or(Ok(()), |rope| self.check_rope(&self.ropes[rope], head_dim))?;
        }
        Ok(self)
    }

    fn check_rope(&self, rope: &Rope, head_dim: usize) -> Result<(), ConfigError> {
        let rotary_dim = rope.rotary_dim;
        must(
            rotary_dim.is_multiple_of(2) && (2..=head_dim).contains(&rotary_dim),
            "rotary dimensions",
            rotary_dim.to_string(),
            &format!("they must be even, from 2 to head_dim ({head_dim})"),
        )?;
        must(
            rotary_dim == head_dim
                || matches!(self.family, Family::Phi3 | Family::Glm4Moe)
                || self.family.has_delta(),
            "rotary dimensions",
            rotary_dim.to_string(),
            &format!("this family rotates whole heads ({head_dim})"),
        )?;
        let factors: &[(&str, &[f32])] = match &rope.scaling {
            RopeScaling::LongRope { short_factor, long_factor, .. } => {
                &[("short_factor", short_factor), ("long_factor", long_factor)]
            }
            RopeScaling::Factors(factors) => &[("rope_freqs.weight", factors)],
            _ => &[],
        };
        for (field, factors) in factors {
            must(
                factors.len() == rotary_dim / 2,
                field,
                format!("{} numbers", factors.len()),
                &format!("{} are needed, half of the rotary dimensions", rotary_dim / 2),
            )?;
            if let Some(bad) = factors.iter().find(|f| !f.is_normal() || **f <= 0.0) {
                must(false, field, bad.to_string(), "every factor must be positive")?;
            }
        }
        Ok(())
    }
}

fn must(right: bool, field: &str, value: String, expected: &str) -> Result<(), ConfigError> {
    if right { Ok(()) } else { Err(ConfigError::invalid(field, value, expected)) }
}

/// What can be wrong with a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A field without a default is not there.
    #[error("the configuration has no `{field}`")]
    Missing {
        /// Name of the field.
        field: String,
    },
    /// A field has a value that no model can have, or that is not supported.
    #[error("`{field}` is {value}: {expected}")]
    Invalid {
        /// Name of the field.
        field: String,
        /// Value of the field.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// A family that has no decoder here.
    #[error("unknown model family `{found}`; known are {known}")]
    UnknownFamily {
        /// What the file says.
        found: String,
        /// The known names.
        known: String,
    },
    /// A tensor that belongs to the configuration could not be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

impl ConfigError {
    pub(super) fn invalid(
        field: impl Into<String>,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        let (field, value) = (field.into(), shown(&value.to_string()));
        ConfigError::Invalid { field, value, expected: expected.into() }
    }
}

/// A value out of a file, for an error: cut where it would fill the terminal, control characters
/// escaped.
fn shown(value: &str) -> String {
    const MAX_CHARS: usize = 60;
    let cut = if value.chars().nth(MAX_CHARS).is_some() { ".." } else { "" };
    let escaped = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.into() };
    value.chars().take(MAX_CHARS).map(escaped).chain([cut.into()]).collect()
}

/// Bases of rotary frequencies: above 1, so that their logarithm is positive.
const THETA: RangeInclusive<f64> = 1.000_001..=f32::MAX as f64;

/// Factors of activations: what f32 and 16 bits have room for.
const MULTIPLIER: RangeInclusive<f64> = 1e-6..=1e6;

/// The range of each count that a file may give.
mod range {
    use std::ops::RangeInclusive;

    pub const VOCAB_SIZE: RangeInclusive<usize> = 1..=1 << 24;
    pub const HIDDEN_SIZE: RangeInclusive<usize> = 1..=1 << 17;
    pub const INTERMEDIATE_SIZE: RangeInclusive<usize> = 1..=1 << 20;
    pub const NUM_LAYERS: RangeInclusive<usize> = 1..=1 << 10;
    pub const NUM_HEADS: RangeInclusive<usize> = 1..=1 << 12;
    pub const HEAD_DIM: RangeInclusive<usize> = 2..=super::Config::MAX_HEAD_DIM;
    pub const NUM_EXPERTS: RangeInclusive<usize> = 1..=1 << 12;
    pub const POSITIONS: RangeInclusive<usize> = 1..=super::Config::MAX_POSITIONS;
}
