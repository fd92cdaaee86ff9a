//! Fixture files, and GGUF metadata made of them.

use std::fs;

use halfwarp::text::Text;
use halfwarp::weights::gguf::{Metadata, Value};
use serde_json::Value as Json;

/// A JSON file below `tests`.
pub fn read(path: &str) -> Json {
    let path = crate::tests_dir().join(path);
    let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub fn strings(json: &Json) -> Vec<String> {
    serde_json::from_value(json.clone()).expect("an array of strings")
}

pub fn ids(json: &Json) -> Vec<u32> {
    serde_json::from_value(json.clone()).expect("an array of token ids")
}

/// Metadata with the given keys, each after the prefix `tokenizer.ggml.`.
pub fn metadata(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Metadata {
    let entries = entries.into_iter();
    Metadata(entries.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value)).collect())
}

pub fn string(value: &str) -> Value {
    Value::String(value.to_owned())
}

pub fn string_array(json: &Json) -> Value {
    Value::Array(strings(json).into_iter().map(Value::String).collect())
}

pub fn i32_array(json: &Json) -> Value {
    let values: Vec<i32> = serde_json::from_value(json.clone()).expect("an array of integers");
    Value::Array(values.into_iter().map(Value::I32).collect())
}

pub fn f32_array(json: &Json) -> Value {
    let values: Vec<f32> = serde_json::from_value(json.clone()).expect("an array of numbers");
    Value::Array(values.into_iter().map(Value::F32).collect())
}

/// The byte-level vocabulary of `bpe.json`, with a pre-tokenizer of some kind.
pub fn byte_level(kind: &str) -> Metadata {
    let fixture = read("fixtures/text/bpe.json");
    metadata([
        ("model", string("gpt2")),
        ("pre", string(kind)),
        ("tokens", string_array(&fixture["tokens"])),
        ("token_type", i32_array(&fixture["token_type"])),
        ("merges", string_array(&fixture["merges"])),
        ("bos_token_id", Value::U32(0)),
    ])
}

/// The vocabulary of `sentencepiece.json`.
pub fn sentencepiece() -> Metadata {
    let fixture = read("fixtures/text/sentencepiece.json");
    metadata([
        ("model", string("llama")),
        ("tokens", string_array(&fixture["tokens"])),
        ("token_type", i32_array(&fixture["token_type"])),
        ("scores", f32_array(&fixture["scores"])),
    ])
}

/// The text part of `metadata`, which has one.
pub fn text(metadata: &Metadata) -> Text {
    Text::from_gguf(metadata).expect("good metadata").expect("a tokenizer")
}
