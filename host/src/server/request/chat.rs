//! The body of `/v1/chat/completions`.

use super::{Params, take_top_logprobs};
use crate::Model;
use crate::server::app::App;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, is_empty};
use crate::server::tools::{self, Tools};
use crate::text::Message;
use serde_json::{Map, Value};

/// The body of `/v1/chat/completions`.
#[derive(Debug)]
pub(in crate::server) struct ChatRequest {
    pub params: Params,
    pub conversation: Conversation,
}

/// Messages, and how they become a prompt.
#[derive(Debug)]
pub(in crate::server) struct Conversation {
    pub messages: Vec<Message>,
    pub tools: Tools,
    add_generation_prompt: bool,
    add_special_tokens: bool,
}

impl ChatRequest {
    pub fn parse(body: &[u8], model: &Model) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let conversation = Conversation::take(&mut fields)?;
        let with_logprobs = fields.take("logprobs")?.unwrap_or(false);
        let num_top = take_top_logprobs(&mut fields, "top_logprobs")?;
        if num_top.is_some_and(|num_top| num_top > 0) && !with_logprobs {
            return Err(ApiError::param("top_logprobs", "only with logprobs: true"));
        }
        let mut params = Params::take(&mut fields, model)?;
        params.logprobs = with_logprobs.then(|| num_top.unwrap_or(0));
        fields.finish()?;
        if conversation.tools.are_required()
            && let Some(form) = params.form.take()
            // The form of texts, and there is none.
            && form.param() != "response_format"
        {
            let what = "tool_choice asks for a call: the answer can have no other form";
            return Err(ApiError::param(form.param(), what));
        }
        Ok(ChatRequest { params, conversation })
    }
}

impl Conversation {
    /// Of messages alone.
    pub fn of(messages: Vec<Message>) -> Self {
        Conversation {
            messages,
            tools: Tools::none(),
            add_generation_prompt: true,
            add_special_tokens: false,
        }
    }

    /// The messages of a request.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let messages = fields.require::<Vec<Value>>("messages")?;
        if messages.is_empty() {
            return Err(ApiError::param("messages", "there has to be one at least"));
        }
        let messages = messages.into_iter().enumerate().map(|(index, message)| {
            take_message(Fields::of(message, &format!("messages[{index}]"))?)
        });
        Ok(Conversation {
            messages: messages.collect::<Result<_, _>>()?,
            tools: Tools::take(fields)?,
            add_generation_prompt: fields.take("add_generation_prompt")?.unwrap_or(true),
            // The template writes them itself.
            add_special_tokens: fields.take("add_special_tokens")?.unwrap_or(false),
        })
    }

    /// The prompt, by the model's chat template.
    pub fn encode(&self, app: &App) -> Result<Vec<u32>, ApiError> {
        let text = app.text()?;
        let template = text.chat_template.as_ref().ok_or_else(|| {
            ApiError::invalid("this model has no chat template: use /v1/completions")
        })?;
        // Refuses a format of calls that is not known.
        self.tools.rules(text)?;
        let prompt = self.tools.render(template, &self.messages, self.add_generation_prompt)?;
        app.encode(&prompt, self.add_special_tokens)
    }
}

fn take_message(mut fields: Fields) -> Result<Message, ApiError> {
    let role = match fields.require::<String>("role")?.as_str() {
        // OpenAI's newer name.
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" => "tool",
        _ => {
            let roles = "system, developer, user, assistant or tool";
            return Err(ApiError::param("messages", format!("the role has to be {roles}")));
        }
    };
    let mut others = Map::new();
    if role == "assistant" {
        let calls = fields.take::<Vec<Value>>("tool_calls")?.unwrap_or_default();
        if !calls.is_empty() {
            let calls = tools::take_calls(calls, "messages.tool_calls")?;
            others.insert("tool_calls".to_owned(), calls.into());
        }
        // What openai-python sends back of an answer.
        for name in ["refusal", "annotations", "audio", "function_call"] {
            fields.neutral(name, is_empty)?;
        }
    }
    if role == "tool" {
        for name in ["tool_call_id", "name"] {
            let value = fields.take::<String>(name)?;
            others.extend(value.map(|value| (name.to_owned(), value.into())));
        }
    }
    let content = match fields.take::<Value>("content")? {
        None if others.contains_key("tool_calls") => String::new(),
        None => return Err(ApiError::param("messages.content", "this field is required")),
        Some(content) => take_content(content)?,
    };
    fields.finish()?;
    Ok(Message { fields: others, ..Message::new(role, content) })
}

/// The text of a message.
fn take_content(content: Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => parts.into_iter().map(take_part).collect(),
        _ => Err(ApiError::param("messages", "content has to be a text or a list of parts")),
    }
}

fn take_part(part: Value) -> Result<String, ApiError> {
    let mut part = Fields::of(part, "messages.content")?;
    let kind = part.require::<String>("type")?;
    if kind != "text" {
        return Err(ApiError::unsupported("messages.content.type"));
    }
    let text = part.require("text")?;
    part.finish()?;
    Ok(text)
}
