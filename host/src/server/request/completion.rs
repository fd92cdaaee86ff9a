//! The body of `/v1/completions`.

use super::{Params, take_top_logprobs};
use crate::Model;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use serde::Deserialize;
use serde_json::Value;

/// OpenAI's default of `max_tokens` of a completion.
const COMPLETION_TOKENS: usize = 16;

/// A prompt of `/v1/completions`.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::server) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

/// The body of `/v1/completions`.
#[derive(Debug)]
pub(in crate::server) struct CompletionRequest {
    pub params: Params,
    pub prompts: Vec<Prompt>,
    pub echo: bool,
    pub add_special_tokens: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    IdLists(Vec<Vec<u32>>),
}

impl CompletionRequest {
    pub fn parse(body: &[u8], model: &Model) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let logprobs = take_top_logprobs(&mut fields, "logprobs")?;
        let mut params = Params::take(&mut fields, model)?;
        params.max_new_tokens.get_or_insert(COMPLETION_TOKENS);
        let prompts = fields.require::<Value>("prompt")?;
        let prompts = match serde_json::from_value(prompts) {
            Ok(Prompts::Text(text)) => vec![Prompt::Text(text)],
            Ok(Prompts::Texts(texts)) => texts.into_iter().map(Prompt::Text).collect(),
            Ok(Prompts::Ids(ids)) => vec![Prompt::Ids(ids)],
            Ok(Prompts::IdLists(lists)) => lists.into_iter().map(Prompt::Ids).collect(),
            Err(_) => {
                let what = "it has to be a text, a list of texts, token ids, or a list of such";
                return Err(ApiError::param("prompt", what));
            }
        };
        if prompts.is_empty() {
            return Err(ApiError::param("prompt", "there has to be one at least"));
        }
        let echo = fields.take("echo")?.unwrap_or(false);
        let add_special_tokens = fields.take("add_special_tokens")?.unwrap_or(true);
        fields.finish()?;
        (params.logprobs, params.scores_prompt) = (logprobs, echo && logprobs.is_some());
        Ok(CompletionRequest { params, prompts, echo, add_special_tokens })
    }
}
