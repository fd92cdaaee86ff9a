//! Gemma 4: its real configurations, as published and as transformers saves them, and in GGUF.

use super::gguf::{read as read_gguf, rejected, with as gguf_with};
use super::hf::{assert_error, read};
use super::{real, windows_of};
use crate::model::config::{Config, Family, KvSource, NormPlacement, PerLayerInputs, QkNorm};
use crate::model::rope::RopeScaling;
use crate::plan::KvHeads;
use crate::weights::gguf::Value as Gguf;
use gpu_types::Activation;
use serde_json::{Value, json};

fn heads(num_kv_heads: usize, head_dim: usize) -> KvHeads {
    KvHeads { num_kv_heads, head_dim }
}

/// The text of `name` with these fields instead.
fn text_of(mut json: Value, more: Value) -> Value {
    let text = json["text_config"].as_object_mut().unwrap();
    text.extend(more.as_object().unwrap().clone());
    json
}

/// The layers that have keys and values of their own.
fn cached(config: &Config) -> Vec<usize> {
    config.cached_layers().collect()
}

#[test]
fn e4b_shares_keys_and_has_inputs_of_layers() {
    let e4b = read(&real!("gemma-4-e4b"));
    assert_eq!((e4b.family, e4b.num_layers(), e4b.num_heads), (Family::Gemma4, 42, 8));
    assert_eq!((e4b.softmax_scale, e4b.logits_softcap), (1.0, Some(30.0)));
    assert_eq!((e4b.qk_norm, e4b.norms), (Some(QkNorm::PerHead), NormPlacement::Around));
    assert_eq!((e4b.activation, e4b.embedding_multiplier), (Activation::GeluTanh, 2560f64.sqrt()));
    assert!(e4b.norms_values && e4b.scales_layers && e4b.tie_word_embeddings);
    assert_eq!(e4b.per_layer_inputs, Some(PerLayerInputs { vocab_size: 262_144, width: 256 }));
    let windows: Vec<_> = (1..=42).map(|layer| (layer % 6 != 0).then_some(512)).collect();
    assert_eq!(windows_of(&e4b), windows);
    assert_eq!((e4b.heads(4), e4b.heads(5)), (heads(2, 256), heads(2, 512)));
    assert_eq!(cached(&e4b), (0..24).collect::<Vec<_>>());
    for layer in 24..42 {
        let source = if layer % 6 == 5 { 23 } else { 22 };
        assert_eq!(e4b.layers[layer].kv, KvSource::Layer(source), "{layer}");
        assert_eq!(e4b.heads(layer), e4b.heads(source));
        assert_eq!(e4b.intermediate_size_of(layer), 10240);
    }
    let wide = read(&text_of(real!("gemma-4-e4b"), json!({"use_double_wide_mlp": true})));
    assert_eq!([23, 24].map(|layer| wide.intermediate_size_of(layer)), [10240, 20480]);

    let [local, global] = [&e4b.ropes[0], &e4b.ropes[1]];
    assert_eq!((local.theta, local.rotary_dim, &local.scaling), (1e4, 256, &RopeScaling::None));
    assert_eq!((global.theta, global.rotary_dim), (1e6, 512));
    // Of transformers' `_compute_proportional_rope_parameters`: 64 frequencies, then zeros.
    let frequencies = global.inv_freq(1);
    for (i, frequency) in frequencies.iter().enumerate() {
        let wanted = if i < 64 { 1e6f64.powf(-2.0 * i as f64 / 512.0) } else { 0.0 };
        assert!((f64::from(*frequency) - wanted).abs() < 1e-7 * wanted + 1e-25, "{i}: {frequency}");
    }
}

#[test]
fn a4b_joins_values_and_has_experts_beside_its_mlp() {
    let json = real!("gemma-4-26b-a4b");
    let a4b = read(&json);
    let experts = a4b.experts.unwrap();
    assert_eq!((experts.num_experts, experts.top_k, experts.intermediate_size), (128, 8, 704));
    assert!(experts.beside_mlp && experts.normalise && a4b.has_dense_layers());
    assert_eq!((a4b.intermediate_size, a4b.per_layer_inputs), (2112, None));
    assert_eq!((a4b.heads(4), a4b.heads(5)), (heads(8, 256), heads(2, 512)));
    assert_eq!([4, 5].map(|layer| a4b.layers[layer].kv), [KvSource::Own, KvSource::Joint]);
    assert_eq!(cached(&a4b).len(), 30);
    assert!(!a4b.overflows_f16());

    // As transformers saves it: by layer, in the place of fields of its kind.
    let by_layer: serde_json::Map<String, Value> = (5..30)
        .step_by(6)
        .map(|layer| (layer.to_string(), json!({"head_dim": 512, "num_key_value_heads": 2})))
        .collect();
    let mut saved = text_of(json.clone(), json!({ "per_layer_config": by_layer }));
    let text = saved["text_config"].as_object_mut().unwrap();
    assert!(text.remove("global_head_dim").is_some());
    assert!(text.remove("num_global_key_value_heads").is_some());
    assert_eq!(read(&saved), a4b);
    // What the class has where the fields are left out; heads of its kind are those of joint
    // values.
    let mut bare = text_of(json.clone(), json!({"rope_parameters": null, "layer_types": null}));
    assert!(bare["text_config"].as_object_mut().unwrap().remove("global_head_dim").is_some());
    assert_eq!(read(&bare), a4b);
    let own = read(&text_of(json, json!({"attention_k_eq_v": false})));
    assert_eq!((own.heads(5), own.layers[5].kv), (heads(8, 512), KvSource::Own));
}

/// The class of 12B has none.
#[test]
fn the_unified_text_has_no_inputs_of_layers() {
    let more = json!({"model_type": "gemma4_unified_text", "hidden_size_per_layer_input": 256});
    let mut json = text_of(real!("gemma-4-26b-a4b"), more);
    json["model_type"] = "gemma4_unified".into();
    let text = json["text_config"].as_object_mut().unwrap();
    text.remove("hidden_size_per_layer_input");
    text.remove("enable_moe_block");
    let unified = read(&json);
    assert_eq!((unified.per_layer_inputs, unified.experts), (None, None));
    json["text_config"]["model_type"] = "gemma4_text".into();
    assert_eq!(read(&json).per_layer_inputs.unwrap().width, 256);
}

#[test]
fn the_last_layer_has_no_window_and_errors_name_the_field() {
    let with = |more: Value| text_of(real!("gemma-4-e4b"), more);
    let slides = json!({"layer_types": vec!["sliding_attention"; 42], "num_kv_shared_layers": 0});
    let config = read(&with(slides));
    assert_eq!([40, 41].map(|layer| config.layers[layer].window), [Some(512), None]);
    assert_eq!(config.heads(41), heads(2, 512));
    for (more, expected) in [
        (json!({"num_kv_shared_layers": 42}), "there are 42 layers"),
        (json!({"num_kv_shared_layers": 37}), "none of each kind"),
        (json!({"use_bidirectional_attention": "all"}), "null or vision"),
        (json!({"global_head_dim": 514}), "from 2 to 512"),
        (json!({"global_head_dim": 511}), "must be even"),
        (json!({"attention_k_eq_v": true, "num_global_key_value_heads": 3}), "divide the 8"),
        (json!({"per_layer_config": {"41": 3}}), "object is needed"),
        (json!({"enable_moe_block": true}), "no `text_config.num_experts`"),
        (json!({"hidden_size_per_layer_input": -1}), "hidden_size_per_layer_input"),
    ] {
        assert_error(&with(more), expected);
    }
}

#[test]
fn gguf_has_sizes_of_each_layer() {
    let counts = |of: [u32; 3]| Gguf::Array(of.map(Gguf::U32).to_vec());
    let slides = Gguf::Array([true, false, false].map(Gguf::Bool).to_vec());
    let keys = [
        ("block_count", Gguf::U32(3)),
        ("attention.head_count", Gguf::U32(9)),
        ("attention.head_count_kv", counts([9, 3, 3])),
        ("feed_forward_length", counts([64, 64, 128])),
        ("attention.key_length", Gguf::U32(64)),
        ("attention.value_length", Gguf::U32(64)),
        ("attention.key_length_swa", Gguf::U32(32)),
        ("attention.sliding_window", Gguf::U32(512)),
        ("attention.sliding_window_pattern", slides),
        ("attention.shared_kv_layers", Gguf::U32(1)),
        ("rope.dimension_count", Gguf::U32(64)),
    ];
    let with = |key: &str, value: Gguf| {
        let more: Vec<_> = keys.iter().filter(|(known, _)| *known != key).cloned().collect();
        gguf_with("gemma4", &[&more[..], &[(key, value)]].concat())
    };
    let tensors: [(&'static str, &[usize]); 1] = [("blk.1.attn_v.weight", &[192, 576])];
    let as_it_is = with("block_count", Gguf::U32(3));
    let config = read_gguf(&as_it_is, &tensors);
    assert_eq!((config.heads(0), config.heads(1)), (heads(9, 32), heads(3, 64)));
    let sources = [KvSource::Own, KvSource::Own, KvSource::Layer(1)];
    assert_eq!([0, 1, 2].map(|layer| config.layers[layer].kv), sources);
    assert_eq!([0, 1, 2].map(|layer| config.intermediate_size_of(layer)), [64, 64, 128]);
    assert_eq!((config.softmax_scale, config.logits_softcap), (1.0, None));
    assert_eq!(config.ropes.iter().map(|rope| rope.rotary_dim).collect::<Vec<_>>(), [32, 64]);
    assert_eq!(read_gguf(&as_it_is, &[]).layers[1].kv, KvSource::Joint, "without values");
    let key = "embedding_length_per_layer_input";
    assert!(rejected(&with(key, Gguf::U32(16))).contains("per_layer_token_embd"));
    let wrong = rejected(&with("attention.head_count_kv", counts([9, 0, 3])));
    assert!(wrong.contains("one of each of 3 layers"), "{wrong}");
    let wrong = rejected(&with("feed_forward_length", Gguf::Array(vec![Gguf::U32(8); 2])));
    assert!(wrong.contains("one of each of 3 layers"), "{wrong}");
}
