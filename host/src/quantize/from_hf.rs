//! GGUF's description of a Hugging Face model: names, order of rows, metadata, RoPE factors.
//!
//! Source: llama.cpp's convert_hf_to_gguf.py.

use std::path::Path;

use super::{Data, QuantizeError, Source, Tensor};
use crate::loaded::Model;
use crate::model::{Config, Family, Names, Rope, RopeScaling, yarn_attention_factor};
use crate::text::gguf_tokenizer;
use crate::weights::TensorEntry;
use crate::weights::gguf::{Metadata, Value};

/// The model in `dir` as GGUF describes it.
pub(super) fn source<'a>(model: &'a Model, dir: &Path) -> Result<Source<'a>, QuantizeError> {
    let config = model.config();
    let architecture = match config.family {
        Family::Llama | Family::Mistral => "llama",
        Family::Qwen2 => "qwen2",
        Family::Qwen3 => "qwen3",
        Family::Phi3 => "phi3",
    };
    let mut metadata = Metadata::default();
    let mut put = |key: &str, value| metadata.0.insert(key.to_owned(), value);
    put("general.architecture", Value::String(architecture.into()));
    if let Some(name) = dir.canonicalize().ok().as_deref().and_then(Path::file_name) {
        put("general.name", Value::String(name.to_string_lossy().into_owned()));
    }
    for (key, value) in sizes(config) {
        put(&format!("{architecture}.{key}"), value);
    }
    // llama.cpp wants the key of Phi-3 in any case.
    let window = window(config)?.or((config.family == Family::Phi3).then_some(0));
    if let Some(window) = window {
        put(&format!("{architecture}.attention.sliding_window"), u32_value(window));
    }
    for (key, value) in rope(config)? {
        put(&format!("{architecture}.rope.{key}"), value);
    }
    for (key, value) in sampling(model) {
        put(&format!("general.sampling.{key}"), value);
    }
    let tokenizer = gguf_tokenizer(dir, architecture, config.vocab_size)?;
    metadata.0.extend(tokenizer);
    let mut tensors = tensors(model);
    tensors.extend(rope_factors(&config.rope));
    Ok(Source { metadata, tensors })
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

/// The tensors that the model needs, under GGUF's names.
fn tensors(model: &Model) -> Vec<Tensor<'_>> {
    let config = model.config();
    let (from, to) = (model.decoder().names(), Names::gguf(config.family));
    let mut tensors = Vec::new();
    let mut push = |from: &str, to: &str, suffix: &str, heads: Option<usize>| {
        if let Some(entry) = model.checkpoint().tensor(&format!("{from}.{suffix}")) {
            let (name, shape) = (format!("{to}.{suffix}"), entry.shape.to_vec());
            tensors.push(Tensor { name, shape, data: data(entry, heads) });
        }
    };
    push(from.embedding, to.embedding, "weight", None);
    for layer in 0..config.num_layers() {
        for (from_stem, stem) in in_layer(from).into_iter().zip(in_layer(to)) {
            let heads = match stem {
                _ if !to.interleaved_rope => None,
                "attn_q" => Some(config.num_heads),
                "attn_k" => Some(config.num_kv_heads),
                _ => None,
            };
            let (from, to) = (from.in_layer(layer, from_stem), to.in_layer(layer, stem));
            push(&from, &to, "weight", heads);
            if has_bias(config, stem) {
                push(&from, &to, "bias", heads);
            }
        }
    }
    push(from.final_norm, to.final_norm, "weight", None);
    if !config.tie_word_embeddings {
        push(from.lm_head, to.lm_head, "weight", None);
    }
    tensors
}

/// Whether the model uses the bias of `stem`: GPTQ's files hold zeros for layers that have none.
fn has_bias(config: &Config, stem: &str) -> bool {
    match stem {
        "attn_output" => config.attention_out_bias,
        "ffn_gate" | "ffn_up" | "ffn_down" => config.mlp_bias,
        _ => config.qkv_bias && stem.starts_with("attn_") && !stem.ends_with("norm"),
    }
}

fn data(entry: TensorEntry<'_>, heads: Option<usize>) -> Data<'_> {
    match heads {
        Some(num_heads) => Data::Heads(entry, num_heads),
        None => Data::Stored(entry),
    }
}

/// The stems of a layer, in an order that all tables share.
fn in_layer(names: &Names) -> Vec<&'static str> {
    let single = [
        names.attention_norm,
        names.q_norm,
        names.k_norm,
        names.attention_out,
        names.mlp_norm,
        names.down,
    ];
    single
        .into_iter()
        .chain(names.qkv.iter().copied())
        .chain(names.gate_up.iter().copied())
        .collect()
}
