//! Gemma 2 and 3: their real configurations, in config.json and in GGUF.

use super::gguf::{read as read_gguf, rejected, with as gguf_with};
use super::hf::{assert_error, read, with, without};
use super::{real, windows_of};
use crate::model::config::{Config, Family, NormPlacement, QkNorm};
use crate::model::rope::{Rope, RopeScaling};
use crate::weights::gguf::Value as Gguf;
use gpu_types::Activation;
use serde_json::{Value, json};

/// `window` in all layers but the last of every `period`.
fn windows(window: usize, period: usize, num_layers: usize) -> Vec<Option<usize>> {
    (1..=num_layers).map(|layer| (layer % period != 0).then_some(window)).collect()
}

fn caps(config: &Config) -> [Option<f64>; 2] {
    [config.attention_softcap, config.logits_softcap]
}

/// The rotary embeddings of layers with a window, and of those without.
fn ropes(config: &Config) -> [&Rope; 2] {
    [true, false].map(|slides| {
        let mut layers = config.layers.iter();
        let layer = layers.find(|layer| layer.window.is_some() == slides).unwrap();
        &config.ropes[layer.rope.unwrap()]
    })
}

fn rope(theta: f64, scaling: RopeScaling) -> Rope {
    Rope { theta, rotary_dim: 256, scaling }
}

/// Published Gemma 3 leaves most of its sizes to its class.
#[test]
fn gemma3_is_the_text_of_one_that_takes_images() {
    let gemma = read(&real!("gemma-3-4b"));
    assert_eq!((gemma.family, gemma.num_layers()), (Family::Gemma3, 34));
    assert_eq!(
        (gemma.vocab_size, gemma.hidden_size, gemma.intermediate_size),
        (262_208, 2560, 10240)
    );
    assert_eq!((gemma.num_heads, gemma.num_kv_heads, gemma.head_dim), (8, 4, 256));
    assert_eq!(gemma.max_position_embeddings, 131_072);
    assert_eq!((gemma.qk_norm, gemma.norms), (Some(QkNorm::PerHead), NormPlacement::Around));
    assert_eq!((gemma.activation, gemma.softmax_scale), (Activation::GeluTanh, 0.0625));
    assert_eq!(gemma.embedding_multiplier, 2560f64.sqrt());
    assert!(gemma.rounds_embedding_multiplier && gemma.tie_word_embeddings);
    assert!(gemma.overflows_f16() && !gemma.qkv_bias && !gemma.attention_out_bias);
    assert_eq!((windows_of(&gemma), caps(&gemma)), (windows(1024, 6, 34), [None; 2]));
    let scaled = rope(1e6, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(ropes(&gemma), [&rope(1e4, RopeScaling::None), &scaled]);

    let text = |more: Value| {
        let mut json = real!("gemma-3-4b");
        let text = json["text_config"].as_object_mut().unwrap();
        text.extend(more.as_object().unwrap().clone());
        json
    };
    assert_eq!(read(&text(json!({"model_type": null}))), gemma, "its class is always the same");
    assert_error(&text(json!({"num_attention_heads": 0})), "num_attention_heads");
    assert!(!read(&text(json!({"use_bidirectional_attention": true}))).is_causal);
    assert_error(&text(json!({"final_logit_softcapping": -1.0})), "final_logit_softcapping");
    assert_error(&text(json!({"query_pre_attn_scalar": 0})), "query_pre_attn_scalar");
    assert_error(&text(json!({"hidden_activation": "gelu"})), "gelu_pytorch_tanh");
    let capped = text(json!({"final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}));
    assert_eq!(caps(&read(&capped)), [None, Some(30.0)], "the class reads one");
    let larger = read(&text(json!({"query_pre_attn_scalar": 168})));
    assert_eq!(larger.softmax_scale, 168f64.powf(-0.5));
}

/// What says which layers have a window, and what rotates them.
#[test]
fn gemma3_has_a_rope_for_each_kind_of_layer() {
    let flat = |more: Value| {
        let mut json = json!({
            "model_type": "gemma3_text", "head_dim": 256, "num_hidden_layers": 4,
            "sliding_window": 512
        });
        json.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json
    };
    let default = rope(1e6, RopeScaling::None);
    let period = read(&flat(json!({"sliding_window_pattern": 2})));
    assert_eq!(windows_of(&period), windows(512, 2, 4));
    assert_eq!(ropes(&period), [&rope(1e4, RopeScaling::None), &default]);
    assert_error(&flat(json!({"sliding_window_pattern": 0})), "sliding_window_pattern");
    let types = json!(["full_attention", "sliding_attention", "full_attention", "full_attention"]);
    let listed = json!({"layer_types": types, "sliding_window_pattern": 2});
    assert_eq!(windows_of(&read(&flat(listed))), [None, Some(512), None, None]);
    let bases =
        json!({"rope_theta": 5e5, "rope_local_base_freq": 2e4, "sliding_window_pattern": 2});
    let bases = read(&flat(bases));
    assert_eq!(ropes(&bases), [&rope(2e4, RopeScaling::None), &rope(5e5, RopeScaling::None)]);

    let nested = |full: Value, sliding: Value| {
        let parameters = json!({"full_attention": full, "sliding_attention": sliding});
        read(&flat(json!({"rope_parameters": parameters, "sliding_window_pattern": 2})))
    };
    let linear = json!({"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6});
    let of_both = nested(linear, json!({"rope_type": "default", "rope_theta": 3e4}));
    let scaled = rope(2e6, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(ropes(&of_both), [&rope(3e4, RopeScaling::None), &scaled]);
    let of_class = nested(json!({"rope_type": "default"}), json!(null));
    assert_eq!(ropes(&of_class), [&rope(1e4, RopeScaling::None), &default]);
}

#[test]
fn gemma2_has_caps() {
    let gemma = read(&real!("gemma-2-9b"));
    assert_eq!((gemma.family, gemma.num_layers(), gemma.head_dim), (Family::Gemma2, 42, 256));
    assert_eq!((gemma.qk_norm, gemma.norms), (None, NormPlacement::Around));
    assert_eq!((caps(&gemma), gemma.softmax_scale), ([Some(50.0), Some(30.0)], 0.0625));
    assert_eq!(
        (windows_of(&gemma), gemma.activation),
        (windows(4096, 2, 42), Activation::GeluTanh)
    );
    assert_eq!(gemma.ropes, [rope(1e4, RopeScaling::None)]);
    assert!(gemma.tie_word_embeddings && !gemma.overflows_f16());
    let fields = ["attn_logit_softcapping", "final_logit_softcapping"];
    let without = |json, field: &str| without(json, field);
    let class = fields.iter().fold(real!("gemma-2-9b"), |json, field| without(json, field));
    assert_eq!(caps(&read(&class)), caps(&gemma), "the class's");
    let none =
        fields.iter().fold(real!("gemma-2-9b"), |json, field| with(json, field, json!(null)));
    assert_eq!(caps(&read(&none)), [None; 2]);
    for (field, wrong) in fields.iter().flat_map(|field| [0.0, -30.0].map(|cap| (field, cap))) {
        assert_error(&with(real!("gemma-2-9b"), field, json!(wrong)), field);
    }
}

#[test]
fn gguf_knows_gemma_by_its_architecture() {
    let length = ("attention.key_length", Gguf::U32(64));
    let window = ("attention.sliding_window", Gguf::U32(512));
    let with = |architecture: &str, more: &[(&str, Gguf)]| {
        read_gguf(&gguf_with(architecture, &[std::slice::from_ref(&length), more].concat()), &[])
    };
    let gemma2 = with("gemma2", &[]);
    assert_eq!(
        (windows_of(&gemma2), caps(&gemma2)),
        (windows(4096, 2, 30), [Some(50.0), Some(30.0)])
    );
    assert_eq!((gemma2.activation, gemma2.softmax_scale), (Activation::GeluTanh, 0.125));
    assert_eq!((gemma2.embedding_multiplier, gemma2.norms), (24.0, NormPlacement::Around));
    let caps_of = |cap: f32| {
        ["attn_logit_softcapping", "final_logit_softcapping"].map(|key| (key, Gguf::F32(cap)))
    };
    assert_eq!(caps(&with("gemma2", &caps_of(2.0))), [Some(2.0); 2]);
    assert_eq!(caps(&with("gemma2", &caps_of(0.0))), [None; 2]);
    assert!(rejected(&gguf_with("gemma2", &caps_of(-1.0))).contains("softcapping"));
    let large = [("block_count", Gguf::U32(46))];
    assert_eq!(with("gemma2", &large).softmax_scale, (576f64 / 9.0).powf(-0.5));

    let gemma3 = with("gemma3", std::slice::from_ref(&window));
    assert_eq!((windows_of(&gemma3), caps(&gemma3)), (windows(512, 6, 30), [None; 2]));
    assert_eq!(gemma3.qk_norm, Some(QkNorm::PerHead));
    assert_eq!(ropes(&gemma3).map(|rope| rope.theta), [1e4, 1e5]);
    let large = [("block_count", Gguf::U32(62)), ("embedding_length", Gguf::U32(1152))];
    let large = [&large[..], &[("attention.sliding_window_pattern", Gguf::U32(3))]].concat();
    let scaled = [
        ("rope.scaling.type", Gguf::String("linear".into())),
        ("rope.scaling.factor", Gguf::F32(8.0)),
    ];
    let local = [("rope.freq_base_swa", Gguf::F32(2e4)), window.clone()];
    // The embedding of the file has 576 columns; nothing compares them here.
    let gemma3 = with("gemma3", &[&large[..], &scaled, &local].concat());
    assert_eq!(gemma3.softmax_scale, (1152f64 / 9.0).powf(-0.5));
    assert_eq!(windows_of(&gemma3), windows(512, 3, 62));
    assert_eq!(ropes(&gemma3)[0].scaling, RopeScaling::None);
    assert_eq!(ropes(&gemma3)[1].scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(ropes(&gemma3).map(|rope| rope.theta), [2e4, 1e5]);
    let own = [("attention.scale", Gguf::F32(0.25)), window];
    assert_eq!(with("gemma3", &own).softmax_scale, 0.25);
}
