//! The body of `/v1/completions`.

use super::{Dialect, Params, Prompt, options, take_top_logprobs};
use crate::Model;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use std::sync::Arc;

/// OpenAI's default of `max_tokens` of a completion.
const COMPLETION_TOKENS: usize = 16;

/// The body of `/v1/completions`.
#[derive(Debug)]
pub(in crate::server) struct CompletionRequest {
    pub params: Params,
    pub prompts: Vec<Prompt>,
    pub echo: bool,
    /// What comes after the gap that is to be filled in.
    pub suffix: Option<String>,
    pub add_special_tokens: bool,
}

impl CompletionRequest {
    pub fn parse(body: &[u8], model: &Arc<Model>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let logprobs = take_top_logprobs(&mut fields, "logprobs")?;
        let has_limit = options::LIMITS.iter().any(|name| fields.has(name));
        let mut params = Params::take(&mut fields, model, Dialect::OpenAi)?;
        if !has_limit {
            params.max_new_tokens = Some(COMPLETION_TOKENS);
        }
        let suffix = fields.take::<String>("suffix")?.filter(|suffix| !suffix.is_empty());
        let prompts = Prompt::take_all(&mut fields, "prompt")?;
        let echo = fields.take("echo")?.unwrap_or(false);
        let add_special_tokens = fields.take("add_special_tokens")?.unwrap_or(true);
        fields.finish()?;
        (params.logprobs, params.scores_prompt) = (logprobs, echo && logprobs.is_some());
        if suffix.is_some() && !prompts.iter().all(|prompt| matches!(prompt, Prompt::Text(_))) {
            return Err(ApiError::param("suffix", "the prompt before it has to be a text"));
        }
        Ok(CompletionRequest { params, prompts, echo, suffix, add_special_tokens })
    }
}
