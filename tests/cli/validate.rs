//! `halfwarp validate` on models of two layers.

use crate::support::{Copy, EXPERTS, LLAMA, f32s, run, stderr};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;

const FILES: [&str; 10] = [
    "validation-errors.png",
    "validation-errors.svg",
    "validation-logits.png",
    "validation-logits.svg",
    "validation-magnitudes.png",
    "validation-magnitudes.svg",
    "validation-speed.png",
    "validation-speed.svg",
    "validation.csv",
    "validation.md",
];

/// Validates `model` on the CPU into `dir`.
fn validate(model: &str, dir: &Path, options: &[&str]) -> Output {
    let out = dir.to_str().unwrap();
    let args = ["validate", "-m", model, "--device", "cpu", "--out", out];
    run(&[&args, options].concat())
}

fn files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

/// The golden with a byte-level tokenizer of its 256 tokens, all of them ASCII: whatever it
/// generates is a text.
fn with_tokenizer() -> Copy {
    let printable = (0x21u8..=0x7E).map(char::from).map(String::from);
    let mut vocab: Vec<String> = printable.chain(["Ġ".to_owned(), "Ċ".to_owned()]).collect();
    let mut merges = Vec::new();
    for char in ('A'..='Z').chain('a'..='z') {
        for before in ["Ġ", "e", "o"] {
            if vocab.len() < 256 {
                vocab.push(format!("{before}{char}"));
                merges.push(json!([before, char.to_string()]));
            }
        }
    }
    let ids: Map<String, Value> =
        vocab.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
    });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "vocab": ids, "merges": merges,
        },
    });
    let copy = Copy::new();
    fs::write(copy.file("tokenizer.json"), tokenizer.to_string()).unwrap();
    copy
}

/// `model.safetensors` with the values of tensor `name` multiplied by `factor`, in f32.
fn scaled(bytes: &[u8], name: &str, factor: f32) -> Vec<u8> {
    let tensors = SafeTensors::deserialize(bytes).unwrap();
    let tensor = tensors.tensor(name).unwrap();
    let values: Vec<f32> = match tensor.dtype() {
        Dtype::F32 => f32s(tensor.data()),
        Dtype::F16 => {
            let halves = tensor.data().as_chunks().0.iter();
            halves.map(|&two| half::f16::from_le_bytes(two).to_f32()).collect()
        }
        other => panic!("{other:?}"),
    };
    let data: Vec<u8> = values.iter().flat_map(|x| (x * factor).to_le_bytes()).collect();
    let shape = tensor.shape().to_vec();
    let mut all: BTreeMap<String, TensorView> = tensors.tensors().into_iter().collect();
    all.insert(name.to_owned(), TensorView::new(Dtype::F32, shape, &data).unwrap());
    safetensors::serialize(all, None).unwrap()
}

#[test]
fn f16_beside_f32_passes_and_every_file_is_there() {
    let (model, parent) = (with_tokenizer(), tempfile::tempdir().unwrap());
    let dir = parent.path().join("new/report");
    let output = validate(model.path(), &dir, &["--seed", "3"]);
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{said}{}", stderr(&output));
    assert!(said.contains("passed      every bound holds"), "{said}");
    assert_eq!(files(&dir), FILES);

    let report = fs::read_to_string(dir.join("validation.md")).unwrap();
    assert!(report.contains("**Passed**: every bound holds."), "{report}");
    for part in [
        "halfwarp validate -m ",
        "## Speed and memory",
        "## Logits",
        "## Layer by layer",
        "](validation-errors.svg)",
        "The word is **",
        "| f16: the same seed gives the same text | passed |",
    ] {
        assert!(report.contains(part), "wanted {part:?} in {report}");
    }
    let csv = fs::read_to_string(dir.join("validation.csv")).unwrap();
    for row in ["\nlayers,f16,1,gate_up,max_abs,", "\nspeed,f32,,2,throughput,", "\nhaiku,f16,,"] {
        assert!(csv.contains(row), "{row}");
    }
}

/// A norm and a projection each 1000 times as large: in f32 their product is, in f16 it is
/// infinite.
#[test]
fn a_planted_overflow_is_named_by_its_layer() {
    let spoilt = Copy::new()
        .weights(|bytes| scaled(&bytes, "model.layers.1.post_attention_layernorm.weight", 1e3))
        .weights(|bytes| scaled(&bytes, "model.layers.1.mlp.up_proj.weight", 1e3));
    let dir = tempfile::tempdir().unwrap();
    let output = validate(spoilt.path(), dir.path(), &[]);
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}{}", stderr(&output));
    assert!(said.contains("FAILED      layer 1, gate_up: inf in f16, where f32 has"), "{said}");
    assert_eq!(files(dir.path()), FILES, "the report is there all the same");
    let report = fs::read_to_string(dir.path().join("validation.md")).unwrap();
    assert!(report.contains("\n- layer 1, gate_up: inf in f16"), "{report}");
    // bf16 has the range of f32.
    let output = validate(spoilt.path(), dir.path(), &["--candidate", "bf16"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!said.contains("inf"), "{said}");
}

/// What is fused and how attention is computed are settings too: in f32 nothing is lost by either.
#[test]
fn settings_of_one_type_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let candidate = "f32+fusion=off+attention=materialized";
    let output = validate(LLAMA, dir.path(), &["--candidate", candidate]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report = fs::read_to_string(dir.path().join("validation.md")).unwrap();
    assert!(report.contains(&format!(": {candidate} beside f32\n")), "{report}");
    // The residual stream of each layer, in both.
    for layer in ["\n| 0 | ", "\n| 1 | "] {
        assert!(report.contains(layer), "{report}");
    }
}

/// The weights of a token's experts and what each expert computes are values too; in the same type
/// they are the same.
#[test]
fn experts_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let output = validate(EXPERTS, dir.path(), &["--candidate", "f32+fusion=off"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let csv = fs::read_to_string(dir.path().join("validation.csv")).unwrap();
    for name in ["router", "expert_weights", "expert_gate", "expert_gated", "expert_down"] {
        let row = format!("\nlayers,f32+fusion=off beside f32,1,{name},relative_error,");
        let error = csv.split_once(&row).map(|(_, rest)| rest.split(',').next().unwrap());
        let error: f64 = error.unwrap_or_else(|| panic!("no {name}: {csv}")).parse().unwrap();
        assert!(error < 1e-6, "{name}: {error}");
    }
}

/// What layers of Gated DeltaNet compute, and the memory of their states.
#[test]
fn recurrent_layers_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let model = EXPERTS.replace("qwen3-moe", "qwen3-next");
    let output = validate(&model, dir.path(), &["--seed", "1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let csv = fs::read_to_string(dir.path().join("validation.csv")).unwrap();
    assert!(csv.contains("\nmemory,f16,,plan,recurrent states,"), "{csv}");
    for name in ["conv", "delta_rule", "delta_gated"] {
        let row = format!("\nlayers,f16 beside f32,0,{name},relative_error,");
        let error = csv.split_once(&row).map(|(_, rest)| rest.split(',').next().unwrap());
        let error: f64 = error.unwrap_or_else(|| panic!("no {name}: {csv}")).parse().unwrap();
        assert!(error > 0.0 && error < 1e-2, "{name}: {error}");
    }
}

#[test]
fn what_is_wrong_with_the_arguments_is_said_before_the_work() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "text").unwrap();
    let refused = |options: &[&str], message: &str| {
        let output = validate(LLAMA, &dir.path().join("out"), options);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{options:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    };
    refused(&["--candidate", "f32"], "there is nothing to compare");
    refused(&["--candidate", "f8"], "invalid value 'f8'");
    refused(&["--candidate", "f16+fusion=norm"], "after a + each fusion=on|off|NAMES");
    refused(&["--seed", "moon"], "invalid value 'moon'");
    for (path, message) in [(file.clone(), "not a directory"), (file.join("below"), "cannot make")]
    {
        let output = validate(LLAMA, &path, &[]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
    assert_eq!(files(dir.path()), ["file"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
}
