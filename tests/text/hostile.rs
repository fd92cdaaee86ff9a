//! Files that lie: a typed error of one line, never a panic.

use std::fs;

use halfwarp::text::{Text, TextError};
use halfwarp::weights::gguf::{Metadata, Value};
use libtest_mimic::Trial;
use serde_json::{Value as Json, json};

use crate::fixtures::{self, string};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("hostile::gguf_metadata_is_rejected", gguf_metadata_is_rejected),
        trial("hostile::gguf_kinds_are_named", gguf_kinds_are_named),
        trial("hostile::gguf_without_tokenizer_is_none", gguf_without_tokenizer_is_none),
        trial("hostile::tokenizer_json_is_rejected", tokenizer_json_is_rejected),
        trial("hostile::charsmaps_are_no_panic", charsmaps_are_no_panic),
        trial("hostile::truncated_json_is_rejected", truncated_json_is_rejected),
        trial("hostile::other_files_are_rejected", other_files_are_rejected),
        trial("hostile::unknown_bytes_are_no_panic", unknown_bytes_are_no_panic),
    ]
}

#[track_caller]
fn assert_one_line(error: &TextError) {
    let message = error.to_string();
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.len() < 600, "{message}");
}

fn gguf_metadata_is_rejected() {
    let long = "x".repeat(1 << 20);
    let (text, number) = (|text: &str| string(text), Value::U32);
    let array = |values: &[&str]| Value::Array(values.iter().map(|text| string(text)).collect());
    let i32s = |value, len| Value::Array(vec![Value::I32(value); len]);
    let byte_level = fixtures::byte_level("qwen2");
    let sentencepiece = fixtures::sentencepiece();
    let num_pieces = sentencepiece.get_array("tokenizer.ggml.tokens").expect("tokens").len();
    let cases: [(&Metadata, &str, Option<Value>); 26] = [
        (&byte_level, "model", Some(number(1))),
        (&byte_level, "pre", Some(Value::Bool(true))),
        (&byte_level, "tokens", None),
        (&byte_level, "tokens", Some(text("tokens"))),
        (&byte_level, "tokens", Some(Value::Array(Vec::new()))),
        (&byte_level, "tokens", Some(array(&["a", "b"]))),
        (&byte_level, "tokens", Some(Value::Array(vec![number(1)]))),
        (&byte_level, "token_type", Some(i32s(1, 3))),
        (&byte_level, "token_type", Some(array(&["1"]))),
        (&byte_level, "token_type", Some(i32s(-1, num_pieces))),
        (&byte_level, "merges", None),
        (&byte_level, "merges", Some(number(0))),
        (&byte_level, "merges", Some(array(&["ab"]))),
        (&byte_level, "merges", Some(array(&[""]))),
        (&byte_level, "merges", Some(array(&["é"]))),
        (&byte_level, "merges", Some(array(&["a no-such-token"]))),
        (&byte_level, "merges", Some(array(&["! !!!!"]))),
        (&byte_level, "merges", Some(array(&[&format!("a {long}")]))),
        (&byte_level, "merges", Some(Value::Array(vec![Value::Array(Vec::new())]))),
        (&byte_level, "eos_token_id", Some(text("</s>"))),
        (&byte_level, "eot_token_id", Some(Value::F32(1.0))),
        (&byte_level, "add_bos_token", Some(number(1))),
        (&sentencepiece, "scores", None),
        (&sentencepiece, "scores", Some(Value::Array(vec![Value::F32(0.0)]))),
        (&sentencepiece, "scores", Some(i32s(0, num_pieces))),
        (&sentencepiece, "add_space_prefix", Some(text("yes"))),
    ];
    for (metadata, key, value) in cases {
        let mut metadata = metadata.clone();
        let case = format!("{key} = {value:.60?}");
        let key = format!("tokenizer.ggml.{key}");
        match value {
            Some(value) => metadata.0.insert(key, value),
            None => metadata.0.remove(&key),
        };
        metadata.0.insert("tokenizer.chat_template".to_owned(), string("{{ messages }}"));
        let Err(error) = Text::from_gguf(&metadata) else { panic!("accepted: {case}") };
        assert_one_line(&error);
    }
    let mut repeated = byte_level.clone();
    if let Some(Value::Array(tokens)) = repeated.0.get_mut("tokenizer.ggml.tokens") {
        tokens[5] = tokens[4].clone();
    }
    assert_one_line(&Text::from_gguf(&repeated).expect_err("a token twice"));
    let mut huge = sentencepiece.clone();
    if let Some(Value::Array(tokens)) = huge.0.get_mut("tokenizer.ggml.tokens") {
        tokens[num_pieces - 1] = Value::String(long);
    }
    assert_one_line(&Text::from_gguf(&huge).expect_err("a token of 1 MiB"));
}

fn gguf_kinds_are_named() {
    let error = Text::from_gguf(&fixtures::byte_level("klingon-bpe")).expect_err("no such kind");
    assert!(matches!(&error, TextError::PreTokenizer { name, .. } if name == "klingon-bpe"));
    assert_one_line(&error);
    let mut metadata = fixtures::byte_level("qwen2");
    metadata.0.insert("tokenizer.ggml.model".to_owned(), string("rwkv"));
    let error = Text::from_gguf(&metadata).expect_err("no such model");
    assert!(matches!(&error, TextError::TokenizerModel { name } if name == "rwkv"));
}

fn gguf_without_tokenizer_is_none() {
    assert!(Text::from_gguf(&Metadata::default()).expect("nothing wrong").is_none());
    let metadata = fixtures::metadata([("model", string("no_vocab"))]);
    assert!(Text::from_gguf(&metadata).expect("nothing wrong").is_none());
}

/// Writes `tokenizer.json` into a directory and opens that.
fn open_json(bytes: &[u8]) -> Result<Option<Text>, TextError> {
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("tokenizer.json"), bytes).expect("written");
    Text::from_dir(dir.path())
}

fn tokenizer_json_is_rejected() {
    let good = fixtures::read("fixtures/text/byte_level/tokenizer.json");
    open_json(good.to_string().as_bytes()).expect("a good file").expect("a tokenizer");
    let replace = |pattern: Json, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    let cases: [(&str, Json); 33] = [
        ("/model", Json::Null),
        ("/model/type", json!("Unigram")),
        ("/model/type", json!("WordPiece")),
        ("/model", json!({"type": "Unigram", "vocab": []})),
        ("/model", json!({"type": "Unigram", "vocab": [["a"]]})),
        ("/model", json!({"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 1})),
        ("/model", json!({"type": "Unigram", "vocab": [["a".repeat(1 << 20), 0.0]]})),
        ("/model/vocab", json!([["a", 0.0]])),
        ("/model/vocab", json!({})),
        ("/model/vocab", json!({"a": -1})),
        ("/model/vocab", json!({"a": 4_294_967_295u32})),
        ("/model/vocab", json!({"a": 1u64 << 40})),
        ("/model/merges", json!(["a"])),
        ("/model/merges", json!(["a b c"])),
        ("/model/merges", json!([["a"]])),
        ("/model/merges", json!([["a", "b", "c"]])),
        ("/model/merges", json!([["a", "no such token"]])),
        ("/model/merges", json!([["a".repeat(1 << 16), "b"]])),
        ("/model/unk_token", json!("<no-such-token>")),
        ("/model/end_of_word_suffix", json!("</w>")),
        ("/pre_tokenizer", json!({"type": "Nonsense"})),
        (
            "/pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false}),
        ),
        ("/normalizer", json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        ("/normalizer", replace(json!({"String": ""}), "")),
        ("/normalizer", replace(json!({"String": "a"}), &"a".repeat(17))),
        ("/normalizer", replace(json!({"Regex": "a|"}), "")),
        ("/normalizer", replace(json!({"Regex": "(a)\\1"}), "")),
        ("/normalizer", replace(json!({"Regex": "a*"}), "")),
        (
            "/normalizer",
            json!({"type": "Sequence", "normalizers": vec![json!({"type": "ByteLevel"}); 40]}),
        ),
        (
            "/normalizer",
            json!({"type": "Sequence", "normalizers": vec![replace(json!({"String": "a"}), "aaa"); 3]}),
        ),
        ("/decoder", json!({"type": "WordPiece"})),
        ("/added_tokens/0/id", json!(77)),
        ("/added_tokens/0", json!({"id": 1})),
    ];
    for (pointer, value) in cases {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).expect("a field of the file") = value.clone();
        let Err(error) = open_json(bad.to_string().as_bytes()) else {
            panic!("accepted: {pointer} = {value:.60}")
        };
        assert!(matches!(error, TextError::File { .. }), "{error}");
        assert_one_line(&error);
    }
}

/// A table of replacements with one bit of it wrong is refused or harmless.
fn charsmaps_are_no_panic() {
    let cases = fixtures::read("fixtures/text/tokenizer_json.json");
    let mut file = cases.as_array().expect("tokenizers").last().expect("one")["file"].clone();
    let pointer = "/normalizer/normalizers/0/precompiled_charsmap";
    let good = file.pointer(pointer).and_then(Json::as_str).expect("a table").to_owned();
    // The table's strings are Base64: a wrong character is up to six wrong bits.
    for at in (0..good.len()).step_by(good.len() / 150) {
        for wrong in ["A", "/", "g"] {
            let mut bad = good.clone();
            bad.replace_range(at..=at, wrong);
            *file.pointer_mut(pointer).expect("a table") = json!(bad);
            if let Ok(Some(text)) = open_json(file.to_string().as_bytes()) {
                let _ = text.tokenizer.encode("ＡＢ①ﬁ the\té ß \u{1}日本 \u{7f}", true);
            }
        }
    }
}

fn truncated_json_is_rejected() {
    let path = crate::tests_dir().join("fixtures/text/byte_level/tokenizer.json");
    let bytes = fs::read(path).expect("a fixture");
    for len in (0..bytes.len()).step_by(997) {
        assert_one_line(&open_json(&bytes[..len]).expect_err("cut short"));
    }
    let nested = "[".repeat(1 << 20);
    for bad in ["", "null", "[]", "\0", "\u{FEFF}{}", &nested] {
        assert_one_line(&open_json(bad.as_bytes()).expect_err("no tokenizer"));
    }
    assert_one_line(&open_json(b"{\"model\": \"\xFF\"}").expect_err("not UTF-8"));
}

fn other_files_are_rejected() {
    let tokenizer = crate::tests_dir().join("fixtures/text/byte_level/tokenizer.json");
    for (name, bytes) in [
        ("tokenizer_config.json", &b"{"[..]),
        ("tokenizer_config.json", br#"{"chat_template": 1}"#),
        ("tokenizer_config.json", br#"{"bos_token": ["<s>"]}"#),
        ("chat_template.jinja", b"\xFF"),
        ("generation_config.json", br#"{"eos_token_id": -1}"#),
        ("generation_config.json", br#"{"eos_token_id": "</s>"}"#),
        ("config.json", br#"{"eos_token_id": [1, 4294967296]}"#),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        fs::copy(&tokenizer, dir.path().join("tokenizer.json")).expect("copied");
        fs::write(dir.path().join(name), bytes).expect("written");
        let error = Text::from_dir(dir.path()).expect_err(name);
        assert!(error.to_string().contains(name), "{error}");
        assert_one_line(&error);
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("tokenizer.json")).expect("made");
    assert!(matches!(Text::from_dir(dir.path()), Err(TextError::Read { .. })));
}

/// A vocabulary without the bytes of a text: what is not there is left out, as `tokenizers` does.
fn unknown_bytes_are_no_panic() {
    let metadata = fixtures::metadata([
        ("model", string("gpt2")),
        ("pre", string("gpt-2")),
        ("tokens", Value::Array(vec![string("a"), string("")])),
        ("merges", Value::Array(Vec::new())),
    ]);
    let tokenizer = fixtures::text(&metadata).tokenizer;
    assert_eq!(tokenizer.encode("ab😀a", true).expect("two tokens"), [0, 0]);
    assert_eq!(tokenizer.decode(&[0, 1, 2, u32::MAX], false), "a[EMPTY_1]");
}
