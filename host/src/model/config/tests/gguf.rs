use super::windows_of;
use crate::model::config::{Config, Family, QkNorm, gguf::Tensors};
use crate::model::rope::RopeScaling;
use crate::weights::WeightsError;
use crate::weights::gguf::{Metadata, Value};
use std::collections::BTreeMap;

/// Shapes by name; every element is 2.
struct Fake(BTreeMap<&'static str, Vec<usize>>);

impl Tensors for Fake {
    fn shape(&self, name: &str) -> Option<&[usize]> {
        self.0.get(name).map(Vec::as_slice)
    }

    fn read_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        Ok(vec![2.0; self.0[name].iter().product()])
    }
}

fn tensors(more: &[(&'static str, &[usize])]) -> Fake {
    let embedding: (&str, &[usize]) = ("token_embd.weight", &[49152, 576]);
    Fake([embedding].iter().chain(more).map(|(name, shape)| (*name, shape.to_vec())).collect())
}

/// SmolLM2-135M, under the name of any architecture.
fn metadata(architecture: &str) -> Metadata {
    let mut metadata = Metadata::default();
    let name = Value::String(architecture.into());
    metadata.0.insert("general.architecture".into(), name);
    for (key, value) in [
        ("block_count", Value::U32(30)),
        ("context_length", Value::U32(8192)),
        ("embedding_length", Value::U32(576)),
        ("feed_forward_length", Value::U32(1536)),
        ("attention.head_count", Value::U32(9)),
        ("attention.head_count_kv", Value::U32(3)),
        ("rope.freq_base", Value::F32(100_000.0)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("rope.dimension_count", Value::U32(64)),
    ] {
        metadata.0.insert(format!("{architecture}.{key}"), value);
    }
    metadata
}

pub fn with(architecture: &str, more: &[(&str, Value)]) -> Metadata {
    let mut metadata = metadata(architecture);
    for (key, value) in more {
        metadata.0.insert(format!("{architecture}.{key}"), value.clone());
    }
    metadata
}

pub fn read(metadata: &Metadata, more: &[(&'static str, &[usize])]) -> Config {
    Config::from_gguf(metadata, &tensors(more)).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn reads_metadata_and_tensors() {
    let config = read(&metadata("llama"), &[]);
    assert_eq!((config.family, config.num_layers(), config.head_dim), (Family::Llama, 30, 64));
    assert_eq!((config.vocab_size, config.rms_norm_eps), (49152, 1e-5));
    assert_eq!((config.ropes[0].theta, &config.ropes[0].scaling), (100_000.0, &RopeScaling::None));
    assert!(config.tie_word_embeddings && !config.qkv_bias && config.qk_norm.is_none());

    let untied = read(&metadata("llama"), &[("output.weight", &[49152, 576])]);
    assert!(!untied.tie_word_embeddings);
    let biased = read(&metadata("llama"), &[("blk.0.attn_q.bias", &[576])]);
    assert!(biased.qkv_bias && !biased.attention_out_bias && !biased.mlp_bias);
    assert!(read(&metadata("qwen2"), &[]).qkv_bias);

    let lengths =
        [("attention.key_length", Value::U32(128)), ("rope.dimension_count", Value::U32(128))];
    let qwen3 = read(&with("qwen3", &lengths), &[]);
    assert!(qwen3.qk_norm == Some(QkNorm::PerHead) && qwen3.head_dim == 128);

    let windowed = |window| [("attention.sliding_window", Value::U32(window))];
    assert_eq!(windows_of(&read(&with("phi3", &windowed(2047)), &[])), [Some(2047); 30]);
    assert_eq!(windows_of(&read(&with("phi3", &windowed(0)), &[])), [None; 30]);
}

#[test]
fn reads_rope_scaling() {
    let frequencies = read(&metadata("llama"), &[("rope_freqs.weight", &[32])]);
    assert_eq!(frequencies.ropes[0].scaling, RopeScaling::Factors(vec![2.0; 32]));

    let factors: [(&str, &[usize]); 2] =
        [("rope_factors_long.weight", &[32]), ("rope_factors_short.weight", &[32])];
    let keys = [
        ("rope.scaling.original_context_length", Value::U32(4096)),
        ("rope.scaling.attn_factor", Value::F32(1.25)),
    ];
    let longrope = RopeScaling::LongRope {
        short_factor: vec![2.0; 32],
        long_factor: vec![2.0; 32],
        attention_factor: 1.25,
        original_max_position_embeddings: 4096,
    };
    assert_eq!(read(&with("phi3", &keys), &factors).ropes[0].scaling, longrope);

    let scaled = |kind: &str| {
        let kind = Value::String(kind.into());
        with("llama", &[("rope.scaling.type", kind), ("rope.scaling.factor", Value::F32(4.0))])
    };
    let linear = RopeScaling::Linear { factor: 4.0 };
    assert_eq!(read(&scaled("linear"), &[]).ropes[0].scaling, linear);
    let old = with("llama", &[("rope.scale_linear", Value::F32(4.0))]);
    assert_eq!(read(&old, &[]).ropes[0].scaling, linear);
    assert_eq!(read(&scaled("none"), &[]).ropes[0].scaling, RopeScaling::None);
    let yarn = read(&scaled("yarn"), &[]).ropes[0].scaling.clone();
    let RopeScaling::Yarn { factor, attention_factor, .. } = yarn else { panic!("YaRN") };
    assert!(factor == 4.0 && (attention_factor - 1.138629436111989).abs() < 1e-12);
}

#[test]
fn rejects_what_no_model_has() {
    let array = Value::Array(vec![Value::U32(3); 30]);
    for (key, value, expected) in [
        ("block_count", Value::U64(1 << 60), "`llama.block_count` is 1152921504606846976"),
        ("block_count", Value::F32(30.0), "`llama.block_count` is 30"),
        ("attention.head_count_kv", array, "`llama.attention.head_count_kv` is \"array of 30\""),
        ("attention.head_count_kv", Value::I32(-3), "`llama.attention.head_count_kv` is -1"),
        ("attention.head_count", Value::U32(7), "must divide the hidden size (576)"),
        ("attention.value_length", Value::U32(32), "the length of a key (64)"),
        ("attention.layer_norm_rms_epsilon", Value::F32(f32::NAN), "is \"NaN\""),
        ("expert_count", Value::U32(8), "no `llama.expert_used_count`"),
        ("expert_count", Value::U32(1 << 20), "`llama.expert_count` is"),
        ("rope.dimension_count", Value::U32(32), "whole heads"),
        ("rope.dimension_count", Value::U32(1 << 20), "`llama.rope.dimension_count` is"),
        ("rope.freq_base", Value::F32(f32::INFINITY), "`llama.rope.freq_base` is \"inf\""),
    ] {
        let error = Config::from_gguf(&with("llama", &[(key, value)]), &tensors(&[])).unwrap_err();
        assert!(error.to_string().contains(expected), "`{error}` does not say `{expected}`");
    }
    for key in ["block_count", "context_length", "attention.layer_norm_rms_epsilon"] {
        let mut metadata = metadata("llama");
        metadata.0.remove(&format!("llama.{key}"));
        let error = Config::from_gguf(&metadata, &tensors(&[])).unwrap_err().to_string();
        assert_eq!(error, format!("the configuration has no `llama.{key}`"));
    }
    let error = Config::from_gguf(&metadata("bloom"), &tensors(&[])).unwrap_err().to_string();
    assert!(error.contains("`bloom`; known are llama"), "{error}");
    let short = tensors(&[("rope_freqs.weight", &[31])]);
    let error = Config::from_gguf(&metadata("llama"), &short).unwrap_err().to_string();
    assert!(error.contains("must be of shape [32]"), "{error}");
}

/// What is wrong with `metadata`.
pub fn rejected(metadata: &Metadata) -> String {
    Config::from_gguf(metadata, &tensors(&[])).unwrap_err().to_string()
}
