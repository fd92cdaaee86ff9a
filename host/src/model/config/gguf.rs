//! The configuration from GGUF metadata, and from which tensors the file has.
//!
//! Keys as llama.cpp's conversion writes them:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use super::fields::{Fields, POSITIVE};
use super::hf_layers::{every_but_last_of, index_of};
use super::rope_hf::GEMMA3_LOCAL_THETA;
use super::{
    Config, ConfigError, Family, LayerConfig, MULTIPLIER, NormPlacement, QkNorm, QueryScaling,
    delta, gemma4, gguf_experts, range,
};
use crate::model::names::Names;
use crate::model::rope::{Rope, RopeScaling, longrope_attention_factor, yarn_attention_factor};
use crate::weights::{Checkpoint, WeightsError, gguf};
use gpu_types::Activation;
use std::ops::RangeInclusive;

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
        if family.is_encoder() {
            return Self::encoder_from_gguf(&fields, family, tensors);
        }
        let is_causal = architecture != EMBEDDING_GEMMA;
        let experts = gguf_experts::experts(&fields, family)?;

        let num_heads = fields.required_count("attention.head_count", range::NUM_HEADS)?;
        let hidden_size = fields.required_count("embedding_length", range::HIDDEN_SIZE)?;
        // That of layers without a window, where they differ.
        let full_head_dim = match fields.count("attention.key_length", range::HEAD_DIM)? {
            Some(head_dim) => head_dim,
            None => fields.divide(hidden_size, "attention.head_count", num_heads)?,
        };
        let head_dim = local_head_dim(&fields, family, full_head_dim)?;
        let value_length = fields.count("attention.value_length", range::HEAD_DIM)?;
        if value_length.is_some_and(|length| length != full_head_dim) {
            let expected = format!("it must be the length of a key ({full_head_dim})");
            return Err(fields.invalid("attention.value_length", expected));
        }
        let max_position_embeddings = fields.required_count("context_length", range::POSITIONS)?;
        let rope = rope(&fields, family, tensors, full_head_dim, max_position_embeddings)?;
        let query_scaling = query_scaling(&fields, family, max_position_embeddings)?;
        let (mut layers, ropes) = layers(&fields, family, &rope, head_dim)?;
        if !is_causal {
            // Half of it to each side.
            let windows = layers.iter_mut().filter_map(|layer| layer.window.as_mut());
            windows.for_each(|window| *window = *window / 2 + 1);
        }
        let of_first = |key, range| first_count(&fields, family, key, range, layers.len());
        let num_kv_heads = of_first("attention.head_count_kv", range::NUM_HEADS)?;
        let num_kv_heads = num_kv_heads.unwrap_or(num_heads);
        let multiplier = |key| multiplier(&fields, family, key);
        let sizes = [hidden_size, num_heads, head_dim];
        let has = |name: String| tensors.shape(&name).is_some();
        let has_bias = |stem: &str| has(format!("{}.bias", names.in_layer(0, stem)));
        let has_qk_norm = has(format!("{}.weight", names.in_layer(0, names.q_norm)));
        let has_dense_layers = layers.iter().any(|layer| !layer.has_experts)
            || experts.is_some_and(|experts| experts.beside_mlp);
        let intermediate_size = match experts {
            Some(experts) if !has_dense_layers => experts.intermediate_size,
            _ => {
                const KEY: &str = "feed_forward_length";
                of_first(KEY, range::INTERMEDIATE_SIZE)?
                    .map_or_else(|| fields.required_count(KEY, range::INTERMEDIATE_SIZE), Ok)?
            }
        };
        let mut per_layer_inputs = None;
        if family == Family::Gemma4 {
            gemma4::gguf_layers(&fields, tensors, &mut layers, intermediate_size)?;
            per_layer_inputs = gemma4::gguf_inputs(&fields, tensors)?;
        }
        Config {
            family,
            vocab_size: vocab_size(names, tensors)?,
            hidden_size,
            intermediate_size,
            experts,
            activation: match family {
                Family::GptOss => Activation::SwigluOai,
                family if family.is_gemma() => Activation::GeluTanh,
                _ => Activation::Silu,
            },
            num_heads,
            num_kv_heads,
            head_dim,
            max_position_embeddings,
            rms_norm_eps: fields.required_number("attention.layer_norm_rms_epsilon", POSITIVE)?
                as f32,
            tie_word_embeddings: tensors.shape(&format!("{}.weight", names.lm_head)).is_none(),
            qkv_bias: family == Family::Qwen2 || has_bias(names.qkv[0]),
            attention_out_bias: has_bias(names.attention_out),
            mlp_bias: experts.is_none() && has_bias(names.down),
            qk_norm: QkNorm::of(family, has_qk_norm),
            has_sinks: family == Family::GptOss,
            norms_values: family == Family::Gemma4,
            norms: NormPlacement::of(family),
            scales_layers: family == Family::Gemma4,
            per_layer_inputs,
            embedding_multiplier: match family.is_gemma() {
                true => (hidden_size as f64).sqrt(),
                false => multiplier("embedding_scale")?.unwrap_or(1.0),
            },
            rounds_embedding_multiplier: family.is_gemma(),
            residual_multiplier: multiplier("residual_scale")?.unwrap_or(1.0),
            softmax_scale: multiplier("attention.scale")?
                .unwrap_or_else(|| default_scale(family, layers.len(), sizes)),
            attention_softcap: match family {
                Family::Gemma2 => softcap(&fields, "attn_logit_softcapping", Some(50.0))?,
                _ => None,
            },
            logits_scaling: multiplier("logit_scale")?.unwrap_or(1.0),
            logits_softcap: match family {
                Family::Gemma2 => softcap(&fields, LOGITS_SOFTCAP, Some(30.0))?,
                Family::Gemma3 | Family::Gemma4 => softcap(&fields, LOGITS_SOFTCAP, None)?,
                _ => None,
            },
            query_scaling,
            attention_gate: family.has_delta(),
            delta: delta::from_gguf(&fields, family)?,
            is_causal,
            encoder: None,
            layers,
            ropes,
        }
        .checked()
    }
}

impl Config {
    /// Whether the layers with a window are those that readers of GGUF know by the architecture.
    pub(crate) fn slides_as_its_architecture(&self) -> bool {
        let slides = self.layers.iter().map(|layer| layer.window.is_some());
        default_period(self.family)
            .is_some_and(|period| slides.eq(every_but_last_of(period, self.num_layers())))
    }

    /// What readers of GGUF know by the architecture that the scores are multiplied with.
    pub(crate) fn scale_of_its_architecture(&self) -> f64 {
        let sizes = [self.hidden_size, self.num_heads, self.head_dim];
        default_scale(self.family, self.num_layers(), sizes)
    }
}

/// EmbeddingGemma's architecture: a Gemma 3 whose tokens see each other.
const EMBEDDING_GEMMA: &str = "gemma-embedding";

/// The cap of the logits.
const LOGITS_SOFTCAP: &str = "final_logit_softcapping";

/// A soft cap; 0 stands for none.
fn softcap(fields: &Fields, key: &str, default: Option<f64>) -> Result<Option<f64>, ConfigError> {
    match fields.number(key, 0.0..=*MULTIPLIER.end())? {
        Some(cap) if cap > 0.0 && cap < *MULTIPLIER.start() => {
            Err(fields.invalid(key, format!("a number from {:e} on", MULTIPLIER.start())))
        }
        Some(cap) => Ok(Some(cap).filter(|cap| *cap > 0.0)),
        None => Ok(default),
    }
}

/// What multiplies the scores where no key says it, of a hidden size, query heads and their width:
/// by the width, but of the largest Gemmas, which llama.cpp knows by their layers.
fn default_scale(
    family: Family,
    num_layers: usize,
    [hidden_size, num_heads, head_dim]: [usize; 3],
) -> f64 {
    let scalar = match (family, num_layers) {
        (Family::Gemma4, _) => 1,
        (Family::Gemma2, 46) | (Family::Gemma3, 62) => hidden_size / num_heads,
        _ => head_dim,
    };
    (scalar as f64).powf(-0.5)
}

/// The period of the layers without a window, by which llama.cpp knows them where no key says it.
fn default_period(family: Family) -> Option<usize> {
    match family {
        Family::Olmo2 | Family::Olmo3 => Some(4),
        Family::GptOss | Family::Gemma2 => Some(2),
        Family::Gemma3 | Family::Gemma4 => Some(6),
        _ => None,
    }
}

/// A factor of a family that has them; 0 stands for none.
fn multiplier(fields: &Fields, family: Family, key: &str) -> Result<Option<f64>, ConfigError> {
    // What converts other scales of Gemma is this project's own.
    let is_of_gemma = family.is_gemma() && key == "attention.scale";
    if !matches!(family, Family::Granite | Family::GraniteMoe) && !is_of_gemma {
        return Ok(None);
    }
    let factor = fields.number(key, 0.0..=*MULTIPLIER.end())?.filter(|factor| *factor > 0.0);
    match factor {
        Some(factor) if !MULTIPLIER.contains(&factor) => {
            Err(fields.invalid(key, format!("a number from {:e} on", MULTIPLIER.start())))
        }
        factor => Ok(factor),
    }
}

/// By what Q grows with its position, in steps of the training's context.
fn query_scaling(
    fields: &Fields,
    family: Family,
    max_position_embeddings: usize,
) -> Result<Option<QueryScaling>, ConfigError> {
    const BETA: &str = "attention.temperature_scale";
    if family != Family::Ministral3 {
        return Ok(None);
    }
    let beta = fields.number(BETA, 0.0..=*MULTIPLIER.end())?.filter(|beta| *beta > 0.0);
    let original_max_position_embeddings = original(fields, max_position_embeddings)?;
    Ok(beta.map(|beta| QueryScaling { beta, original_max_position_embeddings }))
}

/// Every layer, and the rotary embeddings that they use: `rope`, but for layers with a window
/// unscaled.
fn layers(
    fields: &Fields,
    family: Family,
    rope: &Rope,
    head_dim: usize,
) -> Result<(Vec<LayerConfig>, Vec<Rope>), ConfigError> {
    let num_layers = num_layers(fields, family)?;
    let window = match family {
        Family::Llama
        | Family::Mistral
        | Family::Phi3
        | Family::Olmo2
        | Family::Olmo3
        | Family::GptOss
        | Family::Gemma2
        | Family::Gemma3
        | Family::Gemma4 => {
            let window = fields.count("attention.sliding_window", 0..=*range::POSITIONS.end())?;
            // What llama.cpp takes for a file without the key.
            window.or((family == Family::Gemma2).then_some(4096))
        }
        _ => None,
    };
    let experts = gguf_experts::layers(fields, family, num_layers)?;
    let window = window.filter(|window| *window > 0);
    // The base of the frequencies of layers with a window, where they have their own.
    let local_theta = match family {
        Family::Olmo2 | Family::Olmo3 => Some(rope.theta),
        Family::Gemma3 | Family::Gemma4 => Some(GEMMA3_LOCAL_THETA),
        _ => None,
    };
    let slides = match default_period(family).filter(|_| window.is_some()) {
        Some(period) => sliding_layers(fields, period, num_layers)?,
        None => vec![true; num_layers],
    };
    let rotates = match family {
        // llama.cpp knows them by the architecture.
        Family::SmolLm3 => every_but_last_of(4, num_layers),
        Family::Granite | Family::GraniteMoe => {
            vec![fields.flag("rope.scaling.finetuned", true)?; num_layers]
        }
        _ => vec![true; num_layers],
    };
    let sliding = match local_theta {
        Some(theta) => {
            let theta = fields.number("rope.freq_base_swa", super::THETA)?.unwrap_or(theta);
            let rotary_dim = match family {
                Family::Gemma4 => fields.count("rope.dimension_count_swa", 1..=head_dim)?,
                _ => Some(rope.rotary_dim),
            };
            let rotary_dim = rotary_dim.unwrap_or(head_dim);
            Rope { theta, rotary_dim, scaling: RopeScaling::None }
        }
        None => rope.clone(),
    };
    let delta = delta::gguf_layers(fields, family, num_layers)?;
    let mut ropes = Vec::new();
    let layer = |index: usize| {
        let (window, is_delta) = (window.filter(|_| slides[index]), delta[index]);
        let rope = if window.is_some() { &sliding } else { rope };
        let rope = (rotates[index] && !is_delta).then(|| index_of(&mut ropes, rope));
        let has_experts = experts[index];
        LayerConfig { window, rope, has_experts, is_delta, ..LayerConfig::default() }
    };
    let layers = (0..num_layers).map(layer).collect();
    Ok((layers, ropes))
}

/// Elements of a head of layers with a window, which Gemma 4 has a key for; `full` are those of the
/// others.
fn local_head_dim(fields: &Fields, family: Family, full: usize) -> Result<usize, ConfigError> {
    match family {
        Family::Gemma4 => {
            let local = fields.count("attention.key_length_swa", range::HEAD_DIM)?;
            Ok(local.unwrap_or(full))
        }
        _ => Ok(full),
    }
}

/// A count, of the first layer where Gemma 4 has one of each.
fn first_count(
    fields: &Fields,
    family: Family,
    key: &str,
    range: RangeInclusive<usize>,
    num_layers: usize,
) -> Result<Option<usize>, ConfigError> {
    match family {
        Family::Gemma4 => {
            let counts = gemma4::counts_of_layers(fields, key, range, num_layers)?;
            Ok(counts.first().copied())
        }
        _ => fields.count(key, range),
    }
}

/// Layers of the decoder: after them a file may have some that predict further tokens.
fn num_layers(fields: &Fields, family: Family) -> Result<usize, ConfigError> {
    const NEXTN: &str = "nextn_predict_layers";
    let num_blocks = fields.required_count("block_count", range::NUM_LAYERS)?;
    let further = match family {
        Family::Glm4Moe | Family::Qwen3Next | Family::Qwen35 | Family::Qwen35Moe => {
            fields.count(NEXTN, 0..=usize::MAX)?.unwrap_or(0)
        }
        _ => 0,
    };
    let num_layers = num_blocks.checked_sub(further).filter(|num_layers| *num_layers > 0);
    num_layers.ok_or_else(|| fields.invalid(NEXTN, format!("there are {num_blocks} layers in all")))
}

/// Which layers have a window: a list, or the period of those that have none.
fn sliding_layers(
    fields: &Fields,
    period: usize,
    num_layers: usize,
) -> Result<Vec<bool>, ConfigError> {
    const KEY: &str = "attention.sliding_window_pattern";
    if let Ok(Some(period)) = fields.count(KEY, 1..=usize::MAX) {
        return Ok(every_but_last_of(period, num_layers));
    }
    match fields.flags(KEY)? {
        Some(flags) if flags.len() == num_layers => Ok(flags),
        Some(_) => Err(fields.invalid(KEY, format!("{num_layers} layers are needed"))),
        None => Ok(every_but_last_of(period, num_layers)),
    }
}

/// The context of the training.
fn original(fields: &Fields, max_position_embeddings: usize) -> Result<usize, ConfigError> {
    let key = "rope.scaling.original_context_length";
    let original = fields.count(key, 2..=*range::POSITIONS.end())?;
    Ok(original.unwrap_or(max_position_embeddings))
}

/// Rows of the embedding: the metadata names the vocabulary's size only sometimes.
pub(super) fn vocab_size(names: &Names, tensors: &impl Tensors) -> Result<usize, ConfigError> {
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
    family: Family,
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
    let original = original(fields, max_position_embeddings)?;
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
        scaling(fields, family, original)?
    };
    let theta = fields.number("rope.freq_base", super::THETA)?.unwrap_or(10_000.0);
    Ok(Rope { theta, rotary_dim, scaling })
}

/// The scaling that metadata alone describe.
fn scaling(fields: &Fields, family: Family, original: usize) -> Result<RopeScaling, ConfigError> {
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
            let log_multiplier = fields.number("rope.scaling.yarn_log_multiplier", 0.0..=1e3)?;
            let beta = |field| fields.number(field, POSITIVE);
            Ok(RopeScaling::Yarn {
                factor,
                attention_factor: attn_factor
                    * yarn_attention_factor(factor, 1.0, log_multiplier.unwrap_or(0.0)),
                beta_fast: beta("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: beta("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                // No key says so of gpt-oss.
                truncate: family != Family::GptOss,
                original_max_position_embeddings: original,
            })
        }
        "longrope" => Err(ConfigError::Missing { field: "rope_factors_long.weight".into() }),
        _ => Err(fields.invalid(TYPE, "known are none, linear, yarn and longrope")),
    }
}
