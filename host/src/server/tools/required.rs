//! The grammar of an answer that has to be a call: what the model's format writes, around JSON of a tool's schema.

use super::format::Format;
use crate::grammar::lark_schema;
use crate::text::Tokenizer;
use serde_json::{Value, json};

/// Lark of one call of `tools`, or of any number of them.
pub(super) fn grammar(
    format: Format,
    tools: &[&Value],
    is_single: bool,
    tokenizer: &Tokenizer,
) -> String {
    let (open, close) = format.marks();
    let open = mark(open, tokenizer);
    let close = close.map(|close| mark(close, tokenizer)).unwrap_or_default();
    let several = |call: &str, separator: &str| match is_single {
        true => call.to_owned(),
        false => format!("{call} ({} {call})*", literal(separator)),
    };
    let mut rules = match format {
        Format::Hermes => format!(
            "start: {}\ncall: {open} \"\\n\" function \"\\n\" {close}\n",
            several("call", "\n")
        ),
        Format::Llama3 => format!("start: {}\n", several("function", "; ")),
        // Some of its templates have a space here.
        Format::Mistral => {
            format!("start: {open} \" \"? \"[\" {} \"]\"\n", several("function", ", "))
        }
        Format::Phi4 => {
            format!("start: {open} \"[\" {} \"]\" {close}\n", several("function", ", "))
        }
    };
    let names: Vec<String> = (0..tools.len()).map(|index| format!("function_{index}")).collect();
    rules += &format!("function: {}\n", names.join(" | "));
    for (name, tool) in names.iter().zip(tools) {
        let function = &tool["function"];
        let begin = format!("{{\"name\": {}, \"{}\": ", function["name"], format.arguments_key());
        let schema = schema(&function["parameters"]);
        rules += &format!("{name}: {} arguments_of_{name} \"}}\"\n", literal(&begin));
        rules += &format!("arguments_of_{name}: %json {schema}\n");
    }
    rules
}

/// A text in Lark, which is one of JSON.
fn literal(text: &str) -> String {
    json!(text).to_string()
}

/// A mark as the model writes it: its special token where it has one, else its letters.
fn mark(mark: &str, tokenizer: &Tokenizer) -> String {
    let special = tokenizer
        .token_to_id(mark)
        .filter(|&id| tokenizer.token_bytes(id).is_some_and(|(_, is_special)| is_special));
    special.map_or_else(|| literal(mark), |id| format!("<[{id}]>"))
}

/// A schema of arguments: spaces where models write them, and no arguments that the function does not name.
fn schema(parameters: &Value) -> Value {
    let mut schema = parameters.clone();
    if let Value::Object(fields) = &mut schema
        && fields.contains_key("properties")
    {
        fields.entry("additionalProperties").or_insert(false.into());
    }
    lark_schema(&schema, json!({"item_separator": ", ", "key_separator": ": "}))
}

#[cfg(test)]
mod tests {
    use super::super::parser::{Piece, ToolParser};
    use super::*;
    use crate::engine::Constraint;
    use crate::{GrammarCompiler, Model};
    use rand::seq::IndexedRandom;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// An answer whose tokens are drawn from the allowed ones.
    fn answer(model: &Model, grammar: &dyn Constraint, rng: &mut ChaCha8Rng) -> String {
        let text = model.text().unwrap();
        let mut state = grammar.begin();
        let mut ids = Vec::new();
        loop {
            let words = state.allowed().unwrap();
            let allowed: Vec<u32> = (0..words.len() as u32 * 32)
                .filter(|id| words[*id as usize / 32] >> (id % 32) & 1 != 0)
                .collect();
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

    #[test]
    fn random_answers_are_calls_in_every_format() {
        let model = Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it");
        let text = model.text().unwrap();
        let vocab_size = model.config().vocab_size;
        let compiler =
            GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens).unwrap();
        let tool = |name: &str, properties: Value, required: Value| {
            json!({"type": "function", "function": {"name": name, "description": "",
                "parameters": {"type": "object", "properties": properties, "required": required}}})
        };
        let add = json!({"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "\"y"]}});
        let tools = [tool("add", add, json!(["a", "b"])), tool("stop", json!({}), json!([]))];
        let tools: Vec<&Value> = tools.iter().collect();
        let mut most = 0;
        for format in [Format::Hermes, Format::Llama3, Format::Mistral, Format::Phi4] {
            for is_single in [true, false] {
                let lark = grammar(format, &tools, is_single, &text.tokenizer);
                let grammar = compiler.lark(&lark).unwrap_or_else(|e| panic!("{e}: {lark}"));
                for seed in 0..10 {
                    let answer = answer(&model, &grammar, &mut ChaCha8Rng::seed_from_u64(seed));
                    let mut parser = ToolParser::new(format, is_single);
                    let mut pieces = parser.push(&answer);
                    pieces.extend(parser.finish());
                    let calls: Vec<_> = pieces.chunks(2).collect();
                    assert!(!calls.is_empty() && (calls.len() == 1 || !is_single), "{answer}");
                    most = most.max(calls.len());
                    for call in calls {
                        let [Piece::CallBegin { name, .. }, Piece::CallArguments { json, .. }] =
                            call
                        else {
                            panic!("{answer}: {call:?}")
                        };
                        let arguments: Value = serde_json::from_str(json).unwrap();
                        match name.as_str() {
                            "add" => assert!(
                                arguments["a"].as_u64().is_some_and(|a| a < 100)
                                    && ["x", "\"y"].contains(&arguments["b"].as_str().unwrap()),
                                "{answer}"
                            ),
                            name => assert_eq!((name, arguments), ("stop", json!({}))),
                        }
                    }
                }
            }
        }
        assert!(most > 1, "several calls in one answer");
    }
}
