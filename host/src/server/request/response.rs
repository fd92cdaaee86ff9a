//! The body of `/v1/responses`.
//!
//! Source: <https://platform.openai.com/docs/api-reference/responses/create>.

use super::{Conversation, Params};
use crate::Model;
use crate::server::answer::Settings;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, is_empty, is_off};
use crate::server::form::Form;
use crate::text::Message;
use serde_json::{Value, json};

/// Parameters of the other endpoints.
const OF_OTHERS: [&str; 12] = [
    "n",
    "best_of",
    "max_tokens",
    "max_completion_tokens",
    "messages",
    "response_format",
    "return_token_ids",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
];

/// The body of `/v1/responses`.
#[derive(Debug)]
pub(in crate::server) struct ResponseRequest {
    pub params: Params,
    pub conversation: Conversation,
    pub settings: Settings,
}

impl ResponseRequest {
    pub fn parse(body: &[u8], model: &Model) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        reject_unsupported(&mut fields)?;
        let input = fields.require::<Value>("input")?;
        let instructions = fields.take::<String>("instructions")?;
        let system = instructions.iter().map(|text| Message::new("system", text.clone()));
        let messages = system.chain(take_input(input)?).collect();
        let (form, format) = take_text(&mut fields)?;
        let max_output_tokens = fields.take::<u32>("max_output_tokens")?.map(|max| max as usize);
        let metadata = fields.take::<Value>("metadata")?.unwrap_or_else(|| json!({}));
        if let Some(options) = fields.take::<Value>("stream_options")? {
            let mut options = Fields::of(options, "stream_options")?;
            options.ignore(&["include_obfuscation"]);
            options.finish()?;
        }
        let params = Params::take(&mut fields, model)?;
        fields.finish()?;
        let settings = Settings {
            instructions,
            max_output_tokens,
            temperature: params.sampling.temperature,
            top_p: params.sampling.top_p,
            format,
            metadata,
        };
        let params = Params { max_new_tokens: max_output_tokens, form, ..params };
        Ok(ResponseRequest { params, conversation: Conversation::of(messages), settings })
    }
}

/// What the endpoint has elsewhere, and not here.
fn reject_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["previous_response_id", "conversation", "prompt", "include", "max_tool_calls"] {
        fields.neutral(name, is_empty)?;
    }
    for name in OF_OTHERS {
        fields.neutral(name, is_empty)?;
    }
    fields.neutral("background", is_off)?;
    fields.neutral("truncation", |value| value == "disabled")?;
    // Without tools there is no call.
    fields.ignore(&["parallel_tool_calls"]);
    if let Some(reasoning) = fields.take::<Value>("reasoning")? {
        let mut reasoning = Fields::of(reasoning, "reasoning")?;
        for name in ["effort", "summary", "generate_summary"] {
            reasoning.neutral(name, |value| value == "none")?;
        }
        reasoning.finish()?;
    }
    Ok(())
}

/// The messages of a text, or of a list of items.
fn take_input(input: Value) -> Result<Vec<Message>, ApiError> {
    let items = match input {
        Value::String(text) => return Ok(vec![Message::new("user", text)]),
        Value::Array(items) if !items.is_empty() => items,
        _ => return Err(ApiError::param("input", "it has to be a text or a list of messages")),
    };
    let take = |(index, item)| take_item(item, &format!("input[{index}]"));
    items.into_iter().enumerate().map(take).collect()
}

fn take_item(item: Value, path: &str) -> Result<Message, ApiError> {
    let mut item = Fields::of(item, path)?;
    // What openai-python sends back of an answer.
    item.ignore(&["id", "status"]);
    item.neutral("type", |kind| kind == "message")?;
    let role = match item.require::<String>("role")?.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        _ => {
            let roles = "the role has to be system, developer, user or assistant";
            return Err(ApiError::param(path, roles));
        }
    };
    let content = match item.require::<Value>("content")? {
        Value::String(text) => text,
        Value::Array(parts) => {
            let path = format!("{path}.content");
            let take = |part| take_part(part, &path);
            parts.into_iter().map(take).collect::<Result<_, _>>()?
        }
        _ => return Err(ApiError::param(path, "content has to be a text or a list of parts")),
    };
    item.finish()?;
    Ok(Message::new(role, content))
}

fn take_part(part: Value, path: &str) -> Result<String, ApiError> {
    let mut part = Fields::of(part, path)?;
    part.neutral("type", |kind| kind == "input_text" || kind == "output_text")?;
    part.ignore(&["annotations", "logprobs"]);
    let text = part.require("text")?;
    part.finish()?;
    Ok(text)
}

/// The form of the text, and how the request says it.
fn take_text(fields: &mut Fields) -> Result<(Option<Form>, Value), ApiError> {
    let plain = || json!({ "type": "text" });
    let Some(text) = fields.take::<Value>("text")? else { return Ok((None, plain())) };
    let mut text = Fields::of(text, "text")?;
    text.neutral("verbosity", |verbosity| verbosity == "medium")?;
    let format = text.take::<Value>("format")?.unwrap_or_else(plain);
    text.finish()?;
    Ok((Form::of_text(format.clone())?, format))
}
