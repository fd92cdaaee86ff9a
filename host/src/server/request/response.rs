//! The body of `/v1/responses`.
//!
//! Source: <https://platform.openai.com/docs/api-reference/responses/create>.

use super::items::{resolve, take_input, take_item};
use super::response_tools::ResponseTools;
use super::turns::Turns;
use super::{Conversation, Dialect, Params, take_top_logprobs, thinking};
use crate::Model;
use crate::server::answer::Settings;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, is_empty, is_off};
use crate::server::form::Form;
use crate::server::store::Store;
use serde_json::{Value, json};
use std::sync::Arc;

/// Parameters of the other endpoints, and what a server of OpenAI's has beside the model.
const UNSUPPORTED: [&str; 11] = [
    "max_tokens",
    "max_completion_tokens",
    "messages",
    "response_format",
    "return_token_ids",
    "conversation",
    "prompt",
    "moderation",
    "context_management",
    "background_options",
    "image",
];

/// Parameters that say whose a request is, or how its prompt is kept.
const IGNORED: [&str; 5] = [
    "client_metadata",
    "prompt_cache_retention",
    "prompt_cache_options",
    "access_programs",
    "user",
];

/// Parameters that change nothing, and that the response repeats. The calls that `max_tool_calls` counts are those of tools
/// of OpenAI's servers.
const REPEATED: [&str; 3] = ["max_tool_calls", "prompt_cache_key", "safety_identifier"];

/// What `include` may name: log-probabilities, and parts of items that no answer of this server has.
const INCLUDES: [&str; 8] = [
    LOGPROBS,
    "reasoning.encrypted_content",
    "web_search_call.results",
    "web_search_call.action.sources",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
];
const LOGPROBS: &str = "message.output_text.logprobs";

/// The body of `/v1/responses`.
#[derive(Debug)]
pub(in crate::server) struct ResponseRequest {
    pub params: Params,
    pub conversation: Conversation,
    pub settings: Settings,
    /// The items of the request itself, as JSON; none if the response is not to be stored.
    pub stored_input: Option<String>,
}

impl ResponseRequest {
    /// `store`: the responses that it may go on from.
    pub fn parse(body: &[u8], model: &Arc<Model>, store: &Store) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        reject_unsupported(&mut fields)?;
        let previous = fields.take::<String>("previous_response_id")?;
        let input = take_own_items(&mut fields, previous.is_some(), store)?;
        let is_stored = fields.take::<bool>("store")?.unwrap_or(true);
        let stored_input = is_stored.then(|| Value::from(input.clone()).to_string());
        let instructions = fields.take::<String>("instructions")?;
        let mut turns = Turns::default();
        if let Some(instructions) = &instructions {
            turns.system(instructions);
        }
        if let Some(previous) = &previous {
            for item in store.history(previous)? {
                take_item(item, "previous_response_id", &mut turns)?;
            }
        }
        for (index, item) in input.into_iter().enumerate() {
            take_item(item, &format!("input[{index}]"), &mut turns)?;
        }
        let tools = ResponseTools::take(&mut fields)?;
        let (form, text) = take_text(&mut fields)?;
        let logprobs = take_logprobs(&mut fields)?;
        let reasoning = take_reasoning(&mut fields)?;
        fields.add("reasoning_effort", Some(reasoning["effort"].clone()));
        let variables = thinking::take_variables(&mut fields)?;
        let max_output_tokens = fields.take::<u32>("max_output_tokens")?.map(|max| max as usize);
        let mut echo = json!({
            "instructions": instructions,
            "max_output_tokens": max_output_tokens,
            "metadata": fields.take::<Value>("metadata")?.unwrap_or_else(|| json!({})),
            "parallel_tool_calls": tools.is_parallel,
            "previous_response_id": previous,
            "reasoning": reasoning,
            "store": is_stored,
            "text": text,
            "tool_choice": tools.choice,
            "tools": tools.list,
            "top_logprobs": logprobs.unwrap_or(0),
        });
        for name in REPEATED {
            echo[name] = fields.take::<Value>(name)?.unwrap_or_default();
        }
        let params = Params::take(&mut fields, model, Dialect::OpenAi)?;
        fields.finish()?;
        for (name, value) in
            [("temperature", params.sampling.temperature), ("top_p", params.sampling.top_p)]
        {
            echo[name] = decimal(value).into();
        }
        let form = form.or(params.form).filter(|_| !tools.tools.are_required());
        let settings =
            Settings { echo, namespaces: tools.namespaces, logprobs: logprobs.is_some() };
        let conversation = Conversation::of(turns.finish(), tools.tools, variables);
        let params = Params { max_new_tokens: max_output_tokens, logprobs, form, ..params };
        Ok(ResponseRequest { params, conversation, settings, stored_input })
    }
}

/// What the endpoint has elsewhere, and not here.
fn reject_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for name in UNSUPPORTED {
        fields.neutral(name, is_empty)?;
    }
    fields.neutral("n", |n| n == 1)?;
    fields.neutral("background", is_off)?;
    fields.neutral("truncation", |value| value == "disabled")?;
    fields.ignore(&IGNORED);
    if let Some(options) = fields.take::<Value>("stream_options")? {
        let mut options = Fields::of(options, "stream_options")?;
        options.ignore(&["include_obfuscation"]);
        options.finish()?;
    }
    Ok(())
}

/// The items of the request; there may be none after those of an earlier response.
fn take_own_items(
    fields: &mut Fields,
    goes_on: bool,
    store: &Store,
) -> Result<Vec<Value>, ApiError> {
    let input = match goes_on {
        true => fields.take::<Value>("input")?.unwrap_or_else(|| json!([])),
        false => fields.require::<Value>("input")?,
    };
    let mut items = take_input(input)?;
    if items.is_empty() && !goes_on {
        return Err(ApiError::param("input", "there has to be one item at least"));
    }
    resolve(&mut items, store)?;
    Ok(items)
}

/// How many most likely tokens are wanted beside each, if log-probabilities are.
fn take_logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let includes = fields.take::<Vec<String>>("include")?.unwrap_or_default();
    if let Some(unknown) = includes.iter().find(|name| !INCLUDES.contains(&&***name)) {
        return Err(ApiError::param("include", format!("`{unknown}` is unknown")));
    }
    let num_top = take_top_logprobs(fields, "top_logprobs")?;
    let are_wanted = includes.iter().any(|name| name == LOGPROBS);
    if num_top.is_some_and(|num_top| num_top > 0) && !are_wanted {
        return Err(ApiError::param(
            "top_logprobs",
            format!("only with include: [\"{LOGPROBS}\"]"),
        ));
    }
    Ok(are_wanted.then(|| num_top.unwrap_or(0)))
}

/// How much the model is to think; a summary of it is not made.
fn take_reasoning(fields: &mut Fields) -> Result<Value, ApiError> {
    let reasoning = fields.take::<Value>("reasoning")?.unwrap_or_else(|| json!({}));
    let mut reasoning = Fields::of(reasoning, "reasoning")?;
    let effort = reasoning.take::<String>("effort")?;
    reasoning.ignore(&["summary", "generate_summary"]);
    reasoning.finish()?;
    Ok(json!({ "effort": effort, "summary": null }))
}

/// The form of the text, and what the response says of it.
fn take_text(fields: &mut Fields) -> Result<(Option<Form>, Value), ApiError> {
    let text = fields.take::<Value>("text")?.unwrap_or_else(|| json!({}));
    let mut text = Fields::of(text, "text")?;
    text.neutral("verbosity", |verbosity| verbosity == "medium")?;
    let format = text.take::<Value>("format")?.unwrap_or_else(|| json!({ "type": "text" }));
    text.finish()?;
    let said = json!({ "format": format, "verbosity": "medium" });
    Ok((Form::from_text_format(format, "text.format")?, said))
}

/// The shortest decimal number that is this one: 0.9, not 0.8999999761581421.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(value.into())
}

#[cfg(test)]
mod tests;
