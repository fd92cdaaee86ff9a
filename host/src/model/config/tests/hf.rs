use super::windows_of;
use crate::model::config::{Config, ConfigError, Family, QkNorm};
use crate::model::rope::RopeScaling;
use serde_json::{Value, json};

fn llama_3_2_1b() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
        "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
        "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3"
        },
        "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256
    })
}

fn mistral_7b_v0_3() -> Value {
    json!({
        "architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": null,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32768
    })
}

fn qwen2_5_0_5b() -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
        "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
        "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
        "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936
    })
}

fn qwen3_0_6b() -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "head_dim": 128,
        "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
        "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
        "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
        "vocab_size": 151936
    })
}

fn phi_3_mini_4k() -> Value {
    json!({
        "architectures": ["Phi3ForCausalLM"], "attention_bias": false, "embd_pdrop": 0.0,
        "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192,
        "max_position_embeddings": 4096, "model_type": "phi3", "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 32,
        "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_scaling": null,
        "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": false,
        "vocab_size": 32064
    })
}

fn phi_3_mini_128k() -> Value {
    let factors = |step: f64| (0..48).map(|i| 1.0 + step * f64::from(i)).collect::<Vec<_>>();
    let mut config = phi_3_mini_4k();
    config["max_position_embeddings"] = json!(131072);
    config["sliding_window"] = json!(262144);
    config["rope_scaling"] =
        json!({"type": "su", "short_factor": factors(0.02), "long_factor": factors(1.25)});
    config
}

fn smollm2_135m() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu",
        "hidden_size": 576, "intermediate_size": 1536, "is_llama_config": true,
        "max_position_embeddings": 8192, "mlp_bias": false, "model_type": "llama",
        "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": false,
        "rope_scaling": null, "rope_theta": 100000, "tie_word_embeddings": true,
        "vocab_size": 49152
    })
}

pub fn read(json: &Value) -> Config {
    Config::from_hf(json).unwrap_or_else(|error| panic!("{error}"))
}

/// `json` with `field` set to `value`.
pub fn with(mut json: Value, field: &str, value: Value) -> Value {
    json[field] = value;
    json
}

pub fn without(mut json: Value, field: &str) -> Value {
    json.as_object_mut().unwrap().remove(field);
    json
}

#[test]
fn reads_real_models() {
    let llama = read(&llama_3_2_1b());
    assert_eq!((llama.family, llama.num_layers(), llama.head_dim), (Family::Llama, 16, 64));
    assert!(llama.tie_word_embeddings && !llama.qkv_bias && llama.qk_norm.is_none());
    let scaling = RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    assert_eq!((llama.ropes[0].theta, &llama.ropes[0].scaling), (500_000.0, &scaling));

    let mistral = read(&mistral_7b_v0_3());
    assert_eq!((mistral.head_dim, mistral.num_kv_heads), (128, 8));
    assert_eq!(windows_of(&mistral), [None; 32]);

    let qwen2 = read(&qwen2_5_0_5b());
    assert_eq!((qwen2.head_dim, qwen2.num_heads, qwen2.num_kv_heads), (64, 14, 2));
    assert!(qwen2.qkv_bias && !qwen2.attention_out_bias);
    assert_eq!(windows_of(&qwen2), [None; 24]);

    let qwen3 = read(&qwen3_0_6b());
    assert_eq!((qwen3.head_dim, qwen3.hidden_size, qwen3.rms_norm_eps), (128, 1024, 1e-6));
    assert!(qwen3.qk_norm == Some(QkNorm::PerHead) && !qwen3.qkv_bias);
    assert_eq!((qwen3.ropes[0].theta, qwen3.ropes[0].rotary_dim), (1e6, 128));

    let phi3 = read(&phi_3_mini_4k());
    assert_eq!((phi3.head_dim, &phi3.ropes[0].scaling), (96, &RopeScaling::None));
    assert_eq!(windows_of(&phi3), [Some(2047); 32]);

    let RopeScaling::LongRope {
        attention_factor,
        original_max_position_embeddings,
        short_factor,
        long_factor,
    } = read(&phi_3_mini_128k()).ropes[0].scaling.clone()
    else {
        panic!("`su` is LongRoPE")
    };
    assert_eq!((original_max_position_embeddings, short_factor.len()), (4096, 48));
    assert_eq!(long_factor[1], 2.25);
    assert!((attention_factor - 1.1902380714238083).abs() < 1e-12);

    let smollm2 = read(&smollm2_135m());
    assert_eq!((smollm2.num_heads, smollm2.num_kv_heads, smollm2.head_dim), (9, 3, 64));
    assert_eq!(smollm2.ropes[0].theta, 100_000.0);
}

#[test]
fn defaults_are_those_of_the_config_classes() {
    let mistral = without(mistral_7b_v0_3(), "sliding_window");
    assert_eq!(windows_of(&read(&mistral)), [Some(4096); 32]);
    assert_eq!(read(&without(mistral, "num_key_value_heads")).num_kv_heads, 8);
    let null = with(mistral_7b_v0_3(), "num_key_value_heads", Value::Null);
    assert_eq!(read(&null).num_kv_heads, 32);
    assert_eq!(read(&without(llama_3_2_1b(), "num_key_value_heads")).num_kv_heads, 32);
    assert_eq!(read(&without(qwen3_0_6b(), "head_dim")).head_dim, 128);
    assert_eq!(read(&without(phi_3_mini_4k(), "rms_norm_eps")).rms_norm_eps, 1e-5);
    assert_eq!(read(&without(llama_3_2_1b(), "rms_norm_eps")).rms_norm_eps, 1e-6);
    assert!(!read(&without(llama_3_2_1b(), "tie_word_embeddings")).tie_word_embeddings);
    assert_eq!(read(&without(phi_3_mini_4k(), "rope_theta")).ropes[0].theta, 10_000.0);
    assert_eq!(windows_of(&read(&without(phi_3_mini_4k(), "sliding_window"))), [None; 32]);
    assert_eq!(read(&without(qwen2_5_0_5b(), "hidden_act")), read(&qwen2_5_0_5b()));
}

#[test]
fn windows_come_from_layers() {
    let config = with(qwen2_5_0_5b(), "use_sliding_window", json!(true));
    let last_four = with(config.clone(), "max_window_layers", json!(20));
    let windows = windows_of(&read(&last_four));
    assert_eq!((windows[19], windows[20]), (None, Some(32768)));

    let mut layer_types = vec!["full_attention"; 24];
    layer_types[3] = "sliding_attention";
    let typed = with(config, "layer_types", json!(layer_types));
    let windows = windows_of(&read(&typed));
    assert_eq!((windows[3], windows.iter().flatten().count()), (Some(32768), 1));

    // transformers 5.17 loads Mistral with layer types as Ministral.
    let mistral = with(mistral_7b_v0_3(), "sliding_window", json!(4096));
    let mut layer_types = vec!["sliding_attention"; 32];
    layer_types[3] = "full_attention";
    let windows = windows_of(&read(&with(mistral, "layer_types", json!(layer_types))));
    assert_eq!((windows[3], windows.iter().flatten().count()), (None, 31));
    let llama = with(llama_3_2_1b(), "layer_types", json!(["ignored"]));
    assert_eq!(windows_of(&read(&llama)), [None; 16]);

    for (broken, expected) in [
        (with(typed.clone(), "use_sliding_window", json!(false)), "needs `sliding_window`"),
        (with(typed.clone(), "layer_types", json!(["full_attention"])), "24 layers are needed"),
        (with(typed, "layer_types", json!(vec!["chunked_attention"; 24])), "are known"),
    ] {
        assert_error(&broken, expected);
    }
}

#[test]
fn both_spellings_of_rope_are_one() {
    let mut new = without(without(llama_3_2_1b(), "rope_theta"), "rope_scaling");
    let mut parameters = llama_3_2_1b()["rope_scaling"].clone();
    parameters["rope_theta"] = json!(500_000.0);
    new["rope_parameters"] = parameters.clone();
    assert_eq!(read(&new), read(&llama_3_2_1b()));

    let nested = with(new.clone(), "rope_parameters", json!({"full_attention": parameters}));
    assert_eq!(read(&nested), read(&new));
    let default = json!({"rope_type": "default"});
    let differ = json!({"full_attention": parameters, "sliding_attention": default});
    assert_error(&with(new, "rope_parameters", differ), "differ between layers");
}

#[test]
fn rope_scaling_is_read_whole() {
    let scaled = |scaling: Value| with(llama_3_2_1b(), "rope_scaling", scaling);
    let linear = read(&scaled(json!({"type": "linear", "factor": 2})));
    assert_eq!(linear.ropes[0].scaling, RopeScaling::Linear { factor: 2.0 });

    let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let RopeScaling::Yarn { attention_factor, beta_fast, beta_slow, truncate, .. } =
        read(&scaled(yarn)).ropes[0].scaling
    else {
        panic!("YaRN")
    };
    assert!((attention_factor - 1.138629436111989).abs() < 1e-12);
    assert_eq!((beta_fast, beta_slow, truncate), (32.0, 1.0, true));

    let partial = with(phi_3_mini_4k(), "partial_rotary_factor", json!(0.75));
    assert_eq!(read(&partial).ropes[0].rotary_dim, 72);
    let ignored = with(smollm2_135m(), "partial_rotary_factor", json!(0.5));
    assert_eq!(
        read(&ignored).ropes[0].rotary_dim,
        64,
        "only Phi-3 reads it, or scaled frequencies"
    );

    for (scaling, expected) in [
        (json!({"type": "dynamic", "factor": 2.0}), "`rope_scaling.type` is \"dynamic\""),
        (json!({"type": "linear"}), "no `rope_scaling.factor`"),
        (json!({"type": "linear", "factor": 0}), "`rope_scaling.factor` is 0"),
        (json!({"type": "linear", "factor": "2"}), "`rope_scaling.factor` is \"2\""),
        (json!({"rope_type": "llama3", "factor": 8.0}), "no `rope_scaling.low_freq_factor`"),
        (json!({"rope_type": "longrope"}), "no `rope_scaling.short_factor`"),
        (json!("linear"), "an object is needed"),
    ] {
        assert_error(&scaled(scaling), expected);
    }
    let with_factors = |factors: Vec<f64>| {
        let mut config = phi_3_mini_128k();
        config["rope_scaling"]["long_factor"] = json!(factors);
        config
    };
    assert_error(&with_factors(vec![1.0; 47]), "`long_factor` is 47 numbers: 48 are needed");
    assert_error(&with_factors(vec![-1.0; 48]), "`long_factor` is -1");
    let partial = json!({"type": "linear", "factor": 2, "partial_rotary_factor": 0.5});
    assert_error(&scaled(partial), "whole heads");
}

pub fn assert_error(json: &Value, expected: &str) {
    let error = Config::from_hf(json).expect_err(expected).to_string();
    assert!(error.contains(expected), "`{error}` does not say `{expected}`");
    assert!(error.lines().count() == 1 && error.len() < 400, "{error}");
}

#[test]
fn a_missing_field_is_named() {
    for field in [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ] {
        let error = Config::from_hf(&without(llama_3_2_1b(), field)).unwrap_err();
        assert!(matches!(&error, ConfigError::Missing { field: named } if named == field));
    }
}

#[test]
fn rejects_what_no_model_has() {
    for (field, value, expected) in [
        ("model_type", json!("mamba"), "known are llama, mistral, qwen2, qwen3, qwen3_moe"),
        ("model_type", json!("\u{1b}[2J"), "`\\u{1b}[2J`"),
        ("model_type", json!(7), "`model_type` is 7: a string"),
        ("hidden_act", json!("relu"), "known are silu, swish"),
        ("hidden_size", json!(0), "`hidden_size` is 0"),
        ("hidden_size", json!(1u64 << 60), "`hidden_size` is 1152921504606846976"),
        ("hidden_size", json!(-2048), "`hidden_size` is -2048"),
        ("hidden_size", json!(2048.5), "`hidden_size` is 2048.5"),
        ("vocab_size", json!(u64::MAX), "`vocab_size` is"),
        ("vocab_size", json!("9".repeat(1 << 20)), "`vocab_size` is"),
        ("num_hidden_layers", json!(1u64 << 40), "`num_hidden_layers` is"),
        ("num_attention_heads", json!(0), "`num_attention_heads` is 0"),
        ("num_key_value_heads", json!(7), "must divide the 32 query heads"),
        ("num_key_value_heads", json!(0), "`num_key_value_heads` is 0"),
        ("head_dim", json!(63), "`head_dim` is 63: it must be even"),
        ("head_dim", json!(514), "`head_dim` is 514"),
        ("max_position_embeddings", json!(1 << 25), "`max_position_embeddings` is"),
        ("rms_norm_eps", json!(0.0), "`rms_norm_eps` is 0"),
        ("rms_norm_eps", json!(1e300), "is 1e+300: a positive number"),
        ("rope_theta", json!(1.0), "`rope_theta` is 1"),
        ("tie_word_embeddings", json!("yes"), "true or false"),
    ] {
        assert_error(&with(llama_3_2_1b(), field, value), expected);
    }
    let undivided = with(without(llama_3_2_1b(), "head_dim"), "num_attention_heads", json!(24));
    assert_error(&undivided, "it must divide the hidden size (2048)");
    assert_error(&json!([]), "must hold an object");
}
