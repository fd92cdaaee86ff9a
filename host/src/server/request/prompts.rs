//! What `/v1/completions` and `/v1/embeddings` take: a text or token ids, or several of either.

use crate::server::app::App;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use serde::Deserialize;
use serde_json::Value;

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::server) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    IdLists(Vec<Vec<u32>>),
}

impl Prompt {
    /// Takes the prompts of the field `name`; at least one.
    pub(super) fn take_all(fields: &mut Fields, name: &str) -> Result<Vec<Self>, ApiError> {
        let prompts = match serde_json::from_value(fields.require::<Value>(name)?) {
            Ok(Prompts::Text(text)) => vec![Prompt::Text(text)],
            Ok(Prompts::Texts(texts)) => texts.into_iter().map(Prompt::Text).collect(),
            Ok(Prompts::Ids(ids)) => vec![Prompt::Ids(ids)],
            Ok(Prompts::IdLists(lists)) => lists.into_iter().map(Prompt::Ids).collect(),
            Err(_) => {
                let what = "it has to be a text, a list of texts, token ids, or a list of such";
                return Err(ApiError::param(name, what));
            }
        };
        match prompts.is_empty() {
            true => Err(ApiError::param(name, "there has to be one at least")),
            false => Ok(prompts),
        }
    }

    /// Token ids of the prompt.
    pub fn encode(&self, app: &App, add_special_tokens: bool) -> Result<Vec<u32>, ApiError> {
        match self {
            Prompt::Text(text) => app.encode(text, add_special_tokens),
            Prompt::Ids(ids) => Ok(ids.clone()),
        }
    }

    /// The first token ids of the prompt, at most `max`.
    pub fn encode_at_most(
        &self,
        app: &App,
        add_special_tokens: bool,
        max: usize,
    ) -> Result<Vec<u32>, ApiError> {
        match self {
            Prompt::Text(text) => app.encode_at_most(text, add_special_tokens, max),
            Prompt::Ids(ids) => Ok(ids[..ids.len().min(max)].to_vec()),
        }
    }
}
