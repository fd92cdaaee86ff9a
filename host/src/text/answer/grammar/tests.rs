//! What a random model writes where it has to call is a call, in every style.

use super::super::{AnswerFormat, AnswerReader, Piece, ReaderOptions, RequiredCalls};
use crate::engine::Constraint;
use crate::grammar::tests::tokens;
use crate::text::ChatTemplate;
use crate::{GrammarCompiler, Model};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;

/// An answer whose tokens are drawn from the allowed ones.
fn answer(model: &Model, grammar: &dyn Constraint, rng: &mut ChaCha8Rng) -> String {
    let text = model.text().unwrap();
    let mut state = grammar.begin();
    let mut ids = Vec::new();
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
        assert!(ids.len() < 2000, "{}", text.tokenizer.decode(&ids, false));
    }
}

fn tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value, required: Value| {
        json!({"type": "function", "function": {"name": name, "description": "",
            "parameters": {"type": "object", "properties": properties, "required": required}}})
    };
    let add = json!({"a": {"type": "integer", "minimum": 0, "maximum": 99},
        "b": {"enum": ["x", "\"y"]}, "c": {"type": "boolean"}});
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

#[test]
fn random_answers_are_calls_in_every_style() {
    let model = Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it");
    let text = model.text().unwrap();
    let vocab_size = model.config().vocab_size;
    let compiler = GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens).unwrap();
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/text/templates/public");
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    files.sort();
    let mut formats: HashMap<String, AnswerFormat> = HashMap::new();
    for path in files {
        // Without its reasoning, which a random model never ends.
        let format = AnswerFormat {
            reasoning: None,
            ..AnswerFormat::of(&ChatTemplate::from_source(&fs::read_to_string(&path).unwrap()))
        };
        let is_named = format.to_string().contains("{name}");
        if format.has_calls() && !format.is_harmony && !is_named {
            formats.insert(format.to_string(), format);
        }
    }
    formats.insert(String::new(), AnswerFormat::default().or_hermes());
    assert!(formats.len() > 25, "{}", formats.len());
    let tools = tools();
    let tools: Vec<&Value> = tools.iter().collect();
    let (mut most, mut rng) = (0, ChaCha8Rng::seed_from_u64(3));
    for format in formats.values() {
        for is_single in [true, false] {
            let prompt = &*format.begun;
            let required = RequiredCalls { tools: &tools, is_single, prompt };
            let lark = format.required(required, &text.tokenizer).unwrap();
            let grammar = compiler.lark(&lark).unwrap_or_else(|e| panic!("{format}\n{e}: {lark}"));
            for _ in 0..3 {
                let answer = answer(&model, &grammar, &mut rng);
                let calls = calls(format, prompt, is_single, &answer);
                assert!(
                    !calls.is_empty() && (calls.len() == 1 || !is_single),
                    "{format}\n{answer}"
                );
                most = most.max(calls.len());
                for (name, arguments) in calls {
                    match name.as_str() {
                        "add" => assert!(
                            arguments["a"].as_u64().is_some_and(|a| a < 100)
                                && ["x", "\"y"].contains(&arguments["b"].as_str().unwrap_or("")),
                            "{format}\n{answer}"
                        ),
                        name => assert_eq!((name, arguments), ("stop", json!({})), "{format}"),
                    }
                }
            }
        }
    }
    assert!(most > 1, "several calls in one answer");
}
