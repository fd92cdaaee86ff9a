//! Layers of Gated DeltaNet, in config.json and in GGUF.

use super::gguf::{read as read_gguf, rejected, with as gguf_with};
use super::hf::{assert_error, read};
use crate::model::config::{Config, DeltaNet, Family, QkNorm};
use crate::weights::gguf::Value as Gguf;
use serde_json::{Value, json};

/// The language model of Qwen3.5-35B-A3B as it is published.
fn qwen35_moe() -> Value {
    json!({
        "model_type": "qwen3_5_moe",
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "attn_output_gate": true,
            "full_attention_interval": 4,
            "head_dim": 256,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_value_head_dim": 128,
            "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262_144,
            "moe_intermediate_size": 512,
            "mtp_num_hidden_layers": 1,
            "num_attention_heads": 16,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 40,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "mrope_interleaved": true,
                "mrope_section": [11, 11, 10],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10_000_000,
                "rope_type": "default"
            },
            "shared_expert_intermediate_size": 512,
            "vocab_size": 248_320
        },
        "tie_word_embeddings": false
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut json = qwen35_moe();
    json["text_config"][field] = value;
    json
}

fn delta_layers(config: &Config) -> Vec<bool> {
    config.layers.iter().map(|layer| layer.is_delta).collect()
}

const DELTA: DeltaNet = DeltaNet {
    num_k_heads: 16,
    num_v_heads: 32,
    k_head_dim: 128,
    v_head_dim: 128,
    conv_kernel: 4,
    is_tiled: false,
};

#[test]
fn three_of_four_layers_have_a_state() {
    let qwen = read(&qwen35_moe());
    assert_eq!((qwen.family, qwen.num_layers()), (Family::Qwen35Moe, 40));
    assert_eq!((qwen.num_heads, qwen.num_kv_heads, qwen.head_dim), (16, 2, 256));
    assert_eq!((qwen.delta, qwen.qk_norm), (Some(DELTA), Some(QkNorm::PerHead)));
    assert!(qwen.attention_gate && !qwen.qkv_bias && !qwen.tie_word_embeddings);
    let layers: Vec<bool> = (0..40).map(|layer| layer % 4 != 3).collect();
    assert_eq!((delta_layers(&qwen), qwen.num_delta_layers(5)), (layers, 4));
    assert!(qwen.layers.iter().all(|layer| layer.has_experts && layer.window.is_none()));
    assert_eq!((qwen.ropes[0].theta, qwen.ropes[0].rotary_dim), (1e7, 64));
    let experts = qwen.experts.unwrap();
    assert_eq!((experts.num_experts, experts.top_k, experts.normalise), (256, 8, true));
    assert_eq!((experts.shared_intermediate_size, experts.shared_gate), (Some(512), true));

    let named: Vec<&str> = (0..40)
        .map(|layer| if layer == 7 { "full_attention" } else { "linear_attention" })
        .collect();
    let layers = delta_layers(&read(&with("layer_types", json!(named))));
    assert_eq!(layers.iter().position(|is_delta| !is_delta), Some(7));
    let quarter =
        read(&with("rope_parameters", json!({"rope_theta": 5e6, "rope_type": "default"})));
    assert_eq!(quarter.ropes[0].rotary_dim, 64, "the class's default");
}

#[test]
fn what_no_layer_can_have_is_named() {
    for (field, value, wanted) in [
        ("linear_num_value_heads", json!(24), "linear_num_value_heads` is 24"),
        ("linear_conv_kernel_dim", json!(1), "linear_conv_kernel_dim` is 1"),
        ("linear_key_head_dim", json!(4096), "linear_key_head_dim` is 4096"),
        ("linear_num_key_heads", json!(0), "linear_num_key_heads` is 0"),
        ("layer_types", json!(["full_attention"]), "40 layers are needed"),
        (
            "layer_types",
            json!(vec!["sliding_attention"; 40]),
            "linear_attention and full_attention",
        ),
        ("shared_expert_intermediate_size", json!(null), "shared_expert_intermediate_size"),
    ] {
        assert_error(&with(field, value), wanted);
    }
}

#[test]
fn gguf_has_tiled_heads_but_for_qwen3_next() {
    let keys = |more: &[(&'static str, Gguf)]| {
        let mut keys = vec![
            ("ssm.conv_kernel", Gguf::U32(4)),
            ("ssm.state_size", Gguf::U32(128)),
            ("ssm.group_count", Gguf::U32(16)),
            ("ssm.time_step_rank", Gguf::U32(32)),
            ("ssm.inner_size", Gguf::U32(4096)),
        ];
        keys.extend(more.iter().cloned());
        keys
    };
    // The last of 30 blocks predicts further tokens.
    let dense = keys(&[("nextn_predict_layers", Gguf::U32(1))]);
    let qwen = read_gguf(&gguf_with("qwen35", &dense), &[]);
    assert_eq!(qwen.delta, Some(DeltaNet { is_tiled: true, ..DELTA }));
    let layers: Vec<bool> = (0..29).map(|layer| layer % 4 != 3).collect();
    assert_eq!((qwen.family, delta_layers(&qwen)), (Family::Qwen35, layers));
    let experts = [
        ("expert_count", Gguf::U32(512)),
        ("expert_used_count", Gguf::U32(10)),
        ("expert_feed_forward_length", Gguf::U32(512)),
        ("expert_shared_feed_forward_length", Gguf::U32(512)),
        ("full_attention_interval", Gguf::U32(2)),
    ];
    let next = read_gguf(&gguf_with("qwen3next", &keys(&experts)), &[]);
    assert_eq!(next.delta, Some(DELTA));
    assert_eq!(delta_layers(&next)[..3], [true, false, true]);
    let error = rejected(&gguf_with("qwen35", &keys(&[("ssm.inner_size", Gguf::U32(4001))])));
    assert!(error.contains("ssm.inner_size` is 4001: 32 heads of values"), "{error}");
    let error = rejected(&gguf_with("qwen35", &keys(&[("ssm.group_count", Gguf::U32(5))])));
    assert!(error.contains("a multiple of the 5 heads of keys"), "{error}");
}
