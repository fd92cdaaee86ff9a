//! The types of tensors are those that llama-quantize chooses.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::choose::{Candidate, Facts, dtypes};
use super::*;
use crate::Config;
use crate::weights::gguf;

/// A model of `tests/fixtures/quantized_types.json`.
#[derive(Deserialize)]
struct Fixture {
    architecture: String,
    layers: usize,
    hidden: usize,
    mlp: usize,
    heads: usize,
    kv_heads: usize,
    experts: u32,
    tied: bool,
    tensors: Vec<Vec<Value>>,
    types: BTreeMap<String, BTreeMap<String, Value>>,
}

const MIXES: [Mix; 19] = [
    Mix::F16,
    Mix::Q8_0,
    Mix::Q6_K,
    Mix::Q5_K_M,
    Mix::Q5_K_S,
    Mix::Q4_K_M,
    Mix::Q4_K_S,
    Mix::Q4_0,
    Mix::Q4_1,
    Mix::Q5_0,
    Mix::Q5_1,
    Mix::Q3_K_L,
    Mix::Q3_K_M,
    Mix::Q3_K_S,
    Mix::Q2_K,
    Mix::Q2_K_S,
    Mix::IQ4_NL,
    Mix::IQ4_XS,
    Mix::MXFP4_MOE,
];

impl Fixture {
    fn all() -> BTreeMap<String, Fixture> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/quantized_types.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    fn config(&self) -> Config {
        let json = json!({
            "model_type": self.architecture,
            "vocab_size": 16,
            "hidden_size": self.hidden,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
        });
        Config::from_hf(&json).unwrap()
    }

    fn facts(&self, has_importance: bool) -> Facts {
        let mut metadata = Metadata::default();
        metadata.0.insert("llama.expert_count".to_owned(), gguf::Value::U32(self.experts));
        Facts::new(&self.config(), &metadata, has_importance)
    }

    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let tensor = |tensor: &Vec<Value>| {
            let shape = tensor[1..].iter().map(|dim| dim.as_u64().unwrap() as usize);
            (tensor[0].as_str().unwrap().to_owned(), shape.collect())
        };
        self.tensors.iter().map(tensor).collect()
    }

    /// What llama-quantize chose.
    fn expected(&self, mix: Mix, has_importance: bool) -> Vec<String> {
        let name = format!("{mix:?}");
        let with = self.types.get(&format!("{name} importance")).filter(|_| has_importance);
        let by_type = with.unwrap_or_else(|| &self.types[&name]);
        let others = by_type.iter().find(|(_, tensors)| tensors.is_string()).unwrap().0;
        let mut dtypes = vec![others.clone(); self.tensors.len()];
        for (dtype, tensors) in by_type {
            for tensor in tensors.as_array().into_iter().flatten() {
                dtypes[tensor.as_u64().unwrap() as usize] = dtype.clone();
            }
        }
        dtypes
    }
}

/// The types that are chosen for tensors in this order.
fn chosen(
    tensors: &[(String, Vec<usize>)],
    mix: Mix,
    rules: &[TensorType],
    facts: Facts,
) -> Result<Vec<Dtype>, QuantizeError> {
    let candidates: Vec<Candidate> = tensors.iter().map(Candidate::from).collect();
    dtypes(&candidates, mix, rules, facts)
}

#[test]
fn types_are_those_of_llama_quantize() {
    for (title, model) in Fixture::all() {
        let tensors = model.tensors();
        for mix in MIXES {
            for has_importance in [false, true] {
                let got = chosen(&tensors, mix, &[], model.facts(has_importance));
                let want = model.expected(mix, has_importance);
                let is_q2_k = |((name, _), dtype): (&(String, _), &String)| {
                    dtype == "Q2_K" && name.starts_with("blk.")
                };
                let has_q2_k = tensors.iter().zip(&want).any(is_q2_k);
                if mix == Mix::Q2_K_S && !has_importance && has_q2_k {
                    assert!(matches!(got, Err(QuantizeError::NeedsImportance { .. })), "{title}");
                    continue;
                }
                for ((tensor, got), want) in tensors.iter().zip(got.unwrap()).zip(want) {
                    let name = &tensor.0;
                    assert_eq!(got.to_string(), want, "{title}, {mix:?}, {name} {has_importance}");
                }
            }
        }
    }
}

/// The first of several counts, rows that are no blocks fall back, and what is counted is not.
#[test]
fn named_tensors_have_the_type_that_is_given() {
    let model = &Fixture::all()["grouped"];
    let rules = |rules: &[&str]| -> Vec<TensorType> {
        rules.iter().map(|rule| rule.parse().unwrap()).collect()
    };
    let mut tensors = model.tensors();
    tensors.push(("blk.0.odd.weight".to_owned(), vec![4, 48]));
    let types = |mix, list: &[&str]| {
        let dtypes = chosen(&tensors, mix, &rules(list), model.facts(false)).unwrap();
        tensors.iter().map(|(name, _)| name.clone()).zip(dtypes).collect::<BTreeMap<_, _>>()
    };
    let got = types(Mix::Q4_K_M, &["blk.[01].attn_v=q8_0", "attn_v=q5_k", "norm=q8_0", "odd=q6_k"]);
    assert_eq!(got["blk.1.attn_v.weight"], Dtype::Q8_0);
    assert_eq!(got["blk.2.attn_v.weight"], Dtype::Q5_K);
    assert_eq!(got["blk.0.attn_norm.weight"], Dtype::F32);
    assert_eq!(got["blk.0.odd.weight"], Dtype::F16);
    // The first two V that the mix chooses for are those of layers 1 and 2 then.
    let got = types(Mix::Q3_K_M, &["blk.0.attn_v=f16"]);
    let of_layer = |layer| got[&format!("blk.{layer}.attn_v.weight")];
    assert_eq!([0, 1, 2, 3].map(of_layer), [Dtype::F16, Dtype::Q5_K, Dtype::Q5_K, Dtype::Q4_K]);
    assert_eq!(types(Mix::F16, &["attn_v=q8_0"])["blk.0.attn_v.weight"], Dtype::F16);
}

#[test]
fn an_importance_matrix_is_checked_and_recorded() {
    let entries = [("blk.0.ffn_down.weight", 4), ("token_embd.weight", 4)];
    let entries = entries.map(|(name, len)| (name.to_owned(), vec![1.0; len]));
    let mut matrix = ImportanceMatrix {
        entries: entries.into(),
        file: Some("é".repeat(100)),
        datasets: vec!["first.txt".to_owned(), "second.txt".to_owned()],
        chunks: Some(7),
    };
    let down = "blk.0.ffn_down.weight";
    assert_eq!(matrix.of_tensor(down, &[8, 4]).unwrap(), Some(&[1.0; 4][..]));
    assert_eq!(matrix.of_tensor(down, &[2, 8, 2]).unwrap(), Some(&[1.0; 4][..]));
    assert_eq!(matrix.of_tensor("blk.1.ffn_down.weight", &[8, 4]).unwrap(), None);
    assert_eq!(matrix.of_tensor("token_embd.weight", &[8, 5]).unwrap(), None);
    let error = matrix.of_tensor(down, &[8, 5]).unwrap_err().to_string();
    assert!(error.contains("4 values") && error.contains("5 columns"), "{error}");

    let mut metadata = Metadata::default();
    matrix.record(&mut metadata);
    let text = |text: &str| Some(gguf::Value::String(text.to_owned()));
    let value = |key: &str| metadata.get(&format!("quantize.imatrix.{key}")).cloned();
    assert_eq!(value("file"), text(&"é".repeat(63)));
    assert_eq!(value("dataset"), text("first.txt"));
    assert_eq!(value("entries_count"), Some(gguf::Value::U32(2)));
    assert_eq!(value("chunks_count"), Some(gguf::Value::U32(7)));

    matrix.check().unwrap();
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        matrix.entries.insert("x".to_owned(), vec![1.0, bad]);
        assert!(matches!(matrix.check(), Err(QuantizeError::ImportanceValue { .. })), "{bad}");
    }
}
