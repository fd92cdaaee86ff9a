//! GGUF's description of a Hugging Face model: names, order of rows, metadata, RoPE factors.
//!
//! Source: llama.cpp's convert_hf_to_gguf.py.

use std::path::Path;

use super::QuantizeError;
use super::source::{Data, Source, Tensor, Tiles};
use crate::loaded::Model;
use crate::model::{
    Config, DeltaNet, ExpertScores, Experts, Family, KvSource, LayerConfig, Names, Rope,
    RopeScaling, yarn_attention_factor,
};
use crate::plan::{Bounds, Fusion, Numerics, Weight, WeightPart, WeightSlice};
use crate::text::gguf_tokenizer;
use crate::weights::TensorEntry;
use crate::weights::gguf::{Metadata, Value};
use gpu_types::Activation;

/// The model in `dir`, whose `config.json` is `json`, as GGUF describes it.
pub(super) fn source<'a>(
    model: &'a Model,
    dir: &Path,
    json: &serde_json::Value,
) -> Result<Source<'a>, QuantizeError> {
    let config = model.config();
    if model.decoder().has_joined_experts()
        && matches!(config.family, Family::Gemma4 | Family::GptOss)
    {
        return Err(QuantizeError::NotWritten("experts whose gate and up are one tensor"));
    }
    if config.family == Family::Qwen3Next {
        return Err(QuantizeError::NotWritten("layers of Gated DeltaNet by head of keys"));
    }
    let mut metadata = Metadata(keys(config)?.into_iter().collect());
    let mut put = |key: &str, value| metadata.0.insert(key.to_owned(), value);
    if let Some(name) = dir.canonicalize().ok().as_deref().and_then(Path::file_name) {
        put("general.name", Value::String(name.to_string_lossy().into_owned()));
    }
    for (key, value) in sampling(model) {
        put(&format!("general.sampling.{key}"), value);
    }
    // The width that dense layers would have; llama.cpp's conversion writes it.
    let of_text = json.get("text_config").unwrap_or(json);
    let dense = of_text["intermediate_size"].as_u64().and_then(|width| u32::try_from(width).ok());
    if let (Some(width), Family::Qwen3Moe | Family::Qwen35Moe) = (dense, config.family) {
        let key = format!("{}.feed_forward_length", architecture(config.family));
        put(&key, Value::U32(width));
    }
    let tokenizer = gguf_tokenizer(dir, architecture(config.family), config.vocab_size)?;
    metadata.0.extend(tokenizer);
    let mut tensors = tensors(model);
    tensors.extend(joined_experts(model)?);
    tensors.extend(rope_factors(full_rope(config)?));
    Ok(Source { metadata, tensors })
}

fn architecture(family: Family) -> &'static str {
    match family {
        Family::Llama | Family::Mistral | Family::Mixtral => "llama",
        Family::Qwen2 => "qwen2",
        Family::Qwen3 => "qwen3",
        Family::Qwen3Moe => "qwen3moe",
        Family::Phi3 => "phi3",
        Family::Granite => "granite",
        Family::SmolLm3 => "smollm3",
        Family::Olmo2 | Family::Olmo3 => "olmo2",
        Family::Ministral3 => "mistral3",
        Family::GptOss => "gpt-oss",
        Family::Glm4Moe => "glm4moe",
        Family::GraniteMoe => "granitemoe",
        Family::Gemma2 => "gemma2",
        Family::Gemma3 => "gemma3",
        Family::Gemma4 => "gemma4",
        Family::Qwen3Next => "qwen3next",
        Family::Qwen35 => "qwen35",
        Family::Qwen35Moe => "qwen35moe",
        Family::Bert | Family::Roberta => "bert",
        Family::ModernBert => "modern-bert",
    }
}

/// The metadata that follows from the configuration.
pub(super) fn keys(config: &Config) -> Result<Vec<(String, Value)>, QuantizeError> {
    if !config.is_causal {
        return Err(QuantizeError::NotWritten("attention to later tokens"));
    }
    let known = match config.family {
        Family::GptOss => Activation::SwigluOai,
        Family::Gemma2 | Family::Gemma3 | Family::Gemma4 => Activation::GeluTanh,
        _ => Activation::Silu,
    };
    if config.activation != known {
        return Err(QuantizeError::NoKey("an activation other than its family's"));
    }
    let architecture = architecture(config.family);
    let mut keys = vec![("general.architecture".into(), Value::String(architecture.into()))];
    let mut put = |key: &str, value| keys.push((format!("{architecture}.{key}"), value));
    for (key, value) in sizes(config) {
        put(key, value);
    }
    let others = [
        windows(config)?,
        experts(config)?,
        factors(config),
        delta(config),
        kinds_of_layers(config),
    ];
    for (key, value) in others.into_iter().flatten() {
        put(key, value);
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

/// Layers of Gated DeltaNet, and which ones they are.
fn delta(config: &Config) -> Vec<(&'static str, Value)> {
    let Some(delta) = config.delta else { return Vec::new() };
    let is_delta = || config.layers.iter().map(|layer| layer.is_delta);
    let interval = is_delta().take_while(|&is_delta| is_delta).count() + 1;
    let is_periodic =
        is_delta().enumerate().all(|(layer, is_delta)| is_delta == ((layer + 1) % interval != 0));
    let layers = match is_periodic {
        true => ("full_attention_interval", u32_value(interval)),
        false => {
            let flags = is_delta().map(Value::Bool).collect();
            ("attention.recurrent_layers", Value::Array(flags))
        }
    };
    vec![
        ("ssm.conv_kernel", u32_value(delta.conv_kernel)),
        ("ssm.state_size", u32_value(delta.k_head_dim)),
        ("ssm.group_count", u32_value(delta.num_k_heads)),
        ("ssm.time_step_rank", u32_value(delta.num_v_heads)),
        ("ssm.inner_size", u32_value(delta.v_width())),
        layers,
    ]
}

/// What becomes of a tensor of a layer of Gated DeltaNet whose heads of values GGUF tiles.
fn delta_data<'a>(name: &str, entry: TensorEntry<'a>, delta: &DeltaNet) -> Option<Data<'a>> {
    let DeltaNet { num_k_heads, num_v_heads, v_head_dim, .. } = *delta;
    let tiles = |first, block| {
        let heads = [num_k_heads, num_v_heads / num_k_heads];
        Tiles { first, heads, block, by_columns: false }
    };
    let (tiles, is_rate) = match name.split('.').nth(2)? {
        "attn_qkv" | "ssm_conv1d" => (tiles(2 * delta.k_width(), v_head_dim), false),
        "attn_gate" => (tiles(0, v_head_dim), false),
        "ssm_beta" | "ssm_alpha" | "ssm_dt" => (tiles(0, 1), false),
        "ssm_a" => (tiles(0, 1), true),
        "ssm_out" => (Tiles { by_columns: true, ..tiles(0, v_head_dim) }, false),
        // It has no offset, unlike the other norms.
        "ssm_norm" => return Some(Data::Stored(entry)),
        _ => return None,
    };
    Some(Data::Tiled(entry, tiles, is_rate))
}

/// What Gemma 4 has of its own, where it differs from [`sizes`].
fn kinds_of_layers(config: &Config) -> Vec<(&'static str, Value)> {
    if config.family != Family::Gemma4 {
        return Vec::new();
    }
    let layers = || 0..config.num_layers();
    let is_shared = |layer: &usize| matches!(config.layers[*layer].kv, KvSource::Layer(_));
    let full = layers().find(|&layer| config.layers[layer].window.is_none());
    let full = full.map_or(config.head_dim, |layer| config.heads(layer).head_dim);
    let counts = |of: &dyn Fn(usize) -> usize| {
        Value::Array(layers().map(|layer| u32_value(of(layer))).collect())
    };
    let inputs = config.per_layer_inputs.map_or(0, |inputs| inputs.width);
    vec![
        ("attention.key_length", u32_value(full)),
        ("attention.value_length", u32_value(full)),
        ("attention.key_length_swa", u32_value(config.head_dim)),
        ("attention.value_length_swa", u32_value(config.head_dim)),
        ("attention.head_count_kv", counts(&|layer| config.heads(layer).num_kv_heads)),
        ("feed_forward_length", counts(&|layer| config.intermediate_size_of(layer))),
        ("attention.shared_kv_layers", u32_value(layers().filter(is_shared).count())),
        ("embedding_length_per_layer_input", u32_value(inputs)),
    ]
}

fn experts(config: &Config) -> Result<Vec<(&'static str, Value)>, QuantizeError> {
    let Some(experts) = config.experts else { return Ok(Vec::new()) };
    if !experts.normalise && experts.scores == ExpertScores::Softmax {
        return Err(QuantizeError::NoKey("weights of experts that do not add up to 1"));
    }
    Ok(expert_keys(config, &experts))
}

fn expert_keys(config: &Config, experts: &Experts) -> Vec<(&'static str, Value)> {
    let mut keys = vec![
        ("expert_count", u32_value(experts.num_experts)),
        ("expert_used_count", u32_value(experts.top_k)),
    ];
    if config.family != Family::Mixtral {
        keys.push(("expert_feed_forward_length", u32_value(experts.intermediate_size)));
    }
    let shared = experts.shared_intermediate_size.filter(|_| config.family != Family::Glm4Moe);
    keys.extend(shared.map(|shared| ("expert_shared_feed_forward_length", u32_value(shared))));
    if let (Family::Glm4Moe, ExpertScores::Sigmoid { groups }) = (config.family, experts.scores) {
        let dense = config.layers.iter().take_while(|layer| !layer.has_experts).count();
        let num_shared = experts.shared_intermediate_size.unwrap_or(0) / experts.intermediate_size;
        keys.extend([
            ("leading_dense_block_count", u32_value(dense)),
            ("expert_shared_count", u32_value(num_shared)),
            // llama.cpp's number of sigmoids.
            ("expert_gating_func", Value::U32(2)),
            ("expert_weights_norm", Value::Bool(experts.normalise)),
            ("expert_weights_scale", Value::F32(experts.scale as f32)),
        ]);
        keys.extend(groups.into_iter().flat_map(|groups| {
            [
                ("expert_group_count", u32_value(groups.count)),
                ("expert_group_used_count", u32_value(groups.top_k)),
            ]
        }));
    }
    keys
}

/// The sliding window, if the model has one: the same in every layer, or in those of OLMo, gpt-oss
/// and Gemma that a list names.
fn windows(config: &Config) -> Result<Vec<(&'static str, Value)>, QuantizeError> {
    const WINDOW: &str = "attention.sliding_window";
    let of_layers = || config.layers.iter().map(|layer| layer.window);
    let Some(window) = of_layers().flatten().next() else {
        // llama.cpp wants the key of Phi-3 in any case, and knows a window for Gemma 2.
        let is_told = matches!(config.family, Family::Phi3 | Family::Gemma2);
        return Ok(is_told.then(|| (WINDOW, u32_value(0))).into_iter().collect());
    };
    let differ = of_layers().any(|other| other != Some(window));
    match config.family {
        // As llama.cpp's conversion, which leaves the pattern to the architecture.
        Family::Gemma2 | Family::Gemma3 if config.slides_as_its_architecture() => {
            Ok(vec![(WINDOW, u32_value(window))])
        }
        Family::Olmo2
        | Family::Olmo3
        | Family::GptOss
        | Family::Gemma2
        | Family::Gemma3
        | Family::Gemma4 => {
            let slides = of_layers().map(|window| Value::Bool(window.is_some())).collect();
            let pattern = "attention.sliding_window_pattern";
            Ok(vec![(WINDOW, u32_value(window)), (pattern, Value::Array(slides))])
        }
        _ if differ => Err(QuantizeError::NoKey("sliding windows that differ between its layers")),
        Family::Llama | Family::Mistral | Family::Phi3 => Ok(vec![(WINDOW, u32_value(window))]),
        _ => Err(QuantizeError::NoKey("a sliding window in a family that has none in GGUF")),
    }
}

/// What activations are multiplied by.
fn factors(config: &Config) -> Vec<(&'static str, Value)> {
    let number = |number: f64| Value::F32(number as f32);
    let mut pairs = Vec::new();
    if matches!(config.family, Family::Granite | Family::GraniteMoe) {
        pairs.extend([
            ("attention.scale", number(config.softmax_scale)),
            ("embedding_scale", number(config.embedding_multiplier)),
            ("residual_scale", number(config.residual_multiplier)),
            ("logit_scale", number(config.logits_scaling)),
        ]);
    }
    if matches!(config.family, Family::Gemma2 | Family::Gemma3 | Family::Gemma4) {
        if config.softmax_scale != config.scale_of_its_architecture() {
            pairs.push(("attention.scale", number(config.softmax_scale)));
        }
        let caps = [
            ("attn_logit_softcapping", config.attention_softcap),
            ("final_logit_softcapping", config.logits_softcap),
        ];
        // Without the keys readers take what Gemma 2 has; 0 is none.
        let is_told = |cap: &Option<f64>| cap.is_some() || config.family == Family::Gemma2;
        let caps = caps.into_iter().filter(|(_, cap)| is_told(cap));
        pairs.extend(caps.map(|(key, cap)| (key, number(cap.unwrap_or(0.0)))));
    }
    let scaling = config.query_scaling;
    pairs.extend(scaling.map(|scaling| ("attention.temperature_scale", number(scaling.beta))));
    pairs
}

/// The rotary embedding of the layers that attend to everything: those with a window have one
/// without scaling, where the two differ.
fn full_rope(config: &Config) -> Result<&Rope, QuantizeError> {
    let of_layers = |slides: bool| {
        let layers = config.layers.iter().filter(move |layer| layer.window.is_some() == slides);
        layers.filter_map(|layer| layer.rope).next()
    };
    let index = of_layers(false).or(of_layers(true));
    index.map(|index| &config.ropes[index]).ok_or(QuantizeError::NoKey("no RoPE in any layer"))
}

/// SmolLM3 rotates all but every fourth layer, the others all.
fn check_rotated_layers(config: &Config) -> Result<(), QuantizeError> {
    let is_smollm3 = config.family == Family::SmolLm3;
    let rotates = |(index, layer): (usize, &LayerConfig)| {
        layer.is_delta || layer.rope.is_some() != (is_smollm3 && index % 4 == 3)
    };
    match config.layers.iter().enumerate().all(rotates) {
        true => Ok(()),
        false => Err(QuantizeError::NoKey("layers without RoPE other than every fourth")),
    }
}

fn rope(config: &Config) -> Result<Vec<(&'static str, Value)>, QuantizeError> {
    check_rotated_layers(config)?;
    let full = full_rope(config)?;
    let Rope { theta, rotary_dim, scaling } = full;
    let mut pairs =
        vec![("dimension_count", u32_value(*rotary_dim)), ("freq_base", Value::F32(*theta as f32))];
    let text = |text: &str| Value::String(text.to_owned());
    let number = |number: f64| Value::F32(number as f32);
    if let Some(sliding) = config.ropes.iter().find(|rope| *rope != full) {
        if sliding.scaling != RopeScaling::None {
            return Err(QuantizeError::NoKey("a scaled RoPE in layers with a window"));
        }
        pairs.push(("freq_base_swa", number(sliding.theta)));
        if config.family == Family::Gemma4 {
            pairs.push(("dimension_count_swa", u32_value(sliding.rotary_dim)));
        }
    }
    match scaling {
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => {}
        RopeScaling::Linear { factor } => {
            pairs.extend([("scaling.type", text("linear")), ("scaling.factor", number(*factor))])
        }
        RopeScaling::Yarn { truncate, .. } if *truncate == (config.family == Family::GptOss) => {
            return Err(QuantizeError::NoKey("YaRN with another `truncate` than its family's"));
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

/// The tensors that the model needs, under GGUF's names: GPTQ's files hold zeros for biases that it
/// has not.
fn tensors(model: &Model) -> Vec<Tensor<'_>> {
    let config = model.config();
    let to = Names::gguf(config.family);
    let offset = model.decoder().norm_offset() - to.norm_offset;
    let tensors = model.decoder().gguf_names().filter_map(|(from, name)| {
        let entries = from.iter().map(|from| model.checkpoint().tensor(from));
        let entries = entries.collect::<Option<Vec<TensorEntry>>>()?;
        let &[entry] = &entries[..] else {
            let shape = [&[entries.len()], entries[0].shape].concat();
            return Some(Tensor { name, shape, data: Data::Experts(entries) });
        };
        let of_delta = config.delta.and_then(|delta| delta_data(&name, entry, &delta));
        // GGUF has no dimension of one element: the convolution's in the middle, the shared gate's.
        let mut shape = entry.shape.to_vec();
        if shape.len() > 1 {
            shape.retain(|&len| len > 1);
        }
        let data = match name.split('.').nth(2) {
            _ if of_delta.is_some() => of_delta.expect("of such a layer"),
            Some("attn_q") if to.interleaved_rope => Data::Heads(entry, config.num_heads),
            Some("attn_k") if to.interleaved_rope => Data::Heads(entry, config.num_kv_heads),
            _ if name.ends_with("norm.weight") && offset != 0.0 => Data::Added(entry, offset),
            _ => Data::Stored(entry),
        };
        Some(Tensor { name, shape, data })
    });
    tensors.collect()
}

/// The matrices of experts that are one tensor of the checkpoint with others, as a plan of the model
/// takes them out.
fn joined_experts(model: &Model) -> Result<Vec<Tensor<'_>>, QuantizeError> {
    let names = model.decoder().joined_gguf_names();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let numerics = Numerics { fusion: Fusion::NONE, ..Numerics::default() };
    let plan = model.plan(&numerics, Bounds::one_sequence(1), 1)?;
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let (layer, what) = name.strip_prefix("blk.")?.split_once(".ffn_")?;
        let label = format!("layers.{layer}.expert_{}", what.strip_suffix("_exps.weight")?);
        let whole = plan.weights.iter().find(|weight| weight.name == label)?;
        let &[num_experts, rows, _] = &shape[..] else { return None };
        let matrix = |expert: usize| {
            let parts = match &whole.parts[..] {
                [all] => {
                    let (first, of) = (expert * rows, all.rows);
                    let slice = WeightSlice::Rows { first, of };
                    vec![WeightPart { rows, slice, ..all.clone() }]
                }
                each => vec![each[expert].clone()],
            };
            Weight { name: name.clone(), rows, parts, ..whole.clone() }
        };
        let entry = model.checkpoint().tensor(&whole.parts[0].source)?;
        let matrices = (0..num_experts).map(matrix).collect();
        Some(Tensor { name, shape, data: Data::Joined(entry, matrices) })
    };
    // A file without some of them would be no model.
    let of_others = QuantizeError::NotWritten;
    let all = names.into_iter().map(|of| tensor(of).ok_or(of_others("experts of another form")));
    all.collect()
}
