//! Random answers, each token drawn from the allowed ones.

mod gbnf;
mod schemas;

use super::*;
use crate::Model;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "bé", "\"c"]}, "maxItems": 3},
        "inner": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": false
}"#;

fn model() -> Model {
    Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it")
}

fn compiler(model: &Model) -> GrammarCompiler {
    let text = model.text().unwrap();
    GrammarCompiler::new(&text.tokenizer, model.config().vocab_size, &text.stop_tokens).unwrap()
}

/// The tokens of a set of bits, as [`ConstraintState::allowed`](crate::engine::ConstraintState) gives it.
pub fn tokens(words: &[u32]) -> Vec<u32> {
    let mut tokens = Vec::new();
    for (first, &word) in (0..).step_by(32).zip(words) {
        let mut rest = word;
        while rest != 0 {
            tokens.push(first + rest.trailing_zeros());
            rest &= rest - 1;
        }
    }
    tokens
}

/// An answer with a stop token.
fn answer(model: &Model, grammar: &Grammar, rng: &mut ChaCha8Rng) -> String {
    let text = model.text().unwrap();
    let mut state = grammar.begin();
    let mut ids = Vec::new();
    loop {
        let allowed = tokens(&state.allowed().unwrap());
        assert!(allowed.iter().all(|&token| (token as usize) < model.config().vocab_size));
        let ends: Vec<u32> =
            allowed.iter().copied().filter(|token| text.stop_tokens.contains(token)).collect();
        // Long answers end as soon as they may.
        let token = match ends.first() {
            Some(&end) if ids.len() > 30 || rng.random_bool(0.2) => end,
            _ => *allowed.choose(rng).expect("a token"),
        };
        state.accept(token).unwrap();
        if text.stop_tokens.contains(&token) {
            // After the end there is nothing but ends.
            let after = tokens(&state.allowed().unwrap());
            assert!(after.iter().all(|token| text.stop_tokens.contains(token)), "{after:?}");
            return text.tokenizer.decode(&ids, true);
        }
        ids.push(token);
        assert!(ids.len() < 1000, "{}", text.tokenizer.decode(&ids, true));
    }
}

#[test]
fn random_answers_are_json_of_the_schema() {
    let model = model();
    let grammar = compiler(&model).json_schema(SCHEMA).unwrap();
    for seed in 0..100 {
        let answer = answer(&model, &grammar, &mut ChaCha8Rng::seed_from_u64(seed));
        let value: Value = serde_json::from_str(&answer).expect(&answer);
        let fields = value.as_object().expect(&answer);
        assert!(fields["name"].as_str().is_some_and(|name| name.chars().count() <= 12), "{answer}");
        assert!(fields["age"].as_u64().is_some_and(|age| age <= 150), "{answer}");
        let tags = fields["tags"].as_array().expect(&answer);
        assert!(tags.len() <= 3, "{answer}");
        assert!(tags.iter().all(|tag| ["a", "bé", "\"c"].contains(&tag.as_str().unwrap())));
        assert!(fields.get("inner").is_none_or(|inner| inner.is_null() || inner.is_boolean()));
        assert!(fields.keys().all(|key| ["name", "age", "tags", "inner"].contains(&key.as_str())));
    }
}

#[test]
fn random_answers_match_a_regex_and_a_grammar() {
    let model = model();
    let compiler = compiler(&model);
    let regex = compiler.regex(r"[0-9]{3}-(yes|no)").unwrap();
    let lark = compiler.lark("start: \"(\" start \")\" | \"x\"").unwrap();
    for seed in 0..50 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let phone = answer(&model, &regex, &mut rng);
        let (digits, word) = phone.split_once('-').expect(&phone);
        assert!(digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{phone}");
        assert!(word == "yes" || word == "no", "{phone}");
        let nested = answer(&model, &lark, &mut rng);
        let depth = nested.find('x').expect(&nested);
        assert_eq!(nested, format!("{}x{}", "(".repeat(depth), ")".repeat(depth)));
    }
}

#[test]
fn what_is_no_grammar_is_a_typed_error() {
    let model = model();
    let compiler = compiler(&model);
    for (result, what) in [
        (compiler.json_schema("{"), "JSON schema: EOF"),
        (compiler.json_schema("7"), "JSON schema: #: it has to be an object, or true or false"),
        (
            compiler.json_schema(r#"{"type": "nothing"}"#),
            "JSON schema: #/type: it has to be one of",
        ),
        (compiler.regex("("), "regular expression: "),
        (compiler.lark("start: other"), "grammar: "),
        (compiler.lark(&"x".repeat(MAX_BYTES + 1)), "at most 1048576"),
        (compiler.lark(&format!("start: {}", ["\"yes\""; 100_000].join(" | "))), "it is too large"),
    ] {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(what) && error.lines().count() == 1, "{error}");
    }
    let text = model.text().unwrap();
    for ends in [&[][..], &[u32::MAX]] {
        let none = GrammarCompiler::new(&text.tokenizer, 1000, ends);
        assert!(matches!(none, Err(GrammarError::NoEnd)));
    }
}
