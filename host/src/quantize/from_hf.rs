//! GGUF's description of a Hugging Face model: names, order of rows, metadata, RoPE factors.
//!
//! Source: llama.cpp's convert_hf_to_gguf.py.

use std::path::Path;

use super::QuantizeError;
use super::source::{Data, Source, Tensor};
use crate::loaded::Model;
use crate::model::{Config, Family, Names, Rope, RopeScaling, yarn_attention_factor};
use crate::text::gguf_tokenizer;
use crate::weights::gguf::{Metadata, Value};
use gpu_types::Activation;

/// The model in `dir` as GGUF describes it.
pub(super) fn source<'a>(model: &'a Model, dir: &Path) -> Result<Source<'a>, QuantizeError> {
    let config = model.config();
    let mut metadata = Metadata(keys(config)?.into_iter().collect());
    let mut put = |key: &str, value| metadata.0.insert(key.to_owned(), value);
    if let Some(name) = dir.canonicalize().ok().as_deref().and_then(Path::file_name) {
        put("general.name", Value::String(name.to_string_lossy().into_owned()));
    }
    for (key, value) in sampling(model) {
        put(&format!("general.sampling.{key}"), value);
    }
    let tokenizer = gguf_tokenizer(dir, architecture(config.family), config.vocab_size)?;
    metadata.0.extend(tokenizer);
    let mut tensors = tensors(model);
    tensors.extend(rope_factors(&config.rope));
    Ok(Source { metadata, tensors })
}

fn architecture(family: Family) -> &'static str {
    match family {
        Family::Llama | Family::Mistral => "llama",
        Family::Qwen2 => "qwen2",
        Family::Qwen3 => "qwen3",
        Family::Phi3 => "phi3",
    }
}

/// The metadata that follows from the configuration.
pub(super) fn keys(config: &Config) -> Result<Vec<(String, Value)>, QuantizeError> {
    if config.activation != Activation::Silu {
        return Err(QuantizeError::NoKey("an activation other than silu"));
    }
    let architecture = architecture(config.family);
    let mut keys = vec![("general.architecture".into(), Value::String(architecture.into()))];
    let mut put = |key: &str, value| keys.push((format!("{architecture}.{key}"), value));
    for (key, value) in sizes(config) {
        put(key, value);
    }
    // llama.cpp wants the key of Phi-3 in any case.
    let window = window(config)?.or((config.family == Family::Phi3).then_some(0));
    if let Some(window) = window {
        put("attention.sliding_window", u32_value(window));
    }
    for (key, value) in rope(config)? {
        put(&format!("rope.{key}"), value);
    }
    Ok(keys)
}

fn u32_value(count: usize) -> Value {
    // Counts of a configuration are checked: none is beyond 2^24.
    Value::U32(count as u32)
}

fn sizes(config: &Config) -> Vec<(&'static str, Value)> {
    let counts = [
        ("vocab_size", config.vocab_size),
        ("context_length", config.max_position_embeddings),
        ("embedding_length", config.hidden_size),
        ("feed_forward_length", config.intermediate_size),
        ("block_count", config.num_layers()),
        ("attention.head_count", config.num_heads),
        ("attention.head_count_kv", config.num_kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
    ];
    let eps = ("attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps));
    counts.map(|(key, count)| (key, u32_value(count))).into_iter().chain([eps]).collect()
}

/// The sliding window, if the model has one: the same in every layer.
fn window(config: &Config) -> Result<Option<usize>, QuantizeError> {
    let first = config.windows[0];
    if config.windows.iter().any(|window| *window != first) {
        return Err(QuantizeError::NoKey("sliding windows that differ between its layers"));
    }
    match config.family {
        Family::Qwen2 | Family::Qwen3 if first.is_some() => {
            Err(QuantizeError::NoKey("a sliding window in a family that has none in GGUF"))
        }
        _ => Ok(first),
    }
}

fn rope(config: &Config) -> Result<Vec<(&'static str, Value)>, QuantizeError> {
    let Rope { theta, rotary_dim, scaling } = &config.rope;
    let mut pairs =
        vec![("dimension_count", u32_value(*rotary_dim)), ("freq_base", Value::F32(*theta as f32))];
    let text = |text: &str| Value::String(text.to_owned());
    let number = |number: f64| Value::F32(number as f32);
    match scaling {
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => {}
        RopeScaling::Linear { factor } => {
            pairs.extend([("scaling.type", text("linear")), ("scaling.factor", number(*factor))])
        }
        RopeScaling::Yarn { truncate: false, .. } => {
            return Err(QuantizeError::NoKey("YaRN without `truncate`"));
        }
        RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast,
            beta_slow,
            original_max_position_embeddings,
            ..
        } => pairs.extend([
            ("scaling.type", text("yarn")),
            ("scaling.factor", number(*factor)),
            ("scaling.original_context_length", u32_value(*original_max_position_embeddings)),
            // A factor on top of YaRN's own.
            (
                "scaling.attn_factor",
                number(attention_factor / yarn_attention_factor(*factor, 0.0, 0.0)),
            ),
            ("scaling.yarn_beta_fast", number(*beta_fast)),
            ("scaling.yarn_beta_slow", number(*beta_slow)),
        ]),
        RopeScaling::LongRope { attention_factor, original_max_position_embeddings, .. } => pairs
            .extend([
                ("scaling.attn_factor", number(*attention_factor)),
                ("scaling.original_context_length", u32_value(*original_max_position_embeddings)),
            ]),
    }
    Ok(pairs)
}

/// The scalings that are tensors: what divides each frequency.
fn rope_factors(rope: &Rope) -> Vec<Tensor<'static>> {
    let tensor = |name: &str, values: Vec<f32>| Tensor {
        name: format!("{name}.weight"),
        shape: vec![values.len()],
        data: Data::Values(values),
    };
    match &rope.scaling {
        RopeScaling::Factors(factors) => vec![tensor("rope_freqs", factors.clone())],
        RopeScaling::Llama3 { .. } => {
            let plain = Rope { scaling: RopeScaling::None, ..rope.clone() }.inv_freq(1);
            let scaled = rope.inv_freq(1);
            let factors = plain.iter().zip(scaled).map(|(plain, scaled)| plain / scaled);
            vec![tensor("rope_freqs", factors.collect())]
        }
        RopeScaling::LongRope { short_factor, long_factor, .. } => vec![
            tensor("rope_factors_long", long_factor.clone()),
            tensor("rope_factors_short", short_factor.clone()),
        ],
        _ => Vec::new(),
    }
}

/// The sampling values that the model comes with.
fn sampling(model: &Model) -> Vec<(&'static str, Value)> {
    let values = model.generation_config();
    let count = values.top_k.and_then(|count| i32::try_from(count).ok()).map(Value::I32);
    [
        ("temp", values.temperature.map(Value::F32)),
        ("top_k", count),
        ("top_p", values.top_p.map(Value::F32)),
        ("min_p", values.min_p.map(Value::F32)),
        ("penalty_repeat", values.repetition_penalty.map(Value::F32)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect()
}

/// The tensors that the model needs, under GGUF's names: GPTQ's files hold zeros for biases that it has not.
fn tensors(model: &Model) -> Vec<Tensor<'_>> {
    let config = model.config();
    let to = Names::gguf(config.family);
    let tensors = model.decoder().gguf_names().filter_map(|(from, name)| {
        let entry = model.checkpoint().tensor(&from)?;
        let data = match name.split('.').nth(2) {
            Some("attn_q") if to.interleaved_rope => Data::Heads(entry, config.num_heads),
            Some("attn_k") if to.interleaved_rope => Data::Heads(entry, config.num_kv_heads),
            _ => Data::Stored(entry),
        };
        Some(Tensor { name, shape: entry.shape.to_vec(), data })
    });
    tensors.collect()
}
