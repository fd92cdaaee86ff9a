//! The configuration from config.json, with the defaults of transformers' config classes.

use super::fields::{Fields, POSITIVE};
use super::{
    Config, ConfigError, Family, MULTIPLIER, NormPlacement, QkNorm, hf_experts, hf_layers, range,
    rope_hf,
};
use gpu_types::Activation;
use serde_json::Value;

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
            Family::Ministral3 => {
                Defaults { num_kv_heads: Some(8), head_dim: Some(128), rms_norm_eps: 1e-5, ..BASE }
            }
        }
    }
}

/// Families whose attention, or MLP, has a bias if config.json says so.
const ATTENTION_BIAS: [Family; 10] = [
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
        let nested = match all.required_text("model_type")?.as_str() {
            "mistral3" => all.object("text_config")?,
            _ => None,
        };
        let fields = nested.unwrap_or(all);
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
                let known =
                    Activation::FUSED.map(|known| known.config_names().join(", ")).join(", ");
                fields.invalid("hidden_act", format!("known are {known}"))
            })?,
            None => Activation::Silu,
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
            fields.required_count("max_position_embeddings", range::POSITIONS)?;
        let default_rope = rope_hf::Defaults { theta: defaults.rope_theta, head_dim };
        let rope = rope_hf::rope(&fields, family, default_rope, max_position_embeddings)?;
        let (layers, ropes) =
            hf_layers::layers(&fields, family, defaults.sliding_window, &rope.of_type)?;
        let experts = hf_experts::experts(&fields, family)?;
        let has_dense_layers = layers.iter().any(|layer| !layer.has_experts);
        let intermediate_size = match experts {
            Some(experts) if !has_dense_layers => experts.intermediate_size,
            _ => fields.required_count("intermediate_size", range::INTERMEDIATE_SIZE)?,
        };
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
            vocab_size: fields.required_count("vocab_size", range::VOCAB_SIZE)?,
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
            norms: NormPlacement::of(family),
            embedding_multiplier: multiplier("embedding_multiplier")?,
            residual_multiplier: multiplier("residual_multiplier")?,
            has_sinks: family == Family::GptOss,
            softmax_scale: match family {
                Family::Granite | Family::GraniteMoe => multiplier("attention_multiplier")?,
                _ => (head_dim as f64).powf(-0.5),
            },
            logits_scaling: multiplier("logits_scaling")?,
            query_scaling: rope.query_scaling,
            layers,
            ropes,
        }
        .checked()
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
