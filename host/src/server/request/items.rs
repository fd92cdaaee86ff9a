//! The items of `/v1/responses`: what was said, thought, called and returned.

use super::turns::Turns;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::store::Store;
use crate::server::tools;
use serde_json::{Value, json};

/// What the field `input` says: a text, or a list of items.
pub(super) fn take_input(input: Value) -> Result<Vec<Value>, ApiError> {
    match input {
        Value::String(text) => {
            Ok(vec![json!({ "type": "message", "role": "user", "content": text })])
        }
        Value::Array(items) => Ok(items),
        _ => Err(ApiError::param("input", "it has to be a text or a list of items")),
    }
}

/// Puts the items that are meant in the place of references to them.
pub(super) fn resolve(items: &mut [Value], store: &Store) -> Result<(), ApiError> {
    for (index, item) in items.iter_mut().enumerate() {
        // openai-python's type is left out as well.
        let is_reference = item["type"] == "item_reference";
        if let (true, Some(id)) = (is_reference, item["id"].as_str()) {
            let what = || format!("there is no item `{id}` of a stored response");
            let param = || format!("input[{index}].id");
            *item = store.item(id).ok_or_else(|| ApiError::param(param(), what()))?;
        }
    }
    Ok(())
}

/// Adds an item to a conversation.
pub(super) fn take_item(item: Value, path: &str, turns: &mut Turns) -> Result<(), ApiError> {
    let mut item = Fields::of(item, path)?;
    let kind = item.take::<String>("type")?;
    match kind.as_deref() {
        None | Some("message") => take_message(item, path, turns),
        Some("reasoning") => take_reasoning(item, path, turns),
        Some("function_call") => {
            let (id, name) = (item.require::<String>("call_id")?, item.require::<String>("name")?);
            let arguments = item.take::<Value>("arguments")?;
            let call = json!({ "id": id, "function": { "name": name, "arguments": arguments } });
            tools::take_calls(vec![call], path)?.into_iter().for_each(|call| turns.call(call));
            Ok(())
        }
        Some("function_call_output") => {
            let id = item.require::<String>("call_id")?;
            let output = item.require::<Value>("output")?;
            turns.result(id, &take_content(output, &format!("{path}.output"))?);
            Ok(())
        }
        Some(kind) => {
            let what = format!("an item of the type `{kind}` is not supported");
            Err(ApiError::param(format!("{path}.type"), what))
        }
    }
}

fn take_message(mut item: Fields, path: &str, turns: &mut Turns) -> Result<(), ApiError> {
    let role = item.require::<String>("role")?;
    let text = take_content(item.require("content")?, &format!("{path}.content"))?;
    match role.as_str() {
        "system" | "developer" => turns.system(&text),
        "user" => turns.user(&text),
        "assistant" => turns.text(&text),
        _ => {
            let roles = "the role has to be system, developer, user or assistant";
            return Err(ApiError::param(path, roles));
        }
    }
    Ok(())
}

/// The text of a reasoning item; what is encrypted is not ours.
fn take_reasoning(mut item: Fields, path: &str, turns: &mut Turns) -> Result<(), ApiError> {
    for name in ["content", "summary"] {
        let parts = item.take::<Vec<Value>>(name)?.unwrap_or_default();
        if !parts.is_empty() {
            turns.reasoning(&take_content(parts.into(), &format!("{path}.{name}"))?);
            break;
        }
    }
    Ok(())
}

/// The text of a content: two parts of it are two lines.
fn take_content(content: Value, path: &str) -> Result<String, ApiError> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return Err(ApiError::param(path, "it has to be a text or a list of parts")),
    };
    let texts = parts.into_iter().enumerate().map(|(index, part)| {
        let path = format!("{path}[{index}]");
        let mut part = Fields::of(part, &path)?;
        match part.take::<String>("type")?.as_deref() {
            None
            | Some("input_text" | "output_text" | "text" | "reasoning_text" | "summary_text") => {
                part.require("text")
            }
            Some("refusal") => part.require("refusal"),
            Some(kind) => {
                let what = format!("`{kind}` is not supported: this server takes texts");
                Err(ApiError::param(path, what))
            }
        }
    });
    Ok(texts.collect::<Result<Vec<String>, ApiError>>()?.join("\n"))
}
