//! Mixtures of experts: their real configurations, in config.json and in GGUF.

use super::gguf::{read as read_gguf, rejected, with as gguf_with};
use super::hf::{assert_error, read, with, without};
use super::{real, windows_of};
use crate::model::config::{Config, ExpertScores, Experts, QkNorm};
use crate::model::rope::RopeScaling;
use crate::plan::Groups;
use crate::weights::gguf::Value as Gguf;
use gpu_types::Activation;
use serde_json::{Value, json};

/// Which layers have experts.
fn layers_of(config: &Config) -> Vec<bool> {
    config.layers.iter().map(|layer| layer.has_experts).collect()
}

const COUNTS: [(&str, Gguf); 2] =
    [("expert_count", Gguf::U32(8)), ("expert_used_count", Gguf::U32(2))];

/// A GGUF file of 8 experts, 2 of which are chosen.
fn gguf(architecture: &str, more: &[(&str, Gguf)]) -> Config {
    read_gguf(&gguf_with(architecture, &[&COUNTS[..], more].concat()), &[])
}

#[test]
fn qwen_has_experts_in_most_layers() {
    let of_qwen = Experts::new(128, 8, 768);
    let qwen = read(&real!("qwen3-30b-a3b"));
    assert_eq!((qwen.experts, qwen.intermediate_size), (Some(of_qwen), 768));
    assert_eq!((qwen.qk_norm, windows_of(&qwen)), (Some(QkNorm::PerHead), vec![None; 48]));
    assert_eq!(layers_of(&qwen), [true; 48]);
    let class = read(&without(real!("qwen3-30b-a3b"), "norm_topk_prob"));
    assert_eq!(class.experts, Some(Experts { normalise: false, ..of_qwen }), "the class's");

    let some = with(real!("qwen3-30b-a3b"), "mlp_only_layers", json!([0, 3]));
    let some = read(&with(some, "decoder_sparse_step", json!(2)));
    assert_eq!(layers_of(&some)[..6], [false, true, false, false, false, true]);
    assert_eq!((some.experts, some.intermediate_size), (Some(of_qwen), 6144));
    for (field, wrong) in [
        ("num_experts", json!(0)),
        ("num_experts_per_tok", json!(129)),
        ("moe_intermediate_size", json!(null)),
        ("decoder_sparse_step", json!(0)),
        ("mlp_only_layers", json!([48])),
        ("mlp_only_layers", json!([-1])),
    ] {
        assert_error(&with(real!("qwen3-30b-a3b"), field, wrong), field);
    }
    let dense = with(real!("qwen3-30b-a3b"), "mlp_only_layers", json!([0]));
    assert_error(&without(dense, "intermediate_size"), "`intermediate_size`");

    let width = [("expert_feed_forward_length", Gguf::U32(96))];
    let of_gguf = gguf("qwen3moe", &width);
    assert_eq!(of_gguf.experts, Some(Experts::new(8, 2, 96)));
    assert!(rejected(&gguf_with("qwen3moe", &COUNTS)).contains("expert_feed_forward_length"));
    assert!(rejected(&gguf_with("qwen3moe", &width)).contains("expert_count"));
    assert!(rejected(&gguf_with("qwen2", &COUNTS)).contains("`qwen2.expert_count`"));
}

#[test]
fn mixtral_is_llama_in_gguf() {
    let mixtral = json!({
        "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768,
        "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 1e6, "sliding_window": null, "vocab_size": 32000
    });
    let mixtral = read(&mixtral);
    assert_eq!(mixtral.experts, Some(Experts::new(8, 2, 14336)));
    let of_gguf = gguf("llama", &[]);
    assert_eq!(
        (of_gguf.experts, layers_of(&of_gguf)),
        (Some(Experts::new(8, 2, 1536)), vec![true; 30])
    );
}

#[test]
fn gpt_oss_has_sinks_and_windows_by_turns() {
    let oss = read(&real!("gpt-oss-20b"));
    assert_eq!(oss.experts, Some(Experts { bias: true, ..Experts::new(32, 4, 2880) }));
    assert_eq!(windows_of(&oss), [Some(128), None].repeat(12));
    assert!(oss.has_sinks && oss.qkv_bias && oss.attention_out_bias && oss.qk_norm.is_none());
    assert_eq!((oss.activation, oss.rms_norm_eps), (Activation::SwigluOai, 1e-5));
    let yarn = |config: &Config| match &config.ropes[..] {
        [rope] => rope.scaling.clone(),
        other => panic!("one of all layers: {other:?}"),
    };
    let RopeScaling::Yarn { attention_factor, truncate: false, .. } = yarn(&oss) else {
        panic!("{:?}", oss.ropes)
    };
    assert!((attention_factor - 1.346_573_590_279_972_7).abs() < 1e-15);

    let defaults = ["layer_types", "sliding_window", "attention_bias", "head_dim", "rope_theta"];
    let bare = defaults.iter().fold(real!("gpt-oss-20b"), |json, field| without(json, field));
    assert_eq!(read(&bare), oss, "the class's");
    for (field, wrong) in [
        ("swiglu_limit", json!(6.0)),
        ("swiglu_alpha", json!(1.5)),
        ("hidden_act", json!("gelu")),
        ("num_experts_per_tok", json!(33)),
        ("num_local_experts", json!(null)),
    ] {
        assert_error(&with(real!("gpt-oss-20b"), field, wrong), field);
    }
    assert_error(&without(real!("gpt-oss-20b"), "rope_scaling"), "no `rope_parameters`");

    let keys = [
        ("expert_feed_forward_length", Gguf::U32(96)),
        ("attention.sliding_window", Gguf::U32(128)),
        ("rope.scaling.type", Gguf::String("yarn".into())),
        ("rope.scaling.factor", Gguf::F32(32.0)),
        ("rope.scaling.original_context_length", Gguf::U32(4096)),
    ];
    let of_gguf = gguf("gpt-oss", &keys);
    assert_eq!(of_gguf.experts, Some(Experts { bias: true, ..Experts::new(8, 2, 96) }));
    assert_eq!(windows_of(&of_gguf), [Some(128), None].repeat(15));
    assert_eq!((of_gguf.activation, of_gguf.has_sinks), (Activation::SwigluOai, true));
    assert!(matches!(yarn(&of_gguf), RopeScaling::Yarn { truncate: false, .. }));
    let pattern = ("attention.sliding_window_pattern", Gguf::U32(3));
    let third = gguf("gpt-oss", &[&keys[..], &[pattern]].concat());
    assert_eq!(windows_of(&third), [Some(128), Some(128), None].repeat(10));
}

fn glm_4_5_air() -> Value {
    json!({
        "architectures": ["Glm4MoeForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "pad_token_id": 151329, "eos_token_id": [151329, 151336, 151338], "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 4096, "partial_rotary_factor": 0.5,
        "initializer_range": 0.02, "intermediate_size": 10944, "max_position_embeddings": 131072,
        "model_type": "glm4_moe", "moe_intermediate_size": 1408, "norm_topk_prob": true,
        "num_attention_heads": 96, "n_group": 1, "topk_group": 1, "n_routed_experts": 128,
        "n_shared_experts": 1, "routed_scaling_factor": 1.0, "num_experts_per_tok": 8,
        "first_k_dense_replace": 1, "num_hidden_layers": 46, "num_key_value_heads": 8,
        "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
        "rope_theta": 1000000, "tie_word_embeddings": false, "use_cache": true,
        "use_qk_norm": false, "vocab_size": 151552
    })
}

#[test]
fn glm_begins_with_dense_layers() {
    let air = read(&glm_4_5_air());
    let of_air = Experts {
        scores: ExpertScores::Sigmoid { groups: None },
        shared_intermediate_size: Some(1408),
        ..Experts::new(128, 8, 1408)
    };
    assert_eq!((air.experts, air.intermediate_size), (Some(of_air), 10944));
    assert_eq!((layers_of(&air)[..2].to_vec(), air.num_layers()), (vec![false, true], 46));
    assert_eq!((air.ropes.len(), air.ropes[0].rotary_dim, air.ropes[0].theta), (1, 64, 1e6));
    assert!(air.qkv_bias && !air.attention_out_bias && air.qk_norm.is_none());
    let class = ["partial_rotary_factor", "n_group", "topk_group", "n_shared_experts"];
    let class = class.iter().fold(glm_4_5_air(), |json, field| without(json, field));
    assert_eq!(read(&class), air, "the class's");

    let larger = with(glm_4_5_air(), "use_qk_norm", json!(true));
    let larger = with(larger, "routed_scaling_factor", json!(2.5));
    let larger = with(larger, "n_shared_experts", json!(0));
    let larger = read(&with(with(larger, "n_group", json!(8)), "topk_group", json!(4)));
    let groups = Some(Groups { count: 8, top_k: 4 });
    let wanted = Experts {
        scores: ExpertScores::Sigmoid { groups },
        scale: 2.5,
        shared_intermediate_size: None,
        ..of_air
    };
    assert_eq!((larger.experts, larger.qk_norm), (Some(wanted), Some(QkNorm::PerHead)));

    for (field, wrong) in [
        ("n_group", json!(3)),
        ("n_group", json!(128)),
        ("n_group", json!(0)),
        ("topk_group", json!(2)),
        ("routed_scaling_factor", json!(0)),
        ("routed_scaling_factor", json!(-1.0)),
        ("n_shared_experts", json!(4096)),
        ("num_experts_per_tok", json!(129)),
        ("partial_rotary_factor", json!(1.5)),
    ] {
        assert_error(&with(glm_4_5_air(), field, wrong), field);
    }
    // Eight experts of one group of two.
    let few = with(with(glm_4_5_air(), "n_group", json!(64)), "topk_group", json!(1));
    assert_error(&few, "`topk_group` is 1");
}

#[test]
fn glm_says_all_in_gguf() {
    let keys = [
        ("expert_feed_forward_length", Gguf::U32(96)),
        ("expert_shared_count", Gguf::U32(2)),
        ("leading_dense_block_count", Gguf::U32(3)),
        ("expert_gating_func", Gguf::U32(2)),
        ("expert_weights_norm", Gguf::Bool(true)),
        ("expert_weights_scale", Gguf::F32(2.5)),
        ("nextn_predict_layers", Gguf::U32(1)),
        ("rope.dimension_count", Gguf::U32(32)),
    ];
    let glm = gguf("glm4moe", &keys);
    let wanted = Experts {
        scores: ExpertScores::Sigmoid { groups: None },
        scale: 2.5,
        shared_intermediate_size: Some(192),
        ..Experts::new(8, 2, 96)
    };
    assert_eq!((glm.experts, glm.intermediate_size), (Some(wanted), 1536));
    assert_eq!(layers_of(&glm)[..4], [false, false, false, true]);
    assert_eq!((glm.num_layers(), glm.ropes[0].rotary_dim, glm.qk_norm), (29, 32, None));
    let plain = gguf("glm4moe", &keys[..1]);
    let wanted = Experts { normalise: false, scale: 1.0, shared_intermediate_size: None, ..wanted };
    assert_eq!((plain.experts, layers_of(&plain)), (Some(wanted), vec![true; 30]));
    let norm: (&str, &[usize]) = ("blk.0.attn_q_norm.weight", &[64]);
    let normed = read_gguf(&gguf_with("glm4moe", &[&COUNTS[..], &keys[..1]].concat()), &[norm]);
    assert_eq!(normed.qk_norm, Some(QkNorm::PerHead));
    for (key, wrong) in [
        ("expert_gating_func", Gguf::U32(1)),
        ("expert_group_count", Gguf::U32(3)),
        ("nextn_predict_layers", Gguf::U32(30)),
        ("expert_shared_count", Gguf::U32(4096)),
        ("expert_weights_scale", Gguf::F32(f32::NAN)),
    ] {
        let size = ("expert_feed_forward_length", Gguf::U32(1 << 20));
        let error = rejected(&gguf_with("glm4moe", &[&COUNTS[..], &[size, (key, wrong)]].concat()));
        let named = if key == "expert_group_count" { "n_group" } else { key };
        assert!(error.contains(named), "`{error}` does not say `{named}`");
    }
}

#[test]
fn granite_has_experts_and_multipliers() {
    let granite = json!({
        "architectures": ["GraniteMoeForCausalLM"], "attention_bias": false,
        "attention_multiplier": 0.015625, "embedding_multiplier": 12.0, "hidden_act": "silu",
        "hidden_size": 1024, "intermediate_size": 512, "logits_scaling": 6.0,
        "max_position_embeddings": 131072, "model_type": "granitemoe", "num_attention_heads": 16,
        "num_experts_per_tok": 8, "num_hidden_layers": 24, "num_key_value_heads": 8,
        "num_local_experts": 32, "residual_multiplier": 0.22, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 1500000.0, "tie_word_embeddings": true,
        "vocab_size": 49155
    });
    let read = read(&granite);
    assert_eq!(read.experts, Some(Experts::new(32, 8, 512)));
    assert_eq!((read.softmax_scale, read.logits_scaling), (0.015625, 6.0));
    assert_eq!((read.embedding_multiplier, read.residual_multiplier), (12.0, 0.22));
    assert_error(&with(granite, "num_local_experts", json!(7)), "`num_experts_per_tok` is 8");

    let scale = ("residual_scale", Gguf::F32(0.25));
    let shared = ("expert_shared_feed_forward_length", Gguf::U32(64));
    let of_gguf = gguf("granitemoe", &[scale, shared]);
    let wanted = Experts { shared_intermediate_size: Some(64), ..Experts::new(8, 2, 1536) };
    assert_eq!((of_gguf.experts, of_gguf.residual_multiplier), (Some(wanted), 0.25));
}
