//! The bodies of llama.cpp's `/completion` and `/infill`.
//!
//! Source: `tools/server/README.md` of llama.cpp.

use super::settings::settings;
use super::{Dialect, Params};
use crate::Model;
use crate::server::app::App;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, is_empty};
use crate::server::lines::LineLimits;
use crate::text::Gap;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// Fields of an answer that a request may choose at most.
const MAX_FIELDS: usize = 128;
/// Most likely tokens beside each token at most.
const MAX_PROBS: usize = 100;

/// What a request asks of the form of its answers.
#[derive(Debug, Default)]
pub(in crate::server) struct NativeOptions {
    /// Fields that the answer has, by their paths; none: all.
    pub response_fields: Option<Vec<String>>,
    pub return_tokens: bool,
    pub timings_per_token: bool,
    pub return_progress: bool,
    pub num_probs: usize,
    /// `generation_settings`.
    pub settings: Map<String, Value>,
}

/// The body of `/completion`.
#[derive(Debug)]
pub(in crate::server) struct NativeRequest {
    pub params: Params,
    pub options: NativeOptions,
    prompts: Vec<MixedPrompt>,
}

/// The body of `/infill`.
#[derive(Debug)]
pub(in crate::server) struct InfillRequest {
    pub params: Params,
    pub options: NativeOptions,
    pub gap: Gap,
}

/// A prompt of texts and token ids.
pub(in crate::server) type MixedPrompt = Vec<Part>;

#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub(in crate::server) enum Part {
    Id(u32),
    Text(String),
}

impl NativeRequest {
    pub fn parse(body: &[u8], model: &Arc<Model>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let prompts = take_prompts(fields.require("prompt")?)?;
        let (params, options) = take(fields, model)?;
        Ok(NativeRequest { params, options, prompts })
    }

    /// Token ids of each prompt.
    pub fn encode(&self, app: &App) -> Result<Vec<Vec<u32>>, ApiError> {
        self.prompts.iter().map(|prompt| encode(app, prompt, true, true)).collect()
    }
}

impl InfillRequest {
    pub fn parse(body: &[u8], model: &Arc<Model>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let mut prefix = fields.require::<String>("input_prefix")?;
        let suffix = fields.require::<String>("input_suffix")?;
        // What is typed already of the line.
        prefix += &fields.take::<String>("prompt")?.unwrap_or_default();
        let chunks = fields.take::<Vec<Value>>("input_extra")?.unwrap_or_default();
        let file = |(index, chunk)| {
            let mut chunk = Fields::of(chunk, &format!("input_extra[{index}]"))?;
            let name = chunk.take::<String>("filename")?.unwrap_or_else(|| "tmp".to_owned());
            // llama.vim says when it took them.
            Ok::<_, ApiError>((name, chunk.require::<String>("text")?))
        };
        let files = chunks.into_iter().enumerate().map(file).collect::<Result<_, ApiError>>()?;
        let (params, options) = take(fields, model)?;
        Ok(InfillRequest { params, options, gap: Gap { prefix, suffix, files } })
    }
}

/// What both have in common.
fn take(mut fields: Fields, model: &Arc<Model>) -> Result<(Params, NativeOptions), ApiError> {
    let response_fields = fields.take::<Vec<String>>("response_fields")?;
    if response_fields.as_ref().is_some_and(|fields| fields.len() > MAX_FIELDS) {
        let what = format!("at most {MAX_FIELDS} fields are possible");
        return Err(ApiError::param("response_fields", what));
    }
    // As in llama.cpp an empty list chooses none: all come.
    let response_fields = response_fields.filter(|fields| !fields.is_empty());
    let num_probs = fields.take::<usize>("n_probs")?.unwrap_or(0);
    if num_probs > MAX_PROBS {
        return Err(ApiError::param("n_probs", format!("it has to be 0 to {MAX_PROBS}")));
    }
    let mut flag = |name| Ok::<_, ApiError>(fields.take::<bool>(name)?.unwrap_or(false));
    let return_tokens = flag("return_tokens")?;
    let timings_per_token = flag("timings_per_token")?;
    let return_progress = flag("return_progress")?;
    let lines = LineLimits {
        min_indent: fields.take::<i64>("n_indent")?.unwrap_or(0).max(0) as usize,
        max_time: take_max_time(&mut fields)?,
    };
    // llama.cpp takes an empty text among them for none.
    if let Some(mut stops) = fields.take::<Value>("stop")? {
        stops.as_array_mut().into_iter().for_each(|stops| stops.retain(|stop| stop != ""));
        fields.add("stop", Some(stops).filter(|stops| stops != ""));
    }
    let mut params = Params::take(&mut fields, model, Dialect::LlamaCpp)?;
    fields.finish()?;
    params.lines = Some(lines);
    params.logprobs = (num_probs > 0).then_some(num_probs);
    let settings = settings(&params, num_probs);
    let options = NativeOptions {
        response_fields,
        return_tokens,
        timings_per_token,
        return_progress,
        num_probs,
        settings,
    };
    Ok((params, options))
}

fn take_max_time(fields: &mut Fields) -> Result<Option<Duration>, ApiError> {
    let ms = fields.take::<i64>("t_max_predict_ms")?.and_then(|ms| u64::try_from(ms).ok());
    Ok(ms.filter(|&ms| ms > 0).map(Duration::from_millis))
}

/// A text, token ids, a list of both, or a list of such.
fn take_prompts(prompt: Value) -> Result<Vec<MixedPrompt>, ApiError> {
    let prompts = match prompt {
        Value::Array(items) if !items.iter().any(Value::is_number) => {
            items.into_iter().map(take_prompt).collect::<Result<_, _>>()?
        }
        prompt => vec![take_prompt(prompt)?],
    };
    match prompts.is_empty() {
        true => Err(ApiError::param("prompt", "there has to be one at least")),
        false => Ok(prompts),
    }
}

fn take_prompt(prompt: Value) -> Result<MixedPrompt, ApiError> {
    match prompt {
        Value::Object(_) => {
            let mut prompt = Fields::of(prompt, "prompt")?;
            prompt.neutral("multimodal_data", is_empty)?;
            let text = prompt.require("prompt_string")?;
            prompt.finish()?;
            Ok(vec![Part::Text(text)])
        }
        prompt => take_mixed(prompt).ok_or_else(|| {
            let what = "it has to be a text, token ids, a list of both, or a list of such";
            ApiError::param("prompt", what)
        }),
    }
}

/// A text, or a list of texts and token ids.
pub(in crate::server) fn take_mixed(value: Value) -> Option<MixedPrompt> {
    match value {
        Value::String(text) => Some(vec![Part::Text(text)]),
        Value::Array(_) => serde_json::from_value(value).ok(),
        _ => None,
    }
}

/// The token ids of a prompt, whose first text has those that the model wants before it.
pub(in crate::server) fn encode(
    app: &App,
    prompt: &[Part],
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<u32>, ApiError> {
    let mut ids = Vec::new();
    for (index, part) in prompt.iter().enumerate() {
        match part {
            Part::Id(id) => ids.push(*id),
            Part::Text(text) => {
                app.check_length(text)?;
                let is_first = add_special && index == 0;
                match parse_special {
                    true => ids.extend(app.encode(text, is_first)?),
                    false => ids.extend(app.text()?.encode_plain(text, is_first)?),
                }
            }
        }
    }
    Ok(ids)
}
