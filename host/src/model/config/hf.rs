//! The configuration from config.json, with the defaults of transformers' config classes.

use super::fields::{Fields, POSITIVE};
use super::{Config, ConfigError, Family, range, rope_hf};
use gpu_types::Activation;
use serde_json::Value;

/// What transformers' config class of a family takes for a field that config.json leaves out.
struct Defaults {
    num_kv_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: f64,
    sliding_window: Option<usize>,
}

impl Defaults {
    const fn of(family: Family) -> Self {
        const BASE: Defaults = Defaults {
            num_kv_heads: None,
            head_dim: None,
            rms_norm_eps: 1e-6,
            sliding_window: None,
        };
        match family {
            Family::Llama => BASE,
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
            Family::Phi3 => Defaults { rms_norm_eps: 1e-5, ..BASE },
        }
    }
}

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
        let fields = Fields::json(object);
        let family = Family::from_name(&fields.required_text("model_type")?)?;
        let defaults = Defaults::of(family);

        let num_heads = fields.required_count("num_attention_heads", range::NUM_HEADS)?;
        let hidden_size = fields.required_count("hidden_size", range::HIDDEN_SIZE)?;
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
        let activation = match fields.text("hidden_act")? {
            Some(name) => Activation::from_config(&name).ok_or_else(|| {
                let known = Activation::ALL.map(|known| known.config_names().join(", ")).join(", ");
                fields.invalid("hidden_act", format!("known are {known}"))
            })?,
            None => Activation::Silu,
        };
        let flag = |field| fields.flag(field, false);
        let attention_bias =
            matches!(family, Family::Llama | Family::Qwen3) && flag("attention_bias")?;
        let max_position_embeddings =
            fields.required_count("max_position_embeddings", range::POSITIONS)?;
        Config {
            family,
            vocab_size: fields.required_count("vocab_size", range::VOCAB_SIZE)?,
            hidden_size,
            intermediate_size: fields
                .required_count("intermediate_size", range::INTERMEDIATE_SIZE)?,
            activation,
            num_heads,
            num_kv_heads,
            head_dim,
            max_position_embeddings,
            rms_norm_eps: fields.number("rms_norm_eps", POSITIVE)?.unwrap_or(defaults.rms_norm_eps)
                as f32,
            tie_word_embeddings: flag("tie_word_embeddings")?,
            qkv_bias: family == Family::Qwen2 || attention_bias,
            attention_out_bias: attention_bias,
            mlp_bias: family == Family::Llama && flag("mlp_bias")?,
            qk_norm: family == Family::Qwen3,
            windows: windows(&fields, family, defaults.sliding_window)?,
            rope: rope_hf::rope(&fields, family, head_dim, max_position_embeddings)?,
        }
        .checked()
    }
}

/// The sliding window of each layer.
fn windows(
    fields: &Fields,
    family: Family,
    default: Option<usize>,
) -> Result<Vec<Option<usize>>, ConfigError> {
    let num_layers = fields.required_count("num_hidden_layers", range::NUM_LAYERS)?;
    let in_use = match family {
        Family::Llama => false,
        Family::Mistral | Family::Phi3 => true,
        Family::Qwen2 | Family::Qwen3 => fields.flag("use_sliding_window", false)?,
    };
    // Left out, it is the class's default; null stands for no window.
    let window = match fields.has("sliding_window") {
        _ if !in_use => None,
        true => fields.count("sliding_window", range::POSITIONS)?,
        false => default,
    };
    // With this field transformers takes Mistral for Ministral, whose layers differ; Llama and
    // Phi-3 do not read it.
    let layer_types = match family {
        Family::Llama | Family::Phi3 => None,
        Family::Mistral | Family::Qwen2 | Family::Qwen3 => fields.texts("layer_types")?,
    };
    let Some(layer_types) = layer_types else {
        let first = match family {
            Family::Qwen2 | Family::Qwen3 => {
                fields.count("max_window_layers", 0..=usize::MAX)?.unwrap_or(28)
            }
            _ => 0,
        };
        return Ok((0..num_layers).map(|layer| window.filter(|_| layer >= first)).collect());
    };
    if layer_types.len() != num_layers {
        return Err(fields.invalid("layer_types", format!("{num_layers} layers are needed")));
    }
    let of_type = |layer_type: &String| match (layer_type.as_str(), window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        ("sliding_attention", None) => {
            Err(fields.invalid("layer_types", "a sliding layer needs `sliding_window`, in use"))
        }
        _ => Err(fields.invalid("layer_types", "full_attention and sliding_attention are known")),
    };
    layer_types.iter().map(of_type).collect()
}
