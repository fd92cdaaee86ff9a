//! Calls of tools with the chat template of every public model, from a model whose weights are
//! random.

use crate::client::Client;
use crate::models::{GGUF, serving};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const TEMPLATES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/text/templates/public");
/// Positions of the model, of which the longest prompt takes two thirds.
const CONTEXT: usize = 12_288;

/// The name and the file of each template.
fn templates() -> Vec<(String, PathBuf)> {
    let files = fs::read_dir(TEMPLATES).unwrap().map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "jinja"))
        .collect();
    files.sort();
    let named = |path: PathBuf| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path);
    files.into_iter().map(named).collect()
}

/// The tiny model, with a context of [`CONTEXT`] positions.
fn write_model(path: &Path) {
    const KEY: &[u8] = b"llama.context_length";
    let mut bytes = fs::read(GGUF).unwrap();
    let key = bytes.windows(KEY.len()).position(|window| window == KEY).unwrap();
    // After the key comes the type of the value.
    let value = key + KEY.len() + 4;
    bytes[value..value + 4].copy_from_slice(&(CONTEXT as u32).to_le_bytes());
    fs::write(path, bytes).unwrap();
}

fn tools() -> Value {
    let tool = |name: &str, properties: Value, required: Value| {
        json!({ "type": "function", "function": { "name": name, "description": "d",
            "parameters": { "type": "object", "properties": properties, "required": required,
                            "additionalProperties": false } } })
    };
    let add = json!({ "a": { "type": "integer", "minimum": 0, "maximum": 99, "description": "d" },
                      "b": { "type": "string", "enum": ["x", "\"y"], "description": "d" } });
    json!([tool("add", add, json!(["a", "b"])), tool("stop", json!({}), json!([]))])
}

/// The calls of a streamed answer, whose text is blank.
fn streamed_calls(name: &str, client: &Client, body: &Value) -> Vec<Value> {
    let chunks = client.stream("/v1/chat/completions", body).rest();
    let mut calls: Vec<(Value, String)> = Vec::new();
    let mut finish = Value::Null;
    for choice in chunks.iter().filter_map(|chunk| chunk["choices"].get(0)) {
        let text = choice["delta"]["content"].as_str().unwrap_or_default();
        assert!(text.trim().is_empty(), "{name}: {text:?}");
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                calls.push((call.clone(), String::new()));
            }
            calls[index].1 += call["function"]["arguments"].as_str().unwrap_or_default();
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    assert_eq!(finish, "tool_calls", "{name}: {calls:?}");
    let whole = |(mut call, arguments): (Value, String)| {
        call["function"]["arguments"] = arguments.into();
        call
    };
    calls.into_iter().map(whole).collect()
}

fn check(name: &str, call: &Value) {
    let function = &call["function"];
    let arguments = function["arguments"].as_str().unwrap();
    let parsed: Value =
        serde_json::from_str(arguments).unwrap_or_else(|e| panic!("{name}: {e}: {arguments}"));
    let wanted = match function["name"].as_str().unwrap() {
        "add" => {
            let (a, b) = (parsed["a"].as_u64().unwrap(), parsed["b"].as_str().unwrap());
            assert!(a < 100 && ["x", "\"y"].contains(&b), "{name}: {arguments}");
            json!({ "a": a, "b": b })
        }
        function => {
            assert_eq!(function, "stop", "{name}");
            json!({})
        }
    };
    assert_eq!(parsed, wanted, "{name}");
}

#[test]
fn a_call_that_is_required_is_valid_with_every_template() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("tiny.gguf");
    write_model(&model);
    let all = templates();
    assert!(all.len() >= 70);
    let section = |(name, path): &(String, PathBuf)| {
        format!("[{name:?}]\nmodel = {model:?}\nchat-template-file = {path:?}\n")
    };
    let preset = dir.path().join("preset.toml");
    fs::write(&preset, all.iter().map(section).collect::<String>()).unwrap();
    let context = CONTEXT.to_string();
    let none = dir.path().join("none");
    fs::create_dir(&none).unwrap();
    let args = ["--models-preset", preset.to_str().unwrap(), "-c", &context, "--models-max", "2"];
    let serving = serving(&none, &args);
    let mut refused = Vec::new();
    for (name, _) in &all {
        let question = json!({ "role": "user", "content": "Add them." });
        let mut body = json!({ "model": name, "messages": [question], "tools": tools(), "seed": 1,
                               "tool_choice": "required", "temperature": 1.0,
                               "thinking_token_budget": 8, "max_tokens": 3000 });
        let prompt = serving.client.post("/apply-template", &body);
        if prompt.status != 200 {
            refused.push(name.as_str());
            continue;
        }
        let calls = streamed_calls(name, &serving.client, &body);
        assert!(!calls.is_empty(), "{name}");
        calls.iter().for_each(|call| check(name, call));
        // One call, by name, after a history with a call and its result.
        let result =
            |call: &Value| json!({ "role": "tool", "tool_call_id": call["id"], "content": "3" });
        let answer = json!({ "role": "assistant", "content": null, "tool_calls": [calls[0]] });
        body["messages"] = json!([question, answer, result(&calls[0])]);
        body["tool_choice"] = json!({ "type": "function", "function": { "name": "stop" } });
        let again = serving.client.post("/v1/chat/completions", &body);
        assert_eq!(again.status, 200, "{name}: {}", again.text);
        let message = &again.json()["choices"][0]["message"];
        assert_eq!(message["tool_calls"].as_array().map(Vec::len), Some(1), "{name}: {message}");
        assert_eq!(message["tool_calls"][0]["function"]["name"], "stop", "{name}");
        check(name, &message["tool_calls"][0]);
    }
    // It needs variables that no request has, and fails in transformers too.
    assert_eq!(refused, ["fireworks-ai-llama-3-firefunction-v2"]);
}
