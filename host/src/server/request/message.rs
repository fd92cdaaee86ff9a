//! A message of a chat. It is data: what a template may read is handed to it, and a field that nobody reads is no mistake.

use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::tools;
use crate::text::{Content, Message};
use serde_json::{Value, json};

const ROLES: &str = "the role has to be system, developer, user, assistant or tool";

/// What a message says of an answer, and no template reads.
const OF_ANSWERS: [&str; 6] =
    ["refusal", "annotations", "audio", "parsed", "cache_control", "function_call"];

/// A message of a request.
pub(in crate::server) fn take(message: Value, path: &str) -> Result<Message, ApiError> {
    let mut fields = Fields::of(message, path)?;
    let role = match fields.require::<String>("role")?.as_str() {
        // OpenAI's newer name.
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        // OpenAI's older name.
        "tool" | "function" => "tool",
        _ => return Err(ApiError::param("messages", ROLES)),
    };
    let mut calls = Vec::new();
    if role == "assistant" {
        calls = fields.take::<Vec<Value>>("tool_calls")?.unwrap_or_default();
        // The one call that an assistant of the older kind made.
        if let Some(function) = fields.take::<Value>("function_call")? {
            calls.push(json!({ "function": function }));
        }
    }
    // Those of other roles are nobody's.
    fields.ignore(&["tool_calls"]);
    let parts = take_content(&mut fields, path)?;
    let content = match parts {
        Parts { content: None, .. } if role == "assistant" => match calls.is_empty() {
            // Nothing was said, or only thought.
            true => Content::Text(String::new()),
            false => Content::Null,
        },
        Parts { content: None, .. } => {
            return Err(ApiError::param(format!("{path}.content"), "this field is required"));
        }
        Parts { content: Some(content), .. } => content,
    };
    fields.ignore(&OF_ANSWERS);
    let mut others = fields.rest();
    if !calls.is_empty() {
        let calls = tools::take_calls(calls, &format!("{path}.tool_calls"))?;
        others.insert("tool_calls".to_owned(), calls.into());
    }
    if let Some(reasoning) = parts.reasoning {
        others.entry("reasoning_content").or_insert_with(|| reasoning.into());
    }
    Ok(Message { fields: others, content, ..Message::new(role, "") })
}

/// What the content of a message says.
struct Parts {
    content: Option<Content>,
    /// Text of the parts that are thoughts, as some clients send them back.
    reasoning: Option<String>,
}

fn take_content(fields: &mut Fields, path: &str) -> Result<Parts, ApiError> {
    let path = format!("{path}.content");
    let (mut texts, mut thoughts) = (Vec::new(), Vec::new());
    match fields.take::<Value>("content")? {
        None => return Ok(Parts { content: None, reasoning: None }),
        Some(Value::String(text)) => texts.push(text),
        Some(Value::Array(parts)) => {
            for part in parts {
                match take_part(part, &path)? {
                    Part::Text(text) => texts.push(text),
                    Part::Thought(text) => thoughts.push(text),
                }
            }
        }
        Some(_) => return Err(ApiError::param(path, "it has to be a text or a list of parts")),
    }
    let content = match &texts[..] {
        [] => Content::Text(String::new()),
        [_] => Content::Text(texts.remove(0)),
        // One below the other, or as they are where the template reads parts.
        _ => Content::Parts(
            texts.into_iter().map(|text| json!({ "type": "text", "text": text })).collect(),
        ),
    };
    let reasoning = (!thoughts.is_empty()).then(|| thoughts.join("\n"));
    Ok(Parts { content: Some(content), reasoning })
}

enum Part {
    Text(String),
    Thought(String),
}

/// A part of a content. Fields beside its text, such as `cache_control`, are for other servers.
fn take_part(part: Value, path: &str) -> Result<Part, ApiError> {
    // As Mistral's clients have it.
    if let Value::String(text) = part {
        return Ok(Part::Text(text));
    }
    let mut part = Fields::of(part, path)?;
    let kind = part.take::<String>("type")?;
    match kind.as_deref().unwrap_or("text") {
        "text" | "input_text" | "output_text" => part.require("text").map(Part::Text),
        "refusal" => part.require("refusal").map(Part::Text),
        "thinking" | "reasoning" => {
            let text = part.take::<Value>("thinking")?.or(part.take("text")?);
            Ok(Part::Thought(text.map(thought).unwrap_or_default()))
        }
        "redacted_thinking" => Ok(Part::Thought(String::new())),
        kind => {
            let what = format!("a part of type {kind:?} is not supported yet: text is");
            Err(ApiError::param(path, what).with_code("unsupported_parameter"))
        }
    }
}

/// The text of a thought: Mistral's is a list of parts.
fn thought(thought: Value) -> String {
    match thought {
        Value::String(text) => text,
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(message: Value) -> Result<Message, String> {
        super::take(message, "messages[1]")
            .map_err(|error| error.to_json()["error"]["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn what_clients_put_into_a_history_is_taken() {
        let call = |arguments: Value| {
            json!({"id": "c1", "type": "function", "index": 0,
            "extra_content": {"google": 1}, "function": {"name": "f", "arguments": arguments}})
        };
        let read = json!({"id": "c1", "type": "function",
            "function": {"name": "f", "arguments": {"x": 1}}});
        let text = |text: &str| Content::Text(text.to_owned());
        for (message, content, fields) in [
            // openai-python's parsed answer.
            (
                json!({"role": "assistant", "content": "{}", "parsed": {"a": 1}, "refusal": null,
                    "annotations": [], "audio": null, "function_call": null, "tool_calls": null}),
                text("{}"),
                json!({}),
            ),
            (
                json!({"role": "assistant", "content": null, "tool_calls": [call(json!("{\"x\": 1}"))]}),
                Content::Null,
                json!({"tool_calls": [read]}),
            ),
            (
                json!({"role": "assistant", "tool_calls": [call(json!({"x": 1}))]}),
                Content::Null,
                json!({"tool_calls": [read]}),
            ),
            (
                json!({"role": "assistant", "content": "", "function_call": {"name": "now", "arguments": ""}}),
                text(""),
                json!({"tool_calls": [{"id": "", "type": "function",
                    "function": {"name": "now", "arguments": {}}}]}),
            ),
            (
                json!({"role": "assistant", "content": null, "reasoning_content": "hm"}),
                text(""),
                json!({"reasoning_content": "hm"}),
            ),
            (
                json!({"role": "user", "content": "Hi", "name": "bob", "id": 17, "opts": {"a": false}, "x": null}),
                text("Hi"),
                json!({"name": "bob", "id": 17, "opts": {"a": false}}),
            ),
            (
                json!({"role": "tool", "tool_call_id": "c1", "content": [
                    {"type": "text", "text": "42", "cache_control": {"type": "ephemeral"}}]}),
                text("42"),
                json!({"tool_call_id": "c1"}),
            ),
            (
                json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}, "c"]}),
                Content::Parts(
                    ["a", "b", "c"].map(|text| json!({"type": "text", "text": text})).into(),
                ),
                json!({}),
            ),
            (
                json!({"role": "assistant", "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "Yes."}]}),
                text("Yes."),
                json!({"reasoning_content": "hm"}),
            ),
            (json!({"role": "user", "content": []}), text(""), json!({})),
        ] {
            let Value::Object(fields) = fields else { panic!("an object") };
            let role = message["role"].as_str().unwrap().to_owned();
            let want = Message { fields, content, ..Message::new(role, "") };
            assert_eq!(take(message.clone()), Ok(want), "{message}");
        }
        assert_eq!(take(json!({"role": "developer", "content": "x"})).unwrap().role, "system");
        assert_eq!(take(json!({"role": "function", "content": "x"})).unwrap().role, "tool");
    }

    #[test]
    fn what_would_change_the_answer_is_refused() {
        for (message, why) in [
            (json!("Hi"), "messages[1]: it has to be an object"),
            (json!({"content": "x"}), "messages[1].role: this field is required"),
            (json!({"role": "x", "content": "x"}), "messages: the role has to be system, "),
            (json!({"role": "user"}), "messages[1].content: this field is required"),
            (json!({"role": "user", "content": 3}), "messages[1].content: it has to be a text or"),
            (
                json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}),
                "messages[1].content: a part of type \"image_url\" is not supported yet",
            ),
            (
                json!({"role": "user", "content": [{"type": "text"}]}),
                "messages[1].content.text: this field is required",
            ),
            (
                json!({"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "f"}}]}),
                "messages[1].tool_calls.function: this field is required",
            ),
        ] {
            let error = take(message.clone()).unwrap_err();
            assert!(error.starts_with(why), "{message}: {error}");
        }
    }
}
