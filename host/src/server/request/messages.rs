//! The body of `/v1/messages` and of `/v1/messages/count_tokens`.
//!
//! Source: <https://docs.anthropic.com/en/api/messages>. Parameters of sampling that Anthropic has not are those of the other
//! endpoints.

use super::turns::Turns;
use super::{Conversation, Dialect, Params, take_stop, thinking};
use crate::Model;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, is_empty};
use crate::server::form::Form;
use crate::server::tools::{self, Tools};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Parameters that say where a request runs, how long its prompt is kept or how it is billed.
const IGNORED: [&str; 5] = ["cache_control", "inference_geo", "speed", "diagnostics", "betas"];

/// Parameters of other endpoints, and what runs on Anthropic's servers.
const UNSUPPORTED: [&str; 9] = [
    "stop",
    "max_completion_tokens",
    "response_format",
    "return_token_ids",
    "stream_options",
    "mcp_servers",
    "container",
    "prefill",
    "functions",
];

/// The body of `/v1/messages`.
#[derive(Debug)]
pub(in crate::server) struct MessagesRequest {
    pub params: Params,
    pub conversation: Conversation,
}

impl MessagesRequest {
    pub fn parse(body: &[u8], model: &Arc<Model>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let max_tokens = fields.require::<u32>("max_tokens")?;
        let mut request = Self::take(fields, model)?;
        request.params.max_new_tokens = Some(max_tokens as usize);
        Ok(request)
    }

    /// The same without `max_tokens`: its tokens are counted, and nothing is answered.
    pub fn parse_count(body: &[u8], model: &Arc<Model>) -> Result<Self, ApiError> {
        Self::take(Fields::parse(body)?, model)
    }

    fn take(mut fields: Fields, model: &Arc<Model>) -> Result<Self, ApiError> {
        for name in UNSUPPORTED {
            fields.neutral(name, is_empty)?;
        }
        fields.neutral("n", |n| n == 1)?;
        fields.ignore(&IGNORED);
        take_context_management(&mut fields)?;
        let turns = take_turns(&mut fields)?;
        let tools = take_tools(&mut fields)?;
        let form = take_output(&mut fields)?;
        let variables = thinking::take_variables(&mut fields)?;
        let stop = take_stop(&mut fields, "stop_sequences")?;
        let params = Params::take(&mut fields, model, Dialect::OpenAi)?;
        fields.finish()?;
        let form = form.or(params.form);
        // A call that has to come has its own form.
        let form = form.filter(|_| !tools.are_required());
        let is_continued = turns.is_assistants();
        let mut conversation = Conversation::of(turns.finish(), tools, variables);
        if is_continued {
            conversation = conversation.continued();
        }
        Ok(MessagesRequest { params: Params { stop, form, ..params }, conversation })
    }
}

/// What is cut from a conversation that grows too long: of earlier thoughts the template decides anyway.
fn take_context_management(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(management) = fields.take::<Value>("context_management")? else { return Ok(()) };
    let edits = management["edits"].as_array().cloned().unwrap_or_default();
    for edit in edits {
        let kind = edit["type"].as_str().unwrap_or_default();
        if !kind.starts_with("clear_thinking") {
            let what = format!("an edit of the type `{kind}` is not supported");
            return Err(ApiError::param("context_management", what));
        }
    }
    Ok(())
}

/// The form of the texts; and how much the model is to think, which has its usual name then.
fn take_output(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let old = fields.take::<Value>("output_format")?;
    let Some(config) = fields.take::<Value>("output_config")? else {
        return old.map_or(Ok(None), |format| Form::from_text_format(format, "output_format"));
    };
    let mut config = Fields::of(config, "output_config")?;
    fields.add("reasoning_effort", config.take("effort")?);
    let format = config.take::<Value>("format")?;
    config.finish()?;
    format.map_or(Ok(None), |format| Form::from_text_format(format, "output_config.format"))
}

/// The system message, and those of both sides.
fn take_turns(fields: &mut Fields) -> Result<Turns, ApiError> {
    let mut turns = Turns::default();
    if let Some(system) = fields.take::<Value>("system")? {
        turns.system(&take_texts(system, "system")?);
    }
    let messages = fields.require::<Vec<Value>>("messages")?;
    if messages.is_empty() {
        return Err(ApiError::param("messages", "there has to be one at least"));
    }
    for (index, message) in messages.into_iter().enumerate() {
        take_message(message, &format!("messages[{index}]"), &mut turns)?;
    }
    Ok(turns)
}

fn take_message(message: Value, path: &str, turns: &mut Turns) -> Result<(), ApiError> {
    let mut message = Fields::of(message, path)?;
    let role = message.require::<String>("role")?;
    let content = message.require::<Value>("content")?;
    let path = format!("{path}.content");
    match role.as_str() {
        "user" => take_user(content, &path, turns),
        "assistant" => take_assistant(content, &path, turns),
        // In the middle of a conversation: no template takes it there for sure.
        "system" => {
            turns.user(&take_texts(content, &path)?);
            Ok(())
        }
        _ => Err(ApiError::param("messages", "the role has to be user, assistant or system")),
    }
}

/// The blocks of a content, each with its path; a text is one.
fn blocks(
    content: Value,
    path: &str,
) -> Result<impl Iterator<Item = Result<(String, Fields, String), ApiError>>, ApiError> {
    let blocks = match content {
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        Value::Array(blocks) => blocks,
        _ => return Err(ApiError::param(path, "it has to be a text or a list of blocks")),
    };
    let path = path.to_owned();
    Ok(blocks.into_iter().enumerate().map(move |(index, block)| {
        let path = format!("{path}[{index}]");
        let mut block = Fields::of(block, &path)?;
        let kind = block.require::<String>("type")?;
        Ok((kind, block, path))
    }))
}

fn take_user(content: Value, path: &str, turns: &mut Turns) -> Result<(), ApiError> {
    let mut texts = Vec::new();
    for block in blocks(content, path)? {
        let (kind, mut block, path) = block?;
        match kind.as_str() {
            "text" => texts.push(block.require::<String>("text")?),
            "document" => texts.push(take_document(block, &path)?),
            "tool_result" => {
                say(turns, &mut texts);
                let id = block.require::<String>("tool_use_id")?;
                let content = block.take::<Value>("content")?.unwrap_or_else(|| json!(""));
                turns.result(id, &take_texts(content, &format!("{path}.content"))?);
            }
            _ => return Err(unsupported(&kind, &path)),
        }
    }
    say(turns, &mut texts);
    Ok(())
}

/// The texts so far are one of the user.
fn say(turns: &mut Turns, texts: &mut Vec<String>) {
    if !texts.is_empty() {
        turns.user(&std::mem::take(texts).join("\n"));
    }
}

fn take_assistant(content: Value, path: &str, turns: &mut Turns) -> Result<(), ApiError> {
    let mut texts: Vec<String> = Vec::new();
    for block in blocks(content, path)? {
        let (kind, mut block, path) = block?;
        match kind.as_str() {
            "text" => texts.push(block.require("text")?),
            "thinking" => turns.reasoning(&block.require::<String>("thinking")?),
            // Nobody here can read it.
            "redacted_thinking" => {}
            "tool_use" => {
                let (id, name) = (block.require::<String>("id")?, block.require::<String>("name")?);
                let arguments = block.take::<Value>("input")?.unwrap_or_else(|| json!({}));
                let call =
                    json!({ "id": id, "function": { "name": name, "arguments": arguments } });
                tools::take_calls(vec![call], &path)?.into_iter().for_each(|call| turns.call(call));
            }
            _ => return Err(unsupported(&kind, &path)),
        }
    }
    turns.text(&texts.join("\n"));
    Ok(())
}

/// A content of texts alone.
fn take_texts(content: Value, path: &str) -> Result<String, ApiError> {
    let mut texts: Vec<String> = Vec::new();
    for block in blocks(content, path)? {
        let (kind, mut block, path) = block?;
        match kind.as_str() {
            "text" => texts.push(block.require("text")?),
            "document" => texts.push(take_document(block, &path)?),
            _ => return Err(unsupported(&kind, &path)),
        }
    }
    Ok(texts.join("\n"))
}

/// The text of a document that is one, after its title and what is said about it.
fn take_document(mut document: Fields, path: &str) -> Result<String, ApiError> {
    let path = format!("{path}.source");
    let mut source = Fields::of(document.require("source")?, &path)?;
    let text = match source.require::<String>("type")?.as_str() {
        "text" => source.require("data")?,
        "content" => take_texts(source.require("content")?, &format!("{path}.content"))?,
        kind => return Err(unsupported(kind, &path)),
    };
    let about = [document.take::<String>("title")?, document.take::<String>("context")?];
    let lines: Vec<String> = about.into_iter().flatten().chain([text]).collect();
    Ok(lines.join("\n"))
}

fn unsupported(kind: &str, path: &str) -> ApiError {
    ApiError::param(path, format!("`{kind}` is not supported: this server takes texts"))
}

/// Takes the request's tools, and whether one has to be called.
fn take_tools(fields: &mut Fields) -> Result<Tools, ApiError> {
    let tools = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
    let tool = |(index, tool)| take_tool(tool, &format!("tools[{index}]"));
    let tools = tools.into_iter().enumerate().map(tool).collect::<Result<Vec<_>, _>>()?;
    let mut as_openai = json!({ "tools": tools });
    if let Some(choice) = fields.take::<Value>("tool_choice")? {
        let mut choice = Fields::of(choice, "tool_choice")?;
        as_openai["tool_choice"] = match choice.require::<String>("type")?.as_str() {
            kind @ ("auto" | "none") => kind.into(),
            "any" => "required".into(),
            "tool" => {
                let name = choice.require::<String>("name")?;
                json!({ "type": "function", "function": { "name": name } })
            }
            _ => {
                let what = "the type has to be auto, any, tool or none";
                return Err(ApiError::param("tool_choice", what));
            }
        };
        let is_single = choice.take::<bool>("disable_parallel_tool_use")?.unwrap_or(false);
        as_openai["parallel_tool_calls"] = (!is_single).into();
    }
    Tools::take(&mut Fields::of(as_openai, "")?)
}

/// A tool as OpenAI has it.
fn take_tool(tool: Value, path: &str) -> Result<Value, ApiError> {
    let mut tool = Fields::of(tool, path)?;
    let name = tool.require::<String>("name")?;
    if let Some(kind) = tool.take::<String>("type")?.filter(|kind| kind != "custom") {
        let what = format!("`{kind}` is a tool of Anthropic's servers, and not supported");
        return Err(ApiError::param(format!("{path}.type"), what));
    }
    let description = tool.take::<String>("description")?.unwrap_or_default();
    let parameters = tool.require::<Map<String, Value>>("input_schema")?;
    let function = json!({ "name": name, "description": description, "parameters": parameters });
    Ok(json!({ "type": "function", "function": function }))
}

#[cfg(test)]
mod tests;
