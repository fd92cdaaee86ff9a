//! Schemas of every keyword, against the labels of Python's jsonschema (`tests/fixtures/schemas/make.py`) and the
//! crate of that name.

use super::*;
use serde::Deserialize;
use std::time::{Duration, Instant};

#[derive(Deserialize)]
struct Case {
    schema: Value,
    valid: Vec<Value>,
    invalid: Vec<Value>,
}

fn cases() -> Vec<Case> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/schemas/schemas.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Whether a grammar allows a whole text.
fn allows(model: &Model, grammar: &Grammar, text: &str) -> bool {
    let text = model.text().unwrap().tokenizer.encode(text, false).unwrap();
    let mut state = grammar.begin();
    for token in text {
        if !tokens(&state.allowed().unwrap()).contains(&token) {
            return false;
        }
        state.accept(token).unwrap();
    }
    let ends = &model.text().unwrap().stop_tokens;
    tokens(&state.allowed().unwrap()).iter().any(|token| ends.contains(token))
}

/// An answer that prefers tokens that close what is open, those of which `is_closing` holds; `None` for one that does not end soon.
fn short_answer(
    model: &Model,
    is_closing: &[bool],
    grammar: &Grammar,
    rng: &mut ChaCha8Rng,
) -> Option<String> {
    let text = model.text().unwrap();
    let mut state = grammar.begin();
    let mut ids = Vec::new();
    while ids.len() < 200 {
        let allowed = tokens(&state.allowed().unwrap());
        if let Some(end) = allowed.iter().find(|token| text.stop_tokens.contains(token))
            && (ids.len() > 20 || rng.random_bool(0.5))
        {
            state.accept(*end).unwrap();
            return Some(text.tokenizer.decode(&ids, true));
        }
        let closing: Vec<u32> =
            allowed.iter().filter(|token| is_closing[**token as usize]).copied().collect();
        let closes = !closing.is_empty() && rng.random_bool(0.4);
        let token = *(if closes { &closing } else { &allowed }).choose(rng).expect("a token");
        if text.stop_tokens.contains(&token) {
            continue;
        }
        state.accept(token).unwrap();
        ids.push(token);
    }
    None
}

#[test]
fn documents_of_a_schema_are_allowed_and_others_are_refused_or_told() {
    let model = model();
    let compiler = compiler(&model);
    let (mut num_held, mut num_told) = (0, 0);
    for Case { schema, valid, invalid } in cases() {
        let grammar = compiler.json_schema(&schema.to_string());
        let grammar = grammar.unwrap_or_else(|error| panic!("{schema}: {error}"));
        for document in valid {
            let text = document.to_string();
            assert!(allows(&model, &grammar, &text), "{schema} has to allow {text}");
            assert_eq!(grammar.violations(&text), Vec::<String>::new(), "{schema}: {text}");
        }
        for document in invalid {
            let text = document.to_string();
            assert!(!grammar.violations(&text).is_empty(), "{schema} has to refuse {text}");
            match allows(&model, &grammar, &text) {
                true => num_told += 1,
                false => num_held += 1,
            }
        }
    }
    // Most by the grammar, before they are written.
    assert!(num_held > 170 && num_told < 60, "{num_held} held, {num_told} told");
}

#[test]
fn random_answers_to_every_schema_end_in_documents_of_it() {
    let model = model();
    let compiler = compiler(&model);
    let tokenizer = &model.text().unwrap().tokenizer;
    let closes = |id| {
        let word = tokenizer.token_bytes(id).map_or_else(Vec::new, |(word, _)| word);
        word.len() < 3 && word.first().is_some_and(|byte| b"\"]},0".contains(byte))
    };
    let is_closing: Vec<bool> = (0..model.config().vocab_size as u32).map(closes).collect();
    let (mut num_ended, mut num_told) = (0, 0);
    for Case { schema, .. } in cases() {
        let grammar = compiler.json_schema(&schema.to_string()).unwrap();
        let oracle = jsonschema::options().should_validate_formats(false).build(&schema).unwrap();
        for seed in 0..3 {
            let rng = &mut ChaCha8Rng::seed_from_u64(seed);
            let Some(answer) = short_answer(&model, &is_closing, &grammar, rng) else { continue };
            num_ended += 1;
            // Numbers beyond what a double holds are JSON that programs read differently.
            let Ok(document) = serde_json::from_str::<Value>(&answer) else { continue };
            if document.as_f64().is_some_and(|number| number.abs() > 1e15) {
                continue;
            }
            let violations = grammar.violations(&answer);
            assert_eq!(oracle.is_valid(&document), violations.is_empty(), "{schema}: {answer}");
            num_told += usize::from(!violations.is_empty());
        }
    }
    assert!(num_ended > 300 && num_told < 60, "{num_ended} ended, {num_told} told");
}

#[test]
fn schemas_that_nothing_is_of_or_that_lead_out_are_refused_before_the_first_token() {
    let model = model();
    let compiler = compiler(&model);
    let endless = json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]});
    for (schema, why) in [
        (json!(false), "no document is of it"),
        (json!({"enum": []}), "no document is of it"),
        (json!({"type": []}), "no document is of it"),
        (json!({"not": {}}), "no document is of it"),
        (json!({"type": "string", "minLength": 3, "maxLength": 2}), "no document is of it"),
        (json!({"type": "integer", "minimum": 3, "maximum": 2}), "no document is of it"),
        (
            json!({"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5}),
            "no document is of it",
        ),
        (json!({"type": "array", "minItems": 3, "maxItems": 2}), "no document is of it"),
        (
            json!({"type": "object", "required": ["a"], "additionalProperties": false}),
            "no document is of it",
        ),
        (json!({"type": "string", "enum": [1, 2]}), "no document is of it"),
        (endless, "no document is of it"),
        (json!({"$ref": "#"}), "#: a `$ref` that leads to itself"),
        (json!({"allOf": [{"$ref": "#"}]}), "#: a `$ref` that leads to itself"),
        (json!({"$ref": "https://example.com/a.json"}), "`https://example.com/a.json` leads out"),
        (json!({"$ref": "#/$defs/none"}), "`#/$defs/none` leads to nothing"),
        (json!({"type": "string", "pattern": "("}), "#: `(` is no regular expression"),
        (json!({"properties": {"a/b": {"minLength": -1}}}), "#/properties/a~1b/minLength: it has"),
        (json!({"properties": []}), "#/properties: it has to be an object of schemas"),
        (json!({"anyOf": {}}), "#/anyOf: it has to be a list of schemas"),
        (json!({"required": [1]}), "#/required: it has to be a list of texts"),
    ] {
        let error = compiler.json_schema(&schema.to_string()).expect_err(&schema.to_string());
        let error = error.to_string();
        assert!(error.contains(why) && error.lines().count() == 1, "{schema}: {error}");
    }
}

#[test]
fn schemas_that_are_made_to_take_long_are_compiled_or_refused() {
    let model = model();
    let compiler = compiler(&model);
    let chain = |len: usize, link: &dyn Fn(Value) -> Value| {
        let mut defs = serde_json::Map::new();
        for number in 0..len {
            let next = json!({"$ref": format!("#/$defs/{}", number + 1)});
            defs.insert(number.to_string(), link(next));
        }
        defs.insert(len.to_string(), json!({"type": "null"}));
        json!({"$defs": defs, "$ref": "#/$defs/0"})
    };
    let nested = |next: Value| json!({"type": "object", "properties": {"a": next}});
    let doubled = |next: Value| json!({"allOf": [next, next]});
    let cases = |next: Value| {
        let case = |number: i32| json!({"if": {"properties": {"k": {"const": number}}}, "then": {}, "else": next});
        json!({"type": "object", "allOf": (0..30).map(case).collect::<Vec<_>>()})
    };
    for schema in
        [chain(800, &nested), chain(50, &doubled), chain(50, &|next| next), chain(20, &cases)]
    {
        let start = Instant::now();
        let result = compiler.json_schema(&schema.to_string());
        if let Ok(grammar) = &result {
            assert!(grammar.violations(r#"{"a": {"a": {}}}"#).len() < 9);
        }
        let took = start.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}: {:.200}", schema.to_string());
    }
    assert!(compiler.json_schema(&chain(20_000, &nested).to_string()).is_err());
}
