//! The configuration from GGUF metadata, and from which tensors the file has.
//!
//! Keys as llama.cpp's conversion writes them:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use super::fields::{Fields, POSITIVE};
use super::{Config, ConfigError, Family, range};
use crate::model::names::Names;
use crate::model::rope::{Rope, RopeScaling, longrope_attention_factor, yarn_attention_factor};
use crate::weights::{Checkpoint, WeightsError, gguf};
use gpu_types::Activation;

/// What a configuration has to know about the tensors of its file.
pub(crate) trait Tensors {
    /// The shape of tensor `name`, if it is there.
    fn shape(&self, name: &str) -> Option<&[usize]>;

    /// The elements of tensor `name`.
    fn read_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError>;
}

impl Tensors for Checkpoint {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(self.tensor(name)?.shape)
    }

    fn read_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        Checkpoint::read_f32(self, name)
    }
}

impl Config {
    /// The configuration in the metadata of a GGUF file that holds `tensors`.
    ///
    /// # Errors
    /// [`ConfigError`] for a family without a decoder, a key that is missing, or one that has no
    /// right value.
    pub(crate) fn from_gguf(
        metadata: &gguf::Metadata,
        tensors: &impl Tensors,
    ) -> Result<Self, ConfigError> {
        let architecture = Fields::gguf(metadata, "general").required_text("architecture")?;
        let family = Family::from_name(&architecture)?;
        let names = Names::gguf(family);
        let fields = Fields::gguf(metadata, &architecture);
        if fields.count("expert_count", 0..=usize::MAX)?.is_some_and(|experts| experts > 0) {
            return Err(fields.invalid("expert_count", "mixtures of experts are not supported"));
        }

        let num_heads = fields.required_count("attention.head_count", range::NUM_HEADS)?;
        let hidden_size = fields.required_count("embedding_length", range::HIDDEN_SIZE)?;
        let head_dim = match fields.count("attention.key_length", range::HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None => fields.divide(hidden_size, "attention.head_count", num_heads)?,
        };
        let value_length = fields.count("attention.value_length", range::HEAD_DIM)?;
        if value_length.is_some_and(|length| length != head_dim) {
            let expected = format!("it must be the length of a key ({head_dim})");
            return Err(fields.invalid("attention.value_length", expected));
        }
        let max_position_embeddings = fields.required_count("context_length", range::POSITIONS)?;
        let num_layers = fields.required_count("block_count", range::NUM_LAYERS)?;
        let window = match family {
            Family::Qwen2 | Family::Qwen3 => None,
            _ => fields.count("attention.sliding_window", 0..=*range::POSITIONS.end())?,
        };
        let has_bias =
            |stem: &str| tensors.shape(&format!("{}.bias", names.in_layer(0, stem))).is_some();
        Config {
            family,
            vocab_size: vocab_size(names, tensors)?,
            hidden_size,
            intermediate_size: fields
                .required_count("feed_forward_length", range::INTERMEDIATE_SIZE)?,
            activation: Activation::Silu,
            num_heads,
            num_kv_heads: fields
                .count("attention.head_count_kv", range::NUM_HEADS)?
                .unwrap_or(num_heads),
            head_dim,
            max_position_embeddings,
            rms_norm_eps: fields.required_number("attention.layer_norm_rms_epsilon", POSITIVE)?
                as f32,
            tie_word_embeddings: tensors.shape(&format!("{}.weight", names.lm_head)).is_none(),
            qkv_bias: family == Family::Qwen2 || has_bias(names.qkv[0]),
            attention_out_bias: has_bias(names.attention_out),
            mlp_bias: has_bias(names.down),
            qk_norm: family == Family::Qwen3,
            windows: vec![window.filter(|window| *window > 0); num_layers],
            rope: rope(&fields, tensors, head_dim, max_position_embeddings)?,
        }
        .checked()
    }
}

/// Rows of the embedding: the metadata names the vocabulary's size only sometimes.
fn vocab_size(names: &Names, tensors: &impl Tensors) -> Result<usize, ConfigError> {
    let name = format!("{}.weight", names.embedding);
    match tensors.shape(&name) {
        Some(&[rows, _]) if range::VOCAB_SIZE.contains(&rows) => Ok(rows),
        Some(shape) => {
            let expected = "it must be of shape [vocab_size, hidden_size]";
            Err(ConfigError::invalid(name, format!("of shape {shape:?}"), expected))
        }
        None => Err(ConfigError::Missing { field: name }),
    }
}

fn rope(
    fields: &Fields,
    tensors: &impl Tensors,
    head_dim: usize,
    max_position_embeddings: usize,
) -> Result<Rope, ConfigError> {
    let rotary_dim = fields.count("rope.dimension_count", 1..=head_dim)?.unwrap_or(head_dim);
    let factors = |name: &str| match tensors.shape(name) {
        None => Ok(None),
        Some(&[len]) if len == rotary_dim / 2 => Ok(Some(tensors.read_f32(name)?)),
        Some(shape) => {
            let expected = format!("it must be of shape [{}]", rotary_dim / 2);
            Err(ConfigError::invalid(name, format!("of shape {shape:?}"), expected))
        }
    };
    let original = fields
        .count("rope.scaling.original_context_length", 2..=*range::POSITIONS.end())?
        .unwrap_or(max_position_embeddings);
    let scaling = if let Some(factors) = factors("rope_freqs.weight")? {
        RopeScaling::Factors(factors)
    } else if let Some(long_factor) = factors("rope_factors_long.weight")? {
        let extension = max_position_embeddings as f64 / original as f64;
        RopeScaling::LongRope {
            short_factor: factors("rope_factors_short.weight")?
                .ok_or(ConfigError::Missing { field: "rope_factors_short.weight".into() })?,
            long_factor,
            attention_factor: fields
                .number("rope.scaling.attn_factor", POSITIVE)?
                .unwrap_or_else(|| longrope_attention_factor(extension, original)),
            original_max_position_embeddings: original,
        }
    } else {
        scaling(fields, original)?
    };
    let theta = fields.number("rope.freq_base", super::THETA)?.unwrap_or(10_000.0);
    Ok(Rope { theta, rotary_dim, scaling })
}

/// The scaling that metadata alone describe.
fn scaling(fields: &Fields, original: usize) -> Result<RopeScaling, ConfigError> {
    const TYPE: &str = "rope.scaling.type";
    let factor = match fields.number("rope.scaling.factor", 0.0..=*POSITIVE.end())? {
        Some(factor) => Some(factor),
        None => fields.number("rope.scale_linear", 0.0..=*POSITIVE.end())?,
    };
    // Zero stands for no scaling, and a factor without a type is linear, as in llama.cpp.
    let Some(factor) = factor.filter(|factor| *factor > 0.0) else { return Ok(RopeScaling::None) };
    match fields.text(TYPE)?.as_deref().unwrap_or("linear") {
        "none" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "yarn" => {
            let attn_factor = fields.number("rope.scaling.attn_factor", POSITIVE)?.unwrap_or(1.0);
            let beta = |field| fields.number(field, POSITIVE);
            Ok(RopeScaling::Yarn {
                factor,
                attention_factor: attn_factor * yarn_attention_factor(factor, 0.0, 0.0),
                beta_fast: beta("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: beta("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                truncate: true,
                original_max_position_embeddings: original,
            })
        }
        "longrope" => Err(ConfigError::Missing { field: "rope_factors_long.weight".into() }),
        _ => Err(fields.invalid(TYPE, "known are none, linear, yarn and longrope")),
    }
}
