//! `/v1/embeddings`: the prompts' hidden states, pooled.

use super::app::App;
use super::error::{ApiError, json_response};
use super::metrics::Metrics;
use super::request::{EmbeddingRequest, Encoding};
use crate::engine::{EngineHandle, Request, RequestEvent, RequestStream};
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
    let request = EmbeddingRequest::parse(body, app.model.config().hidden_size)?;
    app.check_model(request.model.as_deref())?;
    app.check_priority(request.priority)?;
    let encoded = request.inputs.iter().map(|input| {
        let prompt = input.encode(app, request.add_special_tokens)?;
        Ok(request.request(prompt))
    });
    Ok((request.encoding, encoded.collect::<Result<_, ApiError>>()?))
}

/// The embeddings of all inputs.
pub(super) async fn answer(
    app: &App,
    encoding: Encoding,
    requests: Vec<Request>,
) -> Result<Response, ApiError> {
    let engine = app.ready()?;
    let num_tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
    let mut data = Vec::with_capacity(requests.len());
    for requests in requests.chunks(MAX_OPEN) {
        for embedding in embed(engine, &app.metrics, requests.to_vec()).await? {
            let embedding = match encoding {
                Encoding::Float => Numbers::Float(embedding),
                Encoding::Base64 => {
                    let bytes: Vec<u8> = embedding.into_iter().flat_map(f32::to_le_bytes).collect();
                    Numbers::Base64(BASE64_STANDARD.encode(bytes))
                }
            };
            data.push(Data { object: "embedding", index: data.len(), embedding });
        }
    }
    let usage = Usage { prompt_tokens: num_tokens, total_tokens: num_tokens };
    let body = Body { object: "list", data, model: &app.options.model_name, usage };
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

async fn embed(
    engine: &EngineHandle,
    metrics: &Arc<Metrics>,
    requests: Vec<Request>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let streams = engine.submit_all(requests)?;
    let open = streams.into_iter().map(|stream| Open {
        stream,
        metrics: Arc::clone(metrics),
        start: Instant::now(),
        reason: "abort",
    });
    let mut embeddings = Vec::new();
    // All of them count as left if one fails or nobody waits any more.
    for open in open.collect::<Vec<_>>() {
        embeddings.push(open.embedding().await?);
    }
    Ok(embeddings)
}

/// An input in the engine; counted when it is dropped.
struct Open {
    stream: RequestStream,
    metrics: Arc<Metrics>,
    start: Instant,
    reason: &'static str,
}

impl Open {
    async fn embedding(mut self) -> Result<Vec<f32>, ApiError> {
        let mut embedding = None;
        while let Some(event) = self.stream.next().await {
            match event {
                RequestEvent::Embedding(vector) => embedding = Some(vector),
                RequestEvent::Failed(error) => {
                    self.reason = "error";
                    return Err((&*error).into());
                }
                _ => {}
            }
        }
        let stopped = || ApiError::unavailable("the server is shutting down");
        let embedding = embedding.ok_or_else(stopped)?;
        self.reason = "stop";
        Ok(embedding)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.request_latency.observe(self.start.elapsed().as_secs_f64());
        self.metrics.finished(self.reason);
    }
}
