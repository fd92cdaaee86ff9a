//! Encoders: BERT, XLM-RoBERTa, ModernBERT, EmbeddingGemma.

use super::hf::{assert_error, read};
use super::windows_of;
use crate::model::config::{Family, LearnedPositions};
use crate::model::rope::{Rope, RopeScaling};
use serde_json::{Value, json};

fn bert(more: Value) -> Value {
    let mut json = json!({
        "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6,
        "num_attention_heads": 12, "intermediate_size": 1536, "max_position_embeddings": 512
    });
    json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json
}

#[test]
fn bert_learns_positions() {
    let config = read(&bert(json!({"pad_token_id": 0})));
    assert_eq!((config.family, config.is_causal, config.head_dim), (Family::Bert, false, 32));
    assert_eq!((config.max_position_embeddings, config.rms_norm_eps), (512, 1e-12));
    assert_eq!((config.qkv_bias, config.mlp_bias, config.ropes.len()), (true, true, 0));
    let encoder = config.encoder.unwrap();
    assert_eq!(encoder.positions, Some(LearnedPositions { first: 0, num_types: 2 }));
    assert!(encoder.norm_of_sum && encoder.norm_bias && !encoder.is_gated);
    assert_error(&bert(json!({"hidden_act": "gelu_new"})), "with gelu");
    assert_error(&bert(json!({"is_decoder": true})), "is_decoder");
    assert_error(&bert(json!({"position_embedding_type": "relative_key"})), "absolute");
    assert_error(&bert(json!({"num_attention_heads": 7})), "num_attention_heads");
    assert_error(&bert(json!({"type_vocab_size": 17})), "type_vocab_size");
}

/// Positions are counted from the id after the padding's.
#[test]
fn roberta_counts_positions_from_the_padding() {
    let xlm = json!({
        "model_type": "xlm-roberta", "max_position_embeddings": 8194, "pad_token_id": 1,
        "type_vocab_size": 1, "layer_norm_eps": 1e-5
    });
    let config = read(&bert(xlm));
    assert_eq!((config.family, config.max_position_embeddings), (Family::Roberta, 8192));
    let positions = config.encoder.unwrap().positions;
    assert_eq!(positions, Some(LearnedPositions { first: 2, num_types: 1 }));
    let few = json!({"model_type": "roberta", "max_position_embeddings": 2});
    assert_error(&bert(few), "max_position_embeddings");
    assert_error(&bert(json!({"model_type": "roberta", "pad_token_id": 9999})), "pad_token_id");
}

#[test]
fn modernbert_slides_in_two_layers_of_three() {
    let modern = |more: Value| {
        let mut json = bert(json!({
            "model_type": "modernbert", "num_hidden_layers": 5, "max_position_embeddings": 8192,
            "local_attention": 128, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0
        }));
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json
    };
    let config = read(&modern(json!({})));
    let window = Some(65);
    assert_eq!(windows_of(&config), [None, window, window, None, window]);
    assert_eq!(
        config.ropes.iter().collect::<Vec<_>>(),
        [&rope(160_000.0, 32), &rope(10_000.0, 32)]
    );
    assert_eq!((config.qkv_bias, config.mlp_bias, config.rms_norm_eps), (false, false, 1e-5));
    let encoder = config.encoder.unwrap();
    assert!(!encoder.norm_of_sum && !encoder.norm_bias && encoder.is_gated);
    assert_eq!(encoder.positions, None);
    // As transformers 5 writes it.
    let types = json!([
        "sliding_attention",
        "full_attention",
        "full_attention",
        "full_attention",
        "full_attention"
    ]);
    let nested = json!({"layer_types": types, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e4},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}});
    let config = read(&modern(nested));
    assert_eq!(windows_of(&config), [window, None, None, None, None]);
    assert_eq!(config.ropes.iter().collect::<Vec<_>>(), [&rope(20_000.0, 32), &rope(50_000.0, 32)]);
    assert_error(&modern(json!({"layer_types": ["full_attention"]})), "5 layers");
    let scaled = json!({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}});
    assert_error(&modern(scaled), "without a scaling");
}

#[test]
fn embedding_gemma_sees_both_sides() {
    let gemma = json!({
        "model_type": "gemma3_text", "head_dim": 256, "num_hidden_layers": 6,
        "sliding_window": 512, "use_bidirectional_attention": true
    });
    let config = read(&gemma);
    assert_eq!((config.is_causal, config.encoder), (false, None));
    let window = Some(257);
    assert_eq!(windows_of(&config), [window, window, window, window, window, None]);
}

fn rope(theta: f64, rotary_dim: usize) -> Rope {
    Rope { theta, rotary_dim, scaling: RopeScaling::None }
}
