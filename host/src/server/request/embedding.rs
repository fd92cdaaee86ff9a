//! The body of `/v1/embeddings`. `add_special_tokens`, `cache_salt` and `priority` are vLLM's,
//! `pooling` is our own.

use super::options::IGNORED;
use super::truncate::Truncate;
use super::{Prompt, take_cache_salt};
use crate::Model;
use crate::engine::{Pooling, Request};
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use serde::Deserialize;

/// Inputs of a request at most, as OpenAI has it.
const MAX_INPUTS: usize = 2048;

/// The body of `/v1/embeddings`.
#[derive(Debug)]
pub(in crate::server) struct EmbeddingRequest {
    pub model: Option<String>,
    pub inputs: Vec<Prompt>,
    pub encoding: Encoding,
    pub add_special_tokens: bool,
    pub priority: i32,
    /// What becomes of inputs that are too long.
    pub truncate: Truncate,
    pooling: Pooling,
    cache_salt: Option<String>,
}

/// How the numbers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::server) enum Encoding {
    #[default]
    Float,
    /// Base64 of the numbers' bytes as f32, the least significant first.
    Base64,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PoolingName {
    Mean,
    Cls,
    Last,
}

/// How `model` pools where a request does not say it.
pub(in crate::server) fn default_pooling(model: &Model) -> Result<Pooling, ApiError> {
    match model.pooling() {
        Pooling::Score => Err(ApiError::invalid(
            "this model makes scores of pairs of texts, no embeddings: ask /v1/rerank or /v1/score",
        )),
        pooling => Ok(pooling),
    }
}

impl EmbeddingRequest {
    /// The request in `body`, to `model`.
    pub fn parse(body: &[u8], model: &Model) -> Result<Self, ApiError> {
        Self::take(Fields::parse(body)?, model)
    }

    /// The request of `fields`, which have no others.
    pub fn take(mut fields: Fields, model: &Model) -> Result<Self, ApiError> {
        let inputs = Prompt::take_all(&mut fields, "input")?;
        if inputs.len() > MAX_INPUTS {
            let what = format!("{} inputs, at most {MAX_INPUTS} are possible", inputs.len());
            return Err(ApiError::param("input", what));
        }
        let size = model.embedding_size() as u64;
        fields.neutral("dimensions", |value| value.as_u64() == Some(size))?;
        fields.ignore(&IGNORED);
        let pooling = match fields.take("pooling")? {
            Some(PoolingName::Mean) => Pooling::Mean,
            Some(PoolingName::Cls) => Pooling::First,
            Some(PoolingName::Last) => Pooling::Last,
            None => default_pooling(model)?,
        };
        let request = EmbeddingRequest {
            model: fields.take("model")?,
            inputs,
            encoding: fields.take("encoding_format")?.unwrap_or_default(),
            add_special_tokens: fields.take("add_special_tokens")?.unwrap_or(true),
            priority: fields.take("priority")?.unwrap_or_default(),
            truncate: Truncate::take(&mut fields)?,
            pooling,
            cache_salt: take_cache_salt(&mut fields)?,
        };
        fields.finish()?;
        Ok(request)
    }

    /// That to the engine for the token ids of one input.
    pub fn request(&self, prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            pooling: Some(self.pooling),
            cache_salt: self.cache_salt.clone(),
            priority: self.priority,
            ..Request::default()
        }
    }
}
