//! Tokenizers that were converted beside those that they were made from.

use super::*;
use crate::text::Text;
use crate::weights::gguf::Metadata;
use std::fs;
use std::path::PathBuf;

const TEXTS: [&str; 7] = [
    "Hello world, it's 12345 tests!",
    " two  spaces\n\n\tand a tab\r\n",
    "Grüße aus Köln — naïve café, 日本語 🙂",
    "<|user|>Hi<|end|>\n<|im_start|>x<|im_end|><tool>call</tool>",
    "the theatre of the other weather",
    "",
    "_▁_ don't WE'LL I'M",
];

fn fixture(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../tests/fixtures/text", name].iter().collect()
}

/// The tokenizer of the fixture `name` after `change`.
fn changed(name: &str, change: impl FnOnce(&mut Json)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let source = fs::read(fixture(name).join("tokenizer.json")).unwrap();
    let mut json: Json = serde_json::from_slice(&source).unwrap();
    change(&mut json);
    fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    let config = r#"{"bos_token": "<s>", "eos_token": {"content": "<|end|>"},
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}"#;
    fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [2, 4]}"#).unwrap();
    dir
}

fn metadata(dir: &Path) -> Result<Metadata, TextError> {
    Ok(Metadata(gguf_tokenizer(dir, "llama", 1200)?.into_iter().collect()))
}

/// The oracle is Hugging Face's library on the `tokenizer.json` itself.
#[test]
fn texts_are_cut_as_by_tokenizer_json() {
    for name in ["byte_level", "sentencepiece"] {
        let dir = changed(name, |_| {});
        let original = Text::from_dir(dir.path()).unwrap().unwrap();
        let converted = Text::from_gguf(&metadata(dir.path()).unwrap()).unwrap().unwrap();
        for text in TEXTS {
            for add_special in [false, true] {
                let want = original.tokenizer.encode(text, add_special).unwrap();
                let got = converted.tokenizer.encode(text, add_special).unwrap();
                assert_eq!(got, want, "{name} {text:?}");
                let decoded = converted.tokenizer.decode(&got, false);
                assert_eq!(decoded, original.tokenizer.decode(&want, false), "{name}");
            }
        }
    }
}

#[test]
fn stop_tokens_and_template_are_kept() {
    let dir = changed("sentencepiece", |_| {});
    let original = Text::from_dir(dir.path()).unwrap().unwrap();
    let converted = Text::from_gguf(&metadata(dir.path()).unwrap()).unwrap().unwrap();
    let sorted = |mut ids: Vec<u32>| {
        ids.sort_unstable();
        ids
    };
    assert_eq!(sorted(converted.stop_tokens), sorted(original.stop_tokens));
    let messages = [crate::text::Message::new("user", "hi")];
    let render = |text: &Option<crate::text::ChatTemplate>| {
        text.as_ref().unwrap().render(&messages, true).unwrap()
    };
    assert_eq!(render(&original.chat_template), "<s>hi<|end|>");
    assert_eq!(render(&converted.chat_template), "<s>hi<|end|>");
}

#[test]
fn what_gguf_cannot_say_is_an_error() {
    type Change = fn(&mut Json);
    let cases: [(&str, Change, &str); 6] = [
        ("byte_level", |json| json["model"]["ignore_merges"] = false.into(), "dbrx"),
        (
            "byte_level",
            |json| json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a".into(),
            "a pre-tokenizer",
        ),
        (
            "byte_level",
            |json| json["normalizer"] = serde_json::json!({"type": "Lowercase"}),
            "a normalizer",
        ),
        ("byte_level", |json| json["added_tokens"][0]["lstrip"] = true.into(), "spaces"),
        (
            "sentencepiece",
            |json| json["model"]["merges"].as_array_mut().unwrap().swap(3, 200),
            "merges",
        ),
        (
            "sentencepiece",
            |json| json["normalizer"] = json["normalizer"]["normalizers"][0].take(),
            "SentencePiece",
        ),
    ];
    for (name, change, expected) in cases {
        let dir = changed(name, change);
        match metadata(dir.path()) {
            Ok(metadata) => {
                let kind = metadata.get("tokenizer.ggml.pre");
                assert_eq!(kind, Some(&Value::String(expected.into())), "{name}");
            }
            Err(error @ TextError::NoGguf(_)) => {
                assert!(error.to_string().contains(expected), "{error}");
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    let dir = changed("byte_level", |_| {});
    let small = gguf_tokenizer(dir.path(), "llama", 1000).unwrap_err();
    assert!(small.to_string().contains("beyond the 1000"), "{small}");
}
