//! Requests that the server has to answer.

use super::MARK;
use crate::tools::random::SplitMix64;
use serde_json::{Value, json};

/// A path and what is sent there.
pub struct Post {
    pub path: &'static str,
    pub body: Value,
}

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// A request for text, of any endpoint.
pub fn post(random: &mut SplitMix64) -> Post {
    match random.below(15) {
        12..14 => Post { path: MESSAGES, body: message(random) },
        14 => {
            let mut body = message(random);
            body.as_object_mut().map(|body| body.remove("max_tokens"));
            Post { path: "/v1/messages/count_tokens", body }
        }
        0..4 => Post { path: CHAT, body: chat(random) },
        4..7 => Post { path: "/v1/completions", body: completion(random) },
        7..9 => Post { path: "/v1/responses", body: response(random) },
        9 => Post { path: "/tokenize", body: json!({ "prompt": text(random) }) },
        10 => Post { path: "/tokenize", body: json!({ "messages": messages(random) }) },
        _ => Post { path: "/detokenize", body: json!({ "tokens": ids(random) }) },
    }
}

/// A request whose answer is streamed.
pub fn stream(random: &mut SplitMix64) -> Post {
    let mut post = match random.below(4) {
        0 => Post { path: CHAT, body: chat(random) },
        1 => Post { path: "/v1/completions", body: completion(random) },
        2 => Post { path: MESSAGES, body: message(random) },
        _ => Post { path: "/v1/responses", body: response(random) },
    };
    post.body["stream"] = true.into();
    if random.one_in(3) && ![MESSAGES, "/v1/responses"].contains(&post.path) {
        post.body["stream_options"] = json!({ "include_usage": true });
    }
    post
}

/// A chat with tools.
pub fn tools(random: &mut SplitMix64) -> Post {
    let mut body = chat(random);
    let tool = |name: &str| {
        json!({"type": "function", "function": {"name": name, "description": "A tool", "parameters": {
            "type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["x"], "additionalProperties": false}}})
    };
    body["tools"] = json!([tool("first"), tool("second")]);
    let named = json!({"type": "function", "function": {"name": "second"}});
    body["tool_choice"] =
        random.pick(&[json!("auto"), json!("required"), json!("none"), named]).clone();
    body["parallel_tool_calls"] = random.one_in(2).into();
    body["max_tokens"] = 48.into();
    body["thinking_token_budget"] = random.below(4).into();
    body["stream"] = random.one_in(2).into();
    if random.one_in(4) {
        let call = json!({"id": "1", "type": "function", "function": {"name": "first", "arguments": "{\"x\": 1}"}});
        body["messages"] = json!([
            {"role": "user", "content": text(random)},
            {"role": "assistant", "content": null, "tool_calls": [call], "reasoning_content": text(random),
                "refusal": null, "annotations": [], "parsed": null},
            {"role": "tool", "tool_call_id": "1", "content": text(random)},
        ]);
    }
    Post { path: CHAT, body }
}

/// A chat whose answer has a form.
pub fn form(random: &mut SplitMix64) -> Post {
    let mut body = chat(random);
    let schema = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 8}, "kind": {"enum": ["a", "b", 3, null]},
        "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
        "required": ["name", "kind"], "additionalProperties": false});
    let (name, value) = match random.below(6) {
        0 => ("response_format", json!({ "type": "json_object" })),
        1 => {
            let named = json!({"name": "x", "strict": true, "schema": schema});
            ("response_format", json!({ "type": "json_schema", "json_schema": named }))
        }
        2 => ("guided_json", schema),
        3 => ("guided_regex", json!("[a-f]{2,9}(-[0-9]+){1,3}")),
        4 => ("guided_choice", json!(["yes", "no", "\"\\"])),
        _ => ("structured_outputs", json!({ "grammar": "start: \"a\" start \"b\" | \"c\"" })),
    };
    body[name] = value;
    body["max_tokens"] = 40.into();
    body["thinking_token_budget"] = random.below(4).into();
    body["stream"] = random.one_in(2).into();
    Post { path: CHAT, body }
}

fn chat(random: &mut SplitMix64) -> Value {
    let mut body = json!({ "messages": messages(random), "max_tokens": 1 + random.below(24) });
    choose_options(random, &mut body);
    let options = [
        ("thinking_token_budget", json!(random.below(9))),
        ("reasoning_effort", json!("low")),
        ("chat_template_kwargs", json!({ "enable_thinking": true })),
        ("cache_prompt", json!(true)),
    ];
    choose(random, &mut body, &options);
    body
}

/// A request of Anthropic's, with or without tools.
fn message(random: &mut SplitMix64) -> Value {
    let part = |random: &mut SplitMix64| json!({ "type": "text", "text": text(random), "cache_control": null });
    let mut body = json!({
        "model": "soak",
        "max_tokens": 1 + random.below(32),
        "messages": [{ "role": "user", "content": [part(random), part(random)] }],
    });
    if random.one_in(2) {
        body["system"] = json!([part(random)]);
        body["thinking"] = json!({ "type": "enabled", "budget_tokens": 1024 });
    }
    if random.one_in(2) {
        let schema = json!({ "type": "object", "properties": { "x": { "type": "integer" } } });
        body["tools"] = json!([{ "name": "first", "input_schema": schema }]);
        let choices = ["auto", "any", "none"];
        body["tool_choice"] = json!({ "type": random.pick(&choices) });
        body["messages"] = json!([
            { "role": "user", "content": text(random) },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": text(random), "signature": "x" },
                { "type": "tool_use", "id": "toolu_1", "name": "first", "input": { "x": 1 } }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "toolu_1", "content": text(random) }, part(random)] },
        ]);
    }
    body
}

fn completion(random: &mut SplitMix64) -> Value {
    let prompt = match random.below(4) {
        0 => json!(text(random)),
        1 => json!([text(random), text(random)]),
        2 => json!(ids(random)),
        _ => json!([ids(random), ids(random)]),
    };
    let mut body = json!({ "prompt": prompt, "max_tokens": 1 + random.below(24) });
    body["echo"] = random.one_in(3).into();
    choose_options(random, &mut body);
    body
}

fn response(random: &mut SplitMix64) -> Value {
    let mut body = json!({ "input": text(random), "max_output_tokens": 1 + random.below(24) });
    if random.one_in(2) {
        let part = json!([{ "type": "input_text", "text": text(random) }]);
        body["input"] = json!([{ "role": "user", "content": part }]);
        body["instructions"] = text(random).into();
        body["metadata"] = json!({ "of": "soak" });
    }
    choose_sampling(random, &mut body);
    body
}

fn choose_options(random: &mut SplitMix64, body: &mut Value) {
    choose_sampling(random, body);
    let options = [
        ("n", json!(1 + random.below(3))),
        ("stop", json!("e")),
        ("stop", json!([" the", "x", "\n\n"])),
        ("stop_token_ids", json!([5, 1100])),
        ("logit_bias", json!({ "17": 5.5, "18": -100 })),
        ("ignore_eos", json!(true)),
        ("return_token_ids", json!(true)),
        ("max_completion_tokens", json!(2)),
    ];
    choose(random, body, &options);
}

fn choose_sampling(random: &mut SplitMix64, body: &mut Value) {
    let options = [
        ("temperature", json!(random.below(21) as f64 / 10.0)),
        ("top_p", json!(0.9)),
        ("top_k", json!(random.below(50))),
        ("min_p", json!(0.05)),
        ("seed", json!(random.next())),
        ("seed", json!(-1)),
        ("repetition_penalty", json!(1.1)),
        ("presence_penalty", json!(-1.5)),
        ("frequency_penalty", json!(1)),
        ("user", json!("someone")),
        ("cache_salt", json!("salt")),
        ("model", json!("soak")),
    ];
    choose(random, body, &options);
}

/// Adds each option with a chance of one in five.
fn choose(random: &mut SplitMix64, body: &mut Value, options: &[(&str, Value)]) {
    for (name, value) in options {
        if random.one_in(5) {
            body[*name] = value.clone();
        }
    }
}

fn messages(random: &mut SplitMix64) -> Value {
    let mut messages = Vec::new();
    if random.one_in(3) {
        messages.push(json!({ "role": "system", "content": text(random) }));
    }
    for _ in 0..random.below(3) {
        messages.push(json!({ "role": "user", "content": text(random) }));
        messages.push(json!({ "role": "assistant", "content": text(random) }));
    }
    let parts = json!([{ "type": "text", "text": text(random) }]);
    let content = if random.one_in(2) { parts } else { json!(text(random)) };
    messages.push(json!({ "role": "user", "content": content }));
    messages.into()
}

fn ids(random: &mut SplitMix64) -> Vec<usize> {
    (0..1 + random.below(40)).map(|_| random.below(1100)).collect()
}

/// A few words, as far from plain ASCII as those of users.
fn text(random: &mut SplitMix64) -> String {
    const WORDS: [&str; 14] = [
        "the",
        "why",
        "Grüße",
        "世界",
        "👩‍👩‍👧",
        "e\u{301}",
        "\u{202e}",
        "\0",
        "\"quoted\\",
        "<|im_start|>",
        "<tool_call>",
        "{\"a\":",
        "\r\n",
        MARK,
    ];
    let words: Vec<&str> = (0..1 + random.below(12)).map(|_| *random.pick(&WORDS)).collect();
    words.join(" ")
}
