//! What a random model writes where it has to call is a call, in every style.

use super::super::{AnswerFormat, AnswerReader, Piece, ReaderOptions, RequiredCalls};
use crate::engine::Constraint;
use crate::grammar::tests::tokens;
use crate::text::answer::mark::segments;
use crate::text::{ChatTemplate, Text};
use crate::weights::gguf;
use crate::{Grammar, GrammarCompiler, Model};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

/// An answer that begins with `begun`, and whose other tokens are drawn from the allowed ones.
fn answer(text: &Text, grammar: &dyn Constraint, begun: &str, rng: &mut ChaCha8Rng) -> String {
    let mut state = grammar.begin();
    let mut ids = Vec::new();
    for id in text.tokenizer.encode(begun, false).unwrap() {
        assert!(tokens(&state.allowed().unwrap()).contains(&id), "{begun:?} at {ids:?}");
        state.accept(id).unwrap();
        ids.push(id);
    }
    loop {
        let allowed = tokens(&state.allowed().unwrap());
        let end = allowed.iter().find(|id| text.stop_tokens.contains(id));
        let token = match end {
            Some(&end) if rng.random_bool(0.5) => end,
            _ => *allowed.choose(rng).expect("a token"),
        };
        if text.stop_tokens.contains(&token) {
            return text.tokenizer.decode(&ids, false);
        }
        state.accept(token).unwrap();
        ids.push(token);
        assert!(ids.len() < 4000, "{}", text.tokenizer.decode(&ids, false));
    }
}

/// A vocabulary of bytes in which the tags of `format` are special tokens.
fn with_special_tags(format: &AnswerFormat) -> Text {
    vocabulary(&format.marks())
}

/// A vocabulary of bytes in which the tags of `marks` are special tokens.
pub(in crate::text::answer) fn vocabulary(marks: &[String]) -> Text {
    let is_plain = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let others = (0..=255u8).filter(|byte| !is_plain(byte)).zip('\u{100}'..).map(|(_, char)| char);
    let bytes = (0..=255u8).filter(is_plain).map(char::from).chain(others).map(String::from);
    let mut pieces: Vec<(String, i32)> = bytes.map(|byte| (byte, 1)).collect();
    pieces.push(("</s>".to_owned(), 3));
    for mark in marks {
        for tag in segments(mark) {
            let is_tag = tag.starts_with(['<', '[', ']']) && tag.ends_with(['>', ']', '[']);
            let tag = (tag.to_owned(), 3);
            if is_tag && tag.0.len() > 3 && !pieces.contains(&tag) {
                pieces.push(tag);
            }
        }
    }
    let array = |values: Vec<gguf::Value>| gguf::Value::Array(values);
    let text = |text: &str| gguf::Value::String(text.to_owned());
    let entries = [
        ("model", text("gpt2")),
        ("pre", text("default")),
        ("eos_token_id", gguf::Value::U32(256)),
        ("merges", array(Vec::new())),
        ("tokens", array(pieces.iter().map(|(piece, _)| text(piece)).collect())),
        ("token_type", array(pieces.iter().map(|(_, kind)| gguf::Value::I32(*kind)).collect())),
    ];
    let entries = entries.map(|(key, value)| (format!("tokenizer.ggml.{key}"), value));
    Text::from_gguf(&gguf::Metadata(entries.into())).unwrap().unwrap()
}

fn tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value, required: Value| {
        json!({"type": "function", "function": {"name": name, "description": "",
            "parameters": {"type": "object", "properties": properties, "required": required}}})
    };
    let add = json!({"a": {"type": "integer", "minimum": 0, "maximum": 99},
        "b": {"enum": ["x", "\"y"]}, "c": {"type": "boolean"},
        "d": {"type": "string", "maxLength": 5}});
    vec![tool("add", add, json!(["a", "b"])), tool("stop", json!({}), json!([]))]
}

/// The calls of an answer, whose text is to be empty.
fn calls(
    format: &AnswerFormat,
    prompt: &str,
    is_single: bool,
    answer: &str,
) -> Vec<(String, Value)> {
    let tools = tools();
    let mut reader = AnswerReader::new(format, ReaderOptions { tools: &tools, is_single, prompt });
    let mut pieces = reader.push(answer);
    pieces.extend(reader.finish());
    let mut calls: Vec<(String, String)> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => assert!(text.trim().is_empty(), "{answer:?}: {text:?}"),
            Piece::Reasoning(_) => {}
            Piece::CallBegin { name, .. } => calls.push((name, String::new())),
            Piece::CallArguments { index, json } => calls[index].1 += &json,
        }
    }
    let parse =
        |json: String| serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {answer}"));
    calls.into_iter().map(|(name, json)| (name, parse(json))).collect()
}

/// The formats of public templates, and Hermes'.
fn formats() -> Vec<AnswerFormat> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/text/templates/public");
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    files.sort();
    let mut formats: BTreeMap<String, AnswerFormat> = BTreeMap::new();
    for path in files {
        // Without its reasoning, which a random model never ends.
        let format = AnswerFormat {
            reasoning: None,
            ..AnswerFormat::of(&ChatTemplate::from_source(&fs::read_to_string(&path).unwrap()))
        };
        if format.has_calls() {
            formats.insert(format.to_string(), format);
        }
    }
    formats.insert(String::new(), AnswerFormat::default().or_hermes());
    assert!(formats.len() > 30, "{}", formats.len());
    formats.into_values().collect()
}

fn check(format: &AnswerFormat, prompt: &str, is_single: bool, answer: &str) -> usize {
    let calls = calls(format, prompt, is_single, answer);
    assert!(!calls.is_empty() && (calls.len() == 1 || !is_single), "{format}\n{answer}");
    for (name, arguments) in &calls {
        match name.as_str() {
            "add" => assert!(
                arguments["a"].as_u64().is_some_and(|a| a < 100)
                    && ["x", "\"y"].contains(&arguments["b"].as_str().unwrap_or(""))
                    && (arguments["d"].is_string() || arguments.get("d").is_none()),
                "{format}\n{answer}"
            ),
            name => assert_eq!((name, arguments), ("stop", &json!({})), "{format}"),
        }
    }
    calls.len()
}

fn compiler(text: &Text) -> GrammarCompiler {
    let vocab_size = 256 + text.tokenizer.special_tokens().len();
    GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens).unwrap()
}

fn compiled(compiler: &GrammarCompiler, format: &AnswerFormat, lark: &str) -> Grammar {
    compiler.lark(lark).unwrap_or_else(|e| panic!("{format}\n{e}: {lark}"))
}

/// The prompts that an answer in `format` may have: with the beginning of its first mark, and
/// without.
fn prompts(format: &AnswerFormat) -> Vec<&str> {
    match format.is_harmony {
        true => vec!["<|start|>assistant", ""],
        false if format.begun.is_empty() => vec![""],
        false => vec![&format.begun, ""],
    }
}

/// As texts, and as special tokens.
#[test]
fn random_answers_are_calls_in_every_style() {
    let model = Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it");
    let (plain, vocab_size) = (model.text().unwrap(), model.config().vocab_size);
    let of_plain = GrammarCompiler::new(&plain.tokenizer, vocab_size, &plain.stop_tokens).unwrap();
    let tools = tools();
    let tools: Vec<&Value> = tools.iter().collect();
    let (mut most, mut rng) = (0, ChaCha8Rng::seed_from_u64(3));
    for format in formats() {
        let special = with_special_tags(&format);
        let of_special = compiler(&special);
        for is_single in [true, false] {
            let prompt = prompts(&format)[0];
            let required = RequiredCalls { tools: &tools, is_single, prompt };
            if !format.is_harmony {
                let lark = format.required(required, &plain.tokenizer).unwrap();
                let grammar = compiled(&of_plain, &format, &lark);
                for _ in 0..3 {
                    let answer = answer(plain, &grammar, "", &mut rng);
                    most = most.max(check(&format, prompt, is_single, &answer));
                }
            }
            let lark = format.required(required, &special.tokenizer).unwrap();
            let grammar = compiled(&of_special, &format, &lark);
            for _ in 0..3 {
                let answer = answer(&special, &grammar, "", &mut rng);
                most = most.max(check(&format, prompt, is_single, &answer));
            }
        }
    }
    assert!(most > 1, "several calls in one answer");
}

/// From the trigger on, which may stand in the middle of a token.
#[test]
fn random_answers_are_calls_once_they_have_begun() {
    let tools = tools();
    let tools: Vec<&Value> = tools.iter().collect();
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for format in formats() {
        let special = with_special_tags(&format);
        let of_special = compiler(&special);
        for prompt in prompts(&format) {
            let calls = RequiredCalls { tools: &tools, is_single: false, prompt };
            let optional = format.optional(calls, &special.tokenizer).expect("triggers");
            let lead = if optional.is_first { "" } else { " x" };
            let mut begins = vec![(lead, optional.triggers[0].as_str(), &optional.lark, "")];
            if let Some((begun, lark)) = &optional.begun {
                // What the prompt has of it the model does not write.
                let rests =
                    optional.triggers.iter().filter_map(|trigger| trigger.strip_prefix(&**begun));
                begins.extend(rests.map(|rest| ("", rest, lark, prompt)));
            }
            for (lead, begin, lark, prompt) in begins {
                let grammar = compiled(&of_special, &format, lark);
                let answer = answer(&special, &grammar, &format!("{lead}{begin}"), &mut rng);
                check(&format, prompt, false, answer.strip_prefix(lead).unwrap());
            }
        }
    }
}

/// Texts that begin calls in every format, to be looked at.
#[test]
fn triggers_are_no_words_of_text() {
    let tools = tools();
    let tools: Vec<&Value> = tools.iter().collect();
    let calls = RequiredCalls { tools: &tools, is_single: false, prompt: "" };
    for format in formats() {
        let text = with_special_tags(&format);
        for trigger in format.optional(calls, &text.tokenizer).unwrap().triggers {
            let is_tag = trigger.contains(['<', '[', ']', '`', '{', '>']);
            assert!(is_tag || trigger.ends_with("add") || trigger.ends_with("stop"), "{trigger}");
        }
    }
}
