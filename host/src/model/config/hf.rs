//! The configuration from config.json, with the defaults of transformers' config classes.

use super::fields::{Fields, POSITIVE};
use super::{
    Config, ConfigError, Family, MULTIPLIER, NormPlacement, QkNorm, delta, gemma4, hf_experts,
    hf_layers, range, rope_hf,
};
use crate::plan::KvHeads;
use gpu_types::Activation;
use serde_json::Value;
use std::ops::RangeInclusive;

/// What transformers' config class of a family takes for a field that config.json leaves out.
struct Defaults {
    num_kv_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: f64,
    sliding_window: Option<usize>,
    rope_theta: f64,
    tie_word_embeddings: bool,
}

impl Defaults {
    const fn of(family: Family) -> Self {
        const BASE: Defaults = Defaults {
            num_kv_heads: None,
            head_dim: None,
            rms_norm_eps: 1e-6,
            sliding_window: None,
            rope_theta: 10_000.0,
            tie_word_embeddings: false,
        };
        match family {
            Family::Llama | Family::Granite | Family::GraniteMoe => BASE,
            // What they leave out is in `encoder.rs`.
            Family::Bert | Family::Roberta | Family::ModernBert => BASE,
            Family::GptOss => Defaults {
                num_kv_heads: Some(8),
                head_dim: Some(64),
                rms_norm_eps: 1e-5,
                sliding_window: Some(128),
                rope_theta: 150_000.0,
                ..BASE
            },
            Family::Glm4Moe => Defaults { num_kv_heads: Some(8), rms_norm_eps: 1e-5, ..BASE },
            Family::Mistral => {
                Defaults { num_kv_heads: Some(8), sliding_window: Some(4096), ..BASE }
            }
            Family::Qwen2 => {
                Defaults { num_kv_heads: Some(32), sliding_window: Some(4096), ..BASE }
            }
            Family::Qwen3 => Defaults {
                num_kv_heads: Some(32),
                head_dim: Some(128),
                sliding_window: Some(4096),
                ..BASE
            },
            Family::Qwen3Moe => {
                Defaults { num_kv_heads: Some(4), sliding_window: Some(4096), ..BASE }
            }
            Family::Mixtral => Defaults {
                num_kv_heads: Some(8),
                rms_norm_eps: 1e-5,
                rope_theta: 1_000_000.0,
                ..BASE
            },
            Family::Phi3 | Family::Olmo2 => Defaults { rms_norm_eps: 1e-5, ..BASE },
            Family::Olmo3 => Defaults {
                rms_norm_eps: 1e-5,
                sliding_window: Some(4096),
                rope_theta: 500_000.0,
                ..BASE
            },
            Family::SmolLm3 => Defaults {
                num_kv_heads: Some(4),
                rope_theta: 2_000_000.0,
                tie_word_embeddings: true,
                ..BASE
            },
            Family::Gemma2 => Defaults {
                num_kv_heads: Some(4),
                head_dim: Some(256),
                sliding_window: Some(4096),
                tie_word_embeddings: true,
                ..BASE
            },
            Family::Gemma3 => Defaults {
                num_kv_heads: Some(4),
                head_dim: Some(256),
                sliding_window: Some(4096),
                rope_theta: 1_000_000.0,
                tie_word_embeddings: true,
                ..BASE
            },
            Family::Gemma4 => Defaults {
                num_kv_heads: Some(4),
                head_dim: Some(256),
                sliding_window: Some(512),
                rope_theta: 1_000_000.0,
                tie_word_embeddings: true,
                ..BASE
            },
            Family::Qwen3Next | Family::Qwen35Moe => {
                Defaults { num_kv_heads: Some(2), head_dim: Some(256), ..BASE }
            }
            Family::Qwen35 => Defaults { num_kv_heads: Some(4), head_dim: Some(256), ..BASE },
            Family::Ministral3 => {
                Defaults { num_kv_heads: Some(8), head_dim: Some(128), rms_norm_eps: 1e-5, ..BASE }
            }
        }
    }
}

/// Families whose attention, or MLP, has a bias if config.json says so.
const ATTENTION_BIAS: [Family; 16] = [
    Family::Llama,
    Family::Qwen3,
    Family::Qwen3Moe,
    Family::Granite,
    Family::SmolLm3,
    Family::Olmo2,
    Family::Olmo3,
    Family::GptOss,
    Family::Glm4Moe,
    Family::GraniteMoe,
    Family::Gemma2,
    Family::Gemma3,
    Family::Gemma4,
    Family::Qwen3Next,
    Family::Qwen35,
    Family::Qwen35Moe,
];
const MLP_BIAS: [Family; 3] = [Family::Llama, Family::Granite, Family::SmolLm3];

impl Config {
    /// The configuration in the text of a config.json, parsed.
    ///
    /// # Errors
    /// [`ConfigError`] for a family without a decoder, a field that is missing, or one that has no
    /// right value.
    pub fn from_hf(json: &Value) -> Result<Self, ConfigError> {
        let object = json.as_object().ok_or_else(|| {
            ConfigError::invalid("config.json", json, "it must hold an object of fields")
        })?;
        let all = Fields::json(object);
        // The language model of one that takes images too.
        let model_type = all.required_text("model_type")?;
        let nested = match model_type.as_str() {
            "mistral3" | "gemma3" | "gemma4" | "gemma4_unified" | "qwen3_5" | "qwen3_5_moe" => {
                all.object("text_config")?
            }
            _ => None,
        };
        let fields = nested.unwrap_or(all);
        let family = match fields.text("model_type")? {
            // The class of this one's language model is always the same.
            None if model_type == "gemma3" => Family::Gemma3,
            _ => Family::from_name(&fields.required_text("model_type")?)?,
        };
        if family.is_encoder() {
            return Self::encoder_from_hf(&fields, family);
        }
        let defaults = Defaults::of(family);
        let is_causal = is_causal(&fields, family)?;

        let num_heads = size(&fields, family, "num_attention_heads", range::NUM_HEADS)?;
        let hidden_size = size(&fields, family, "hidden_size", range::HIDDEN_SIZE)?;
        let head_dim = match fields.count("head_dim", range::HEAD_DIM)?.or(defaults.head_dim) {
            Some(head_dim) => head_dim,
            None => fields.divide(hidden_size, "num_attention_heads", num_heads)?,
        };
        // Left out, it is the class's default; null stands for one KV head a query head.
        let num_kv_heads = match fields.count("num_key_value_heads", range::NUM_HEADS)? {
            Some(num_kv_heads) => num_kv_heads,
            None if fields.has("num_key_value_heads") => num_heads,
            None => defaults.num_kv_heads.unwrap_or(num_heads),
        };
        let (field, default) = match family.is_gemma() {
            true => ("hidden_activation", Activation::GeluTanh),
            false => ("hidden_act", Activation::Silu),
        };
        let activation = match fields.text(field)? {
            Some(name) => Activation::from_config(&name).ok_or_else(|| {
                let known =
                    Activation::FUSED.map(|known| known.config_names().join(", ")).join(", ");
                fields.invalid(field, format!("known are {known}"))
            })?,
            None => default,
        };
        let activation = match family {
            Family::GptOss => swiglu(&fields, activation)?,
            _ => activation,
        };
        let has_bias = |field, families: &[Family]| match families.contains(&family) {
            true => fields.flag(field, family == Family::GptOss),
            false => Ok(false),
        };
        let attention_bias = has_bias("attention_bias", &ATTENTION_BIAS)?;
        let says_qk_norm = family == Family::Glm4Moe && fields.flag("use_qk_norm", false)?;
        let max_position_embeddings =
            size(&fields, family, "max_position_embeddings", range::POSITIONS)?;
        let full_head_dim = gemma4::hf_global_head_dim(&fields, family, head_dim)?;
        let theta = defaults.rope_theta;
        let default_rope = rope_hf::Defaults { theta, head_dim, full_head_dim };
        let rope = rope_hf::rope(&fields, family, default_rope, max_position_embeddings)?;
        let (mut layers, ropes) =
            hf_layers::layers(&fields, family, defaults.sliding_window, &rope.of_type)?;
        if !is_causal {
            // Half of it to each side.
            let windows = layers.iter_mut().filter_map(|layer| layer.window.as_mut());
            windows.for_each(|window| *window = *window / 2 + 1);
        }
        let experts = hf_experts::experts(&fields, family)?;
        let has_dense_layers = layers.iter().any(|layer| !layer.has_experts)
            || experts.is_some_and(|experts| experts.beside_mlp);
        let intermediate_size = match experts {
            Some(experts) if !has_dense_layers => experts.intermediate_size,
            _ => size(&fields, family, "intermediate_size", range::INTERMEDIATE_SIZE)?,
        };
        let heads = KvHeads { num_kv_heads, head_dim };
        gemma4::hf_layers(&fields, family, &mut layers, heads, intermediate_size)?;
        let own_type = fields.text("model_type")?.unwrap_or(model_type);
        let per_layer_inputs = gemma4::hf_inputs(&fields, family, &own_type)?;
        // transformers' class has 1 for each of them.
        let multiplier = |field| match family {
            Family::Granite | Family::GraniteMoe => {
                fields.number(field, MULTIPLIER).map(|factor| factor.unwrap_or(1.0))
            }
            _ => Ok(1.0),
        };
        let default = defaults.tie_word_embeddings || nested.is_some();
        let tied = all.flag("tie_word_embeddings", default)?;
        Config {
            family,
            vocab_size: size(&fields, family, "vocab_size", range::VOCAB_SIZE)?,
            hidden_size,
            intermediate_size,
            experts,
            activation,
            num_heads,
            num_kv_heads,
            head_dim,
            max_position_embeddings,
            rms_norm_eps: fields.number("rms_norm_eps", POSITIVE)?.unwrap_or(defaults.rms_norm_eps)
                as f32,
            tie_word_embeddings: fields.flag("tie_word_embeddings", tied)?,
            qkv_bias: family == Family::Qwen2 || attention_bias,
            attention_out_bias: attention_bias && family != Family::Glm4Moe,
            mlp_bias: has_bias("mlp_bias", &MLP_BIAS)?,
            qk_norm: QkNorm::of(family, says_qk_norm),
            norms_values: family == Family::Gemma4,
            norms: NormPlacement::of(family),
            scales_layers: family == Family::Gemma4,
            per_layer_inputs,
            embedding_multiplier: match family.is_gemma() {
                true => (hidden_size as f64).sqrt(),
                false => multiplier("embedding_multiplier")?,
            },
            rounds_embedding_multiplier: family.is_gemma(),
            residual_multiplier: multiplier("residual_multiplier")?,
            has_sinks: family == Family::GptOss,
            softmax_scale: match family {
                Family::Granite | Family::GraniteMoe => multiplier("attention_multiplier")?,
                Family::Gemma2 | Family::Gemma3 => {
                    let scalar = fields.number("query_pre_attn_scalar", POSITIVE)?;
                    scalar.unwrap_or(256.0).powf(-0.5)
                }
                Family::Gemma4 => 1.0,
                _ => (head_dim as f64).powf(-0.5),
            },
            attention_softcap: match family {
                Family::Gemma2 => softcap(&fields, "attn_logit_softcapping", Some(50.0))?,
                // Gemma 3's class has the field, and does not read it.
                _ => None,
            },
            logits_scaling: multiplier("logits_scaling")?,
            logits_softcap: match family {
                Family::Gemma2 => softcap(&fields, LOGITS_SOFTCAP, Some(30.0))?,
                Family::Gemma3 | Family::Gemma4 => softcap(&fields, LOGITS_SOFTCAP, None)?,
                _ => None,
            },
            query_scaling: rope.query_scaling,
            attention_gate: family.has_delta(),
            delta: delta::from_hf(&fields, family)?,
            is_causal,
            encoder: None,
            layers,
            ropes,
        }
        .checked()
    }
}

/// What Gemma's classes call the cap of the logits.
const LOGITS_SOFTCAP: &str = "final_logit_softcapping";

/// A soft cap: left out, it is the class's default; null stands for none.
fn softcap(fields: &Fields, field: &str, default: Option<f64>) -> Result<Option<f64>, ConfigError> {
    match fields.has(field) {
        true => fields.number(field, MULTIPLIER),
        false => Ok(default),
    }
}

/// What Gemma 3's class has for sizes that config.json leaves out, as those of published models do.
const GEMMA3_SIZES: [(&str, usize); 6] = [
    ("vocab_size", 262_208),
    ("hidden_size", 2304),
    ("intermediate_size", 9216),
    ("num_hidden_layers", 26),
    ("num_attention_heads", 8),
    ("max_position_embeddings", 131_072),
];

/// A size that config.json has to say, but where published models rely on its class.
pub(super) fn size(
    fields: &Fields,
    family: Family,
    field: &str,
    range: RangeInclusive<usize>,
) -> Result<usize, ConfigError> {
    let default = GEMMA3_SIZES.iter().find(|(known, _)| *known == field);
    match (fields.count(field, range.clone())?, default) {
        (Some(count), _) => Ok(count),
        (None, Some(&(_, count))) if family == Family::Gemma3 => Ok(count),
        (None, _) => fields.required_count(field, range),
    }
}

/// Whether a token sees no later one: all of a family are decoders but EmbeddingGemma, which has
/// the name of Gemma 3.
fn is_causal(fields: &Fields, family: Family) -> Result<bool, ConfigError> {
    const FIELD: &str = "use_bidirectional_attention";
    if family == Family::Gemma4 {
        // Of images alone, or of everything.
        return match fields.text(FIELD)?.as_deref() {
            None | Some("vision") => Ok(true),
            Some(_) => Err(fields.invalid(FIELD, "decoders alone are supported: null or vision")),
        };
    }
    match (family, family.is_gemma() && fields.flag(FIELD, false)?) {
        (Family::Gemma3, sees_all) => Ok(!sees_all),
        (_, true) => Err(fields.invalid(FIELD, "decoders alone are supported: false")),
        (_, false) => Ok(true),
    }
}

/// The gate of gpt-oss, which its class computes with constants whatever config.json says.
fn swiglu(fields: &Fields, activation: Activation) -> Result<Activation, ConfigError> {
    if activation != Activation::Silu {
        return Err(fields.invalid("hidden_act", "gpt-oss gates with silu"));
    }
    for (field, constant) in
        [("swiglu_limit", Activation::SWIGLU_LIMIT), ("swiglu_alpha", Activation::SWIGLU_ALPHA)]
    {
        let number = fields.number(field, POSITIVE)?;
        if number.is_some_and(|number| number as f32 != constant) {
            return Err(fields.invalid(field, format!("gpt-oss has {constant}")));
        }
    }
    Ok(Activation::SwigluOai)
}
