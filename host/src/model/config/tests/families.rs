//! The small dense families: their real configurations, in config.json and in GGUF.

use super::gguf::{read as read_gguf, rejected, with as gguf_with};
use super::hf::{assert_error, read, with, without};
use super::{real, windows_of};
use crate::model::config::{Config, LayerConfig, NormPlacement, QkNorm, QueryScaling};
use crate::model::rope::RopeScaling;
use crate::weights::gguf::Value as Gguf;
use serde_json::{Value, json};

/// Which rotary embedding each layer has.
fn ropes_of(config: &Config) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.rope).collect()
}

/// `most` for three of four layers, then `last`.
fn of_four<T: Copy>(most: T, last: T, num_layers: usize) -> Vec<T> {
    [most, most, most, last].repeat(num_layers / 4)
}

#[test]
fn granite_has_multipliers() {
    let granite = read(&real!("granite-3.3-8b"));
    let multipliers = |config: &Config| {
        let Config { embedding_multiplier, residual_multiplier, .. } = *config;
        (embedding_multiplier, residual_multiplier, config.softmax_scale, config.logits_scaling)
    };
    assert_eq!(multipliers(&granite), (12.0, 0.22, 1.0 / 128.0, 16.0));
    assert_eq!((granite.head_dim, granite.vocab_size), (128, 49159));
    assert!(granite.tie_word_embeddings && !granite.qkv_bias && granite.query_scaling.is_none());
    let biased = with(real!("granite-3.3-8b"), "attention_bias", json!(true));
    let biased = read(&with(biased, "mlp_bias", json!(true)));
    assert!(biased.qkv_bias && biased.attention_out_bias && biased.mlp_bias);

    let fields =
        ["embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"];
    let plain = fields.iter().fold(real!("granite-3.3-8b"), |json, field| without(json, field));
    assert_eq!(multipliers(&read(&plain)), (1.0, 1.0, 1.0, 1.0), "the class's");
    for field in fields {
        for wrong in [json!(0.0), json!(-12.0), json!(1e-30), json!(1e30), json!("12")] {
            assert_error(&with(real!("granite-3.3-8b"), field, wrong), field);
        }
    }

    let keys = [
        ("attention.scale", Gguf::F32(1.0 / 64.0)),
        ("embedding_scale", Gguf::F32(12.0)),
        ("residual_scale", Gguf::F32(0.25)),
        ("logit_scale", Gguf::F32(8.0)),
    ];
    let gguf = read_gguf(&gguf_with("granite", &keys), &[]);
    assert_eq!(multipliers(&gguf), (12.0, 0.25, 1.0 / 64.0, 8.0));
    let zeros = keys.clone().map(|(key, _)| (key, Gguf::F32(0.0)));
    for plain in [&zeros[..], &[]] {
        let plain = read_gguf(&gguf_with("granite", plain), &[]);
        assert_eq!(multipliers(&plain), (1.0, 1.0, 0.125, 1.0), "none");
    }
    let llama = read_gguf(&gguf_with("llama", &keys), &[]);
    assert_eq!(multipliers(&llama), (1.0, 1.0, 0.125, 1.0), "llama has none");
    for wrong in [-1.0, 1e-30, f32::NAN, f32::INFINITY] {
        let error = rejected(&gguf_with("granite", &[("residual_scale", Gguf::F32(wrong))]));
        assert!(error.contains("`granite.residual_scale` is"), "{error}");
    }
    let unrotated = [("rope.scaling.finetuned", Gguf::Bool(false))];
    assert_eq!(ropes_of(&read_gguf(&gguf_with("granite", &unrotated), &[])), [None; 30]);
}

#[test]
fn smollm3_rotates_all_but_every_fourth_layer() {
    let smollm3 = read(&real!("smollm3-3b"));
    assert_eq!((smollm3.head_dim, smollm3.num_kv_heads), (128, 4));
    assert!(smollm3.tie_word_embeddings, "the class's default");
    assert_eq!(ropes_of(&smollm3), of_four(Some(0), None, 36));
    assert_eq!(windows_of(&smollm3), [None; 36]);
    assert_eq!((smollm3.ropes.len(), smollm3.ropes[0].theta), (1, 5e6));

    let by_interval = without(real!("smollm3-3b"), "no_rope_layers");
    assert_eq!(read(&by_interval).layers, smollm3.layers);
    let none = without(by_interval.clone(), "no_rope_layer_interval");
    assert_eq!(read(&none).layers, smollm3.layers);
    let every_second = read(&with(by_interval.clone(), "no_rope_layer_interval", json!(2)));
    assert_eq!(ropes_of(&every_second), [Some(0), None].repeat(18));
    assert_eq!(read(&without(real!("smollm3-3b"), "rope_theta")).ropes[0].theta, 2e6);
    let longer = with(real!("smollm3-3b"), "no_rope_layers", json!(vec![0; 40]));
    assert_eq!((ropes_of(&read(&longer)), read(&longer).ropes.len()), (vec![None; 36], 0));

    // Without layer types, layers have either a window or RoPE.
    let windowed = without(real!("smollm3-3b"), "layer_types");
    let windowed = with(windowed, "use_sliding_window", json!(true));
    let windowed = read(&with(windowed, "sliding_window", json!(512)));
    assert_eq!(windows_of(&windowed), of_four(None, Some(512), 36));

    for (field, value, expected) in [
        ("no_rope_layers", json!(vec![1; 35]), "36 layers are needed"),
        ("no_rope_layers", json!(["1"]), "a list of flags"),
        ("no_rope_layer_interval", json!(0), "`no_rope_layer_interval` is 0"),
    ] {
        let json =
            if field == "no_rope_layers" { real!("smollm3-3b") } else { by_interval.clone() };
        assert_error(&with(json, field, value), expected);
    }
    let gguf = read_gguf(&gguf_with("smollm3", &[]), &[]);
    assert_eq!(ropes_of(&gguf)[..8], of_four(Some(0), None, 8));
}

#[test]
fn olmo_scales_full_attention_alone() {
    let olmo3 = read(&real!("olmo-3-7b"));
    assert_eq!((olmo3.norms, olmo3.qk_norm), (NormPlacement::After, Some(QkNorm::AllHeads)));
    assert_eq!(windows_of(&olmo3), of_four(Some(4096), None, 32));
    assert_eq!(ropes_of(&olmo3), of_four(Some(0), Some(1), 32));
    let [sliding, full] = &olmo3.ropes[..] else { panic!("{:?}", olmo3.ropes) };
    assert_eq!((sliding.theta, &sliding.scaling), (5e5, &RopeScaling::None));
    let RopeScaling::Yarn { factor, attention_factor, .. } = full.scaling else { panic!("YaRN") };
    assert_eq!((full.theta, factor, attention_factor), (5e5, 8.0, 1.2079441541679836));

    let bare = ["layer_types", "sliding_window", "rope_theta"];
    let bare = bare.iter().fold(real!("olmo-3-7b"), |json, field| without(json, field));
    assert_eq!(read(&bare), olmo3, "the class's");
    let mut nested = without(without(real!("olmo-3-7b"), "rope_theta"), "rope_scaling");
    let mut of_full = real!("olmo-3-7b")["rope_scaling"].clone();
    of_full["rope_theta"] = json!(5e5);
    let of_sliding = json!({"rope_type": "default", "rope_theta": 5e5});
    nested["rope_parameters"] = json!({"full_attention": of_full, "sliding_attention": of_sliding});
    assert_eq!(read(&nested), olmo3);

    let olmo2 =
        read(&without(with(real!("olmo-3-7b"), "model_type", json!("olmo2")), "rope_scaling"));
    assert_eq!((olmo2.norms, olmo2.qk_norm), (NormPlacement::After, Some(QkNorm::AllHeads)));
    assert_eq!(olmo2.layers, [LayerConfig { rope: Some(0), ..LayerConfig::default() }; 32]);
}

#[test]
fn olmo_lists_its_windows_in_gguf() {
    let yarn = [
        ("attention.sliding_window", Gguf::U32(4096)),
        ("rope.scaling.type", Gguf::String("yarn".into())),
        ("rope.scaling.factor", Gguf::F32(8.0)),
        ("rope.scaling.original_context_length", Gguf::U32(8192)),
    ];
    let read_with =
        |more: &[(&str, Gguf)]| read_gguf(&gguf_with("olmo2", &[&yarn[..], more].concat()), &[]);
    let every_fourth = read_with(&[]);
    assert_eq!(windows_of(&every_fourth)[..8], of_four(Some(4096), None, 8));
    assert_eq!(ropes_of(&every_fourth)[..8], of_four(Some(0), Some(1), 8));
    assert_eq!(every_fourth.ropes[0].scaling, RopeScaling::None);
    assert!(matches!(every_fourth.ropes[1].scaling, RopeScaling::Yarn { factor: 8.0, .. }));
    assert_eq!(
        (every_fourth.norms, every_fourth.qk_norm),
        (NormPlacement::After, Some(QkNorm::AllHeads))
    );

    const PATTERN: &str = "attention.sliding_window_pattern";
    let every_second = read_with(&[(PATTERN, Gguf::U32(2))]);
    assert_eq!(windows_of(&every_second), [Some(4096), None].repeat(15));
    let list = |len| (PATTERN, Gguf::Array((0..len).map(|i| Gguf::Bool(i == 3)).collect()));
    let fourth = windows_of(&read_with(&[list(30)]));
    assert_eq!((fourth[3], fourth.iter().flatten().count()), (Some(4096), 1));
    let theta = read_with(&[("rope.freq_base_swa", Gguf::F32(1e4))]);
    assert_eq!((theta.ropes[0].theta, theta.ropes[1].theta), (1e4, 1e5));

    let olmo2 = read_gguf(&gguf_with("olmo2", &[]), &[]);
    assert_eq!(olmo2.layers, [LayerConfig { rope: Some(0), ..LayerConfig::default() }; 30]);

    for wrong in [list(29), (PATTERN, Gguf::Array(vec![])), (PATTERN, Gguf::U32(0))] {
        let error = rejected(&gguf_with("olmo2", &[&yarn[..], &[wrong]].concat()));
        assert!(error.contains("`olmo2.attention.sliding_window_pattern` is"), "{error}");
    }
}

#[test]
fn ministral3_scales_queries() {
    let ministral3 = read(&real!("ministral-3-8b"));
    let scaling = QueryScaling { beta: 0.1, original_max_position_embeddings: 16384 };
    assert_eq!(ministral3.query_scaling, Some(scaling));
    assert_eq!([0, 16383].map(|position| scaling.factor(position)), [1.0; 2]);
    assert!((scaling.factor(3 * 16384) - (1.0 + 0.1 * 4f64.ln())).abs() < 1e-15);
    let RopeScaling::Yarn { attention_factor, .. } = ministral3.ropes[0].scaling else {
        panic!("YaRN")
    };
    assert_eq!(attention_factor, 1.0, "the two mscales are alike");

    // As it is published: the language model of one that takes images.
    let nested = |text: Value| json!({"model_type": "mistral3", "text_config": text});
    assert_eq!(read(&nested(real!("ministral-3-8b"))), ministral3);
    let open = read(&nested(without(real!("ministral-3-8b"), "tie_word_embeddings")));
    assert!(open.tie_word_embeddings, "the default of the whole model");
    assert_error(&json!({"model_type": "mistral3", "text_config": 3}), "an object is needed");
    assert_error(&nested(json!({"model_type": "mamba"})), "unknown model family `mamba`");
    let unscaled = without(real!("ministral-3-8b"), "rope_parameters");
    assert_error(&unscaled, "no `rope_parameters`");

    let with_beta = |beta: Value| {
        let mut json = real!("ministral-3-8b");
        json["rope_parameters"]["llama_4_scaling_beta"] = beta;
        json
    };
    for none in [json!(null), json!(0)] {
        assert_eq!(read(&with_beta(none)).query_scaling, None);
    }
    assert_error(&with_beta(json!(-0.1)), "llama_4_scaling_beta");

    let keys = [
        ("attention.temperature_scale", Gguf::F32(0.25)),
        ("rope.scaling.type", Gguf::String("yarn".into())),
        ("rope.scaling.factor", Gguf::F32(16.0)),
        ("rope.scaling.original_context_length", Gguf::U32(512)),
        ("rope.scaling.yarn_log_multiplier", Gguf::F32(1.0)),
    ];
    let gguf = read_gguf(&gguf_with("mistral3", &keys), &[]);
    let scaling = QueryScaling { beta: 0.25, original_max_position_embeddings: 512 };
    assert_eq!(gguf.query_scaling, Some(scaling));
    let attention_factor = |config: &Config| match config.ropes[0].scaling {
        RopeScaling::Yarn { attention_factor, .. } => attention_factor,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(attention_factor(&gguf), 1.0);
    let plain = read_gguf(&gguf_with("mistral3", &keys[1..4]), &[]);
    assert_eq!((attention_factor(&plain), plain.query_scaling), (0.1 * 16f64.ln() + 1.0, None));
}
