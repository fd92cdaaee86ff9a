//! The bodies of Ollama's `/api/chat`, `/api/generate`, `/api/embed` and `/api/embeddings`.
//!
//! Source: <https://github.com/ollama/ollama/blob/main/docs/api.md>.

use super::{Conversation, Dialect, Params, take_top_logprobs};
use crate::Model;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, is_empty};
use crate::server::form::Form;
use crate::server::models::KeepAlive;
use crate::text::Gap;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Inputs of a request for embeddings at most.
const MAX_INPUTS: usize = 2048;
/// Tokens of a history at most that a request gives as `context`.
const MAX_HISTORY: usize = 1 << 20;

/// A request for an answer.
#[derive(Debug)]
pub(in crate::server) struct OllamaRequest {
    pub params: Params,
    /// The model as the request calls it.
    pub name: Option<String>,
    pub input: Input,
    /// Whether the model is to be unloaded after it.
    pub unloads: bool,
}

/// What is answered.
#[derive(Debug)]
pub(in crate::server) enum Input {
    /// Nothing: the model is only to be loaded.
    Nothing,
    Chat(Conversation),
    /// With the tokens of earlier turns.
    Turn(Conversation, Vec<u32>),
    /// A text as it is.
    Raw(String),
    Gap(Gap),
}

/// A request for embeddings.
#[derive(Debug)]
pub(in crate::server) struct OllamaEmbed {
    pub name: Option<String>,
    pub inputs: Vec<String>,
    /// Whether inputs that are too long are cut.
    pub truncates: bool,
    /// Numbers of an embedding, if not all.
    pub dimensions: Option<usize>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Think {
    Is(bool),
    Effort(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Several(Vec<String>),
}

impl OllamaRequest {
    /// The body of `/api/chat`.
    pub fn parse_chat(body: &[u8], model: &Arc<Model>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let messages = fields.take::<Vec<Value>>("messages")?.unwrap_or_default();
        let is_empty = messages.is_empty();
        let messages = messages
            .into_iter()
            .enumerate()
            .map(|(index, message)| openais_message(message, &format!("messages[{index}]")))
            .collect::<Result<Vec<_>, _>>()?;
        fields.add("messages", (!is_empty).then(|| messages.into()));
        take_tools(&mut fields)?;
        let common = Common::take(&mut fields)?;
        let input = match is_empty {
            true => Input::Nothing,
            false => Input::Chat(Conversation::take(&mut fields)?),
        };
        common.finish(fields, model, input)
    }

    /// The body of `/api/generate`.
    pub fn parse_generate(body: &[u8], model: &Arc<Model>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let prompt = fields.take::<String>("prompt")?.unwrap_or_default();
        let suffix = fields.take::<String>("suffix")?.unwrap_or_default();
        let system = fields.take::<String>("system")?.unwrap_or_default();
        let is_raw = fields.take::<bool>("raw")?.unwrap_or(false);
        let history = fields.take::<Vec<u32>>("context")?.unwrap_or_default();
        if history.len() > MAX_HISTORY {
            return Err(ApiError::param("context", format!("at most {MAX_HISTORY} tokens")));
        }
        fields.neutral("images", is_empty)?;
        take_template(&mut fields)?;
        let common = Common::take(&mut fields)?;
        let has_template = model.text().is_some_and(|text| text.chat_template.is_some());
        let input = if !suffix.is_empty() {
            Input::Gap(Gap { prefix: prompt, suffix, files: Vec::new() })
        } else if prompt.is_empty() && history.is_empty() {
            Input::Nothing
        } else if is_raw || !has_template {
            Input::Raw(prompt)
        } else {
            let message = |role: &str, text: String| json!({ "role": role, "content": text });
            let system = (!system.is_empty()).then(|| message("system", system));
            let user = message("user", prompt);
            let messages: Vec<Value> = system.into_iter().chain([user]).collect();
            fields.add("messages", Some(messages.into()));
            Input::Turn(Conversation::take(&mut fields)?, history)
        };
        common.finish(fields, model, input)
    }
}

/// What both have in common, but for the parameters of sampling.
struct Common {
    name: Option<String>,
    form: Option<Form>,
    stream: bool,
    logprobs: Option<usize>,
    unloads: bool,
}

impl Common {
    fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let name = take_name(fields)?;
        let options = fields.take::<Map<String, Value>>("options")?.unwrap_or_default();
        for (option, value) in options {
            if fields.has(&option) {
                let what = "it is there beside the options, too";
                return Err(ApiError::param(format!("options.{option}"), what));
            }
            fields.add(&option, Some(value));
        }
        // A text that ends nothing is none.
        if let Some(mut stops) = fields.take::<Value>("stop")? {
            stops.as_array_mut().into_iter().for_each(|stops| stops.retain(|stop| stop != ""));
            fields.add("stop", Some(stops));
        }
        match fields.take("think")? {
            None => {}
            Some(Think::Is(is)) => fields.add("enable_thinking", Some(is.into())),
            Some(Think::Effort(effort)) => fields.add("reasoning_effort", Some(effort.into())),
        }
        let with_logprobs = fields.take::<bool>("logprobs")?.unwrap_or(false);
        let num_top = take_top_logprobs(fields, "top_logprobs")?.unwrap_or(0);
        Ok(Common {
            name,
            form: take_format(fields)?,
            stream: fields.take("stream")?.unwrap_or(true),
            logprobs: with_logprobs.then_some(num_top),
            unloads: take_keep_alive(fields)? == Some(KeepAlive::For(Duration::ZERO)),
        })
    }

    fn finish(
        self,
        mut fields: Fields,
        model: &Arc<Model>,
        input: Input,
    ) -> Result<OllamaRequest, ApiError> {
        let Common { name, form, stream, logprobs, unloads } = self;
        // Variables of a chat, where there is none.
        if !matches!(input, Input::Chat(_) | Input::Turn(..)) {
            fields.ignore(&["enable_thinking", "reasoning_effort", "tools"]);
        }
        fields.ignore(&["embedding_only", "truncate", "shift"]);
        let mut params = Params::take(&mut fields, model, Dialect::Ollama)?;
        fields.finish()?;
        // A longer context than the model has is the model's.
        let max = model.config().max_position_embeddings;
        params.min_context = params.min_context.map(|wanted| wanted.min(max));
        (params.stream, params.logprobs) = (stream, logprobs);
        params.form = form;
        Ok(OllamaRequest { params, name, input, unloads })
    }
}

impl OllamaEmbed {
    /// The body of `/api/embed`.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let inputs = match fields.take::<Value>("input")?.map(serde_json::from_value) {
            None => Vec::new(),
            Some(Ok(Texts::One(text))) => vec![text],
            Some(Ok(Texts::Several(texts))) => texts,
            Some(Err(_)) => {
                return Err(ApiError::param("input", "it has to be a text or a list of them"));
            }
        };
        let request = OllamaEmbed {
            name: take_name(&mut fields)?,
            inputs,
            truncates: fields.take("truncate")?.unwrap_or(true),
            dimensions: fields.take::<usize>("dimensions")?.filter(|&dimensions| dimensions > 0),
        };
        request.finish(fields)
    }

    /// The body of `/api/embeddings`, which is older.
    pub fn parse_one(body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let inputs = fields.take::<String>("prompt")?.into_iter().collect();
        let name = take_name(&mut fields)?;
        OllamaEmbed { name, inputs, truncates: true, dimensions: None }.finish(fields)
    }

    fn finish(self, mut fields: Fields) -> Result<Self, ApiError> {
        take_keep_alive(&mut fields)?;
        // Of a context, of threads and of sampling: nothing that changes an embedding.
        fields.ignore(&["options"]);
        fields.finish()?;
        if self.inputs.len() > MAX_INPUTS {
            let what = format!("{} texts, at most {MAX_INPUTS} are possible", self.inputs.len());
            return Err(ApiError::param("input", what));
        }
        Ok(self)
    }
}

/// The model's name, which has an older field, too.
pub(in crate::server) fn take_name(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let (name, older) = (fields.take::<String>("model")?, fields.take::<String>("name")?);
    Ok(name.filter(|name| !name.is_empty()).or(older))
}

fn take_keep_alive(fields: &mut Fields) -> Result<Option<KeepAlive>, ApiError> {
    fields.take::<Value>("keep_alive")?.map(keep_alive_of).transpose()
}

/// Seconds: a number, or a text such as `5m`, `1h30m` and `-1`.
pub(in crate::server) fn keep_alive_of(value: Value) -> Result<KeepAlive, ApiError> {
    let keep_alive = match &value {
        Value::Number(seconds) => seconds.as_f64().map(KeepAlive::from_seconds),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let what = "it has to be seconds, or a text such as 5m";
    keep_alive.ok_or_else(|| ApiError::param("keep_alive", what))
}

fn take_format(fields: &mut Fields) -> Result<Option<Form>, ApiError> {
    let format = match fields.take::<Value>("format")? {
        None => return Ok(None),
        Some(Value::String(name)) if name.is_empty() => return Ok(None),
        Some(Value::String(name)) if name == "json" => json!({ "type": "json_object" }),
        Some(schema @ Value::Object(_)) => json!({ "type": "json_schema", "schema": schema }),
        Some(_) => return Err(ApiError::param("format", "it has to be json or a JSON schema")),
    };
    Form::from_text_format(format, "format")
}

fn take_template(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take::<String>("template")?.is_none_or(|template| template.is_empty()) {
        true => Ok(()),
        false => {
            let what = "templates of Modelfiles are not read: the model's own is, or that of --chat-template";
            Err(ApiError::param("template", what).with_code("unsupported_parameter"))
        }
    }
}

/// Tools without a type are functions.
fn take_tools(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(mut tools) = fields.take::<Vec<Value>>("tools")? else { return Ok(()) };
    for tool in tools.iter_mut().filter_map(Value::as_object_mut) {
        tool.entry("type").or_insert_with(|| "function".into());
    }
    fields.add("tools", Some(tools.into()));
    Ok(())
}

/// A message as OpenAI writes it.
fn openais_message(message: Value, path: &str) -> Result<Value, ApiError> {
    let mut fields = Fields::of(message, path)?;
    fields.neutral("images", is_empty)?;
    fields.rename("thinking", "reasoning_content")?;
    fields.rename("tool_name", "name")?;
    let mut message = fields.rest();
    // Clients leave an empty text out.
    if !message.contains_key("tool_calls") {
        message.entry("content").or_insert_with(|| "".into());
    }
    Ok(message.into())
}
