//! `/v1/embeddings`: the prompts' hidden states, pooled.

use super::app::App;
use super::error::{ApiError, json_response};
use super::fields::Fields;
use super::metrics::ModelMetrics;
use super::request::{EmbeddingRequest, Encoding};
use crate::engine::{Request, RequestEvent, RequestStream};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// Inputs that are in the engine at once: a long list leaves room in the queue for others.
const MAX_OPEN: usize = 32;

/// What a request asks the engine for, one for each input.
pub(super) fn parse(app: &App, body: &[u8]) -> Result<(Encoding, Vec<Request>), ApiError> {
    let request = EmbeddingRequest::parse(body, &app.model)?;
    Ok((request.encoding, encode(app, &request)?))
}

/// How llama.cpp scales an embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Norm {
    /// The largest number is that of an i16.
    MaxAbsolute,
    /// The sum of these powers is 1.
    Power(f64),
}

impl Norm {
    /// Scales a vector, whatever its length is.
    pub fn apply(self, vector: Vec<f32>) -> Vec<f32> {
        let sizes = vector.iter().map(|&value| f64::from(value).abs());
        let norm = match self {
            Norm::MaxAbsolute => sizes.fold(0.0, f64::max) / 32760.0,
            Norm::Power(power) => sizes.map(|size| size.powf(power)).sum::<f64>().powf(1.0 / power),
        };
        let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
        vector.into_iter().map(|value| (f64::from(value) * scale) as f32).collect()
    }
}

/// What llama.cpp's `/embedding` asks the engine for, one request for each input.
pub(super) fn parse_native(app: &App, body: &[u8]) -> Result<(Norm, Vec<Request>), ApiError> {
    let mut fields = Fields::parse(body)?;
    fields.rename("content", "input")?;
    let norm = match fields.take::<i32>("embd_normalize")?.unwrap_or(2) {
        0 => Norm::MaxAbsolute,
        power @ 1.. => Norm::Power(power.into()),
        _ => {
            let what = "the length of an embedding is always 1: it has to be 0 or more";
            return Err(ApiError::param("embd_normalize", what));
        }
    };
    let request = EmbeddingRequest::take(fields, &app.model)?;
    Ok((norm, encode(app, &request)?))
}

fn encode(app: &App, request: &EmbeddingRequest) -> Result<Vec<Request>, ApiError> {
    app.check_model(request.model.as_deref())?;
    app.check_priority(request.priority)?;
    let max = request.truncate.max_tokens(app)?;
    let encoded = request.inputs.iter().map(|input| {
        let prompt = match max {
            None => input.encode(app, request.add_special_tokens)?,
            Some(max) => input.encode_at_most(app, request.add_special_tokens, max)?,
        };
        Ok(request.request(prompt))
    });
    encoded.collect()
}

/// The embeddings of all inputs.
pub(super) async fn answer(
    app: &App,
    encoding: Encoding,
    requests: Vec<Request>,
) -> Result<Response, ApiError> {
    let num_tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let numbers = |embedding: Vec<f32>| match encoding {
        Encoding::Float => Numbers::Float(embedding),
        Encoding::Base64 => {
            let bytes: Vec<u8> = embedding.into_iter().flat_map(f32::to_le_bytes).collect();
            Numbers::Base64(BASE64_STANDARD.encode(bytes))
        }
    };
    let data = embed(app, requests).await?.into_iter().map(numbers).enumerate();
    let data = data.map(|(index, embedding)| Data { object: "embedding", index, embedding });
    let data = data.collect();
    let usage = Usage { prompt_tokens: num_tokens, total_tokens: num_tokens };
    let body = Body { object: "list", data, model: &app.settings.name, usage };
    Ok(json_response(StatusCode::OK, &body))
}

#[derive(Serialize)]
struct Body<'a> {
    object: &'static str,
    data: Vec<Data>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Data {
    object: &'static str,
    index: usize,
    embedding: Numbers,
}

/// Numbers of f32: as JSON values they would be written with twice the digits.
#[derive(Serialize)]
#[serde(untagged)]
enum Numbers {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The embeddings that `requests` ask for.
pub(super) async fn embed(app: &App, requests: Vec<Request>) -> Result<Vec<Vec<f32>>, ApiError> {
    one_each(app, requests, |event| match event {
        RequestEvent::Embedding(vector) => Some(vector),
        _ => None,
    })
    .await
}

/// What `find` finds among the events of each request.
pub(super) async fn one_each<T>(
    app: &App,
    requests: Vec<Request>,
    find: impl Fn(RequestEvent) -> Option<T>,
) -> Result<Vec<T>, ApiError> {
    let engine = app.ready()?;
    let mut found = Vec::with_capacity(requests.len());
    for requests in requests.chunks(MAX_OPEN) {
        let streams = engine.submit_all(requests.to_vec())?;
        let open = streams.into_iter().map(|stream| Open {
            stream,
            metrics: Arc::clone(&app.metrics),
            start: Instant::now(),
            reason: "abort",
        });
        // All of them count as left if one fails or nobody waits any more.
        for open in open.collect::<Vec<_>>() {
            found.push(open.find(&find).await?);
        }
    }
    Ok(found)
}

/// An input in the engine; counted when it is dropped.
struct Open {
    stream: RequestStream,
    metrics: Arc<ModelMetrics>,
    start: Instant,
    reason: &'static str,
}

impl Open {
    async fn find<T>(mut self, find: impl Fn(RequestEvent) -> Option<T>) -> Result<T, ApiError> {
        let mut found = None;
        while let Some(event) = self.stream.next().await {
            match event {
                RequestEvent::Failed(error) => {
                    self.reason = "error";
                    return Err((&*error).into());
                }
                event => found = find(event).or(found),
            }
        }
        let stopped = || ApiError::unavailable("the server is shutting down");
        let found = found.ok_or_else(stopped)?;
        self.reason = "stop";
        Ok(found)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.request_latency.observe(self.start.elapsed().as_secs_f64());
        self.metrics.finished(self.reason);
    }
}
