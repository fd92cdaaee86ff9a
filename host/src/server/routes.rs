//! The paths of the server, and what each answers.

mod generate;
mod models;
mod native;
mod ollama;
mod ollama_models;
mod ollama_pull;

use super::auth;
use super::body::RequestBody;
use super::cors;
use super::embeddings;
use super::error::{ApiError, in_form, json_response};
use super::host::AllowedHosts;
use super::page;
use super::prefix;
use super::scores;
use super::site::{Chosen, Models, Site, choose_model};
use super::tokens;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use generate::{
    chat_completions, completions, count_tokens, delete_response, messages, responses,
    stored_response,
};
pub(super) use ollama::only_unloaded;
use serde_json::json;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;
use tower_http::catch_panic::CatchPanicLayer;

/// The media type of OpenMetrics' text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type SharedSite = State<Arc<Site>>;

/// Where paths of Anthropic's API begin, and of Ollama's.
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/";

/// All paths. Every failure is OpenAI's error object, or that of the API whose path it is.
pub(super) fn router(site: Arc<Site>, hosts: Option<AllowedHosts>) -> Router {
    let of_models = Router::new()
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(completions))
        .route("/v1/responses", post(responses))
        .route("/v1/messages", post(messages))
        .route("/v1/messages/count_tokens", post(count_tokens))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/rerank", post(rerank))
        .route("/rerank", post(rerank))
        .route("/v2/rerank", post(rerank_v2))
        .route("/v1/score", post(score))
        .route("/score", post(score))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
        .merge(llama_cpp())
        .merge(ollama())
        .route_layer(middleware::from_fn_with_state(Arc::clone(&site), choose_model));
    let with_key = of_models
        .route("/v1/responses/{id}", get(stored_response).delete(delete_response))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*model}", get(models::one))
        .route("/metrics", get(metrics))
        .merge(llama_cpp_server())
        .merge(ollama_server())
        .route_layer(middleware::from_fn_with_state(Arc::clone(&site), check_key));
    let router = with_key
        .merge(page::routes())
        .route("/health", get(health))
        .route("/v1/health", get(health))
        .route("/ready", get(ready))
        .route("/version", get(version))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked));
    // Before the keys: a preflight request has none.
    let router = match cors::layer(&site.common.options.cors_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    // Before everything: a page of another host learns nothing, not even by a preflight request.
    let router = match hosts {
        Some(hosts) => router.layer(middleware::from_fn_with_state(Arc::new(hosts), check_host)),
        None => router,
    };
    let prefix = site.common.options.path_prefix.clone();
    let router = router
        .layer(middleware::from_fn(failures_of_other_apis))
        .layer(middleware::from_fn(log))
        .with_state(site);
    if prefix.is_empty() { router } else { prefix::before(prefix, router) }
}

/// The paths of llama.cpp's own API that a model answers, and OpenAI's without `/v1`.
fn llama_cpp() -> Router<Arc<Site>> {
    Router::new()
        .route("/completion", post(native::completion))
        .route("/completions", post(native::completion))
        .route("/infill", post(native::infill))
        .route("/embedding", post(native::embedding))
        .route("/embeddings", post(native::embedding))
        .route("/apply-template", post(native::apply_template))
        .route("/props", get(native::props))
        .route("/slots", get(native::slots))
        .route("/chat/completions", post(chat_completions))
        .route("/responses", post(responses))
        .route("/reranking", post(rerank))
        .route("/v1/reranking", post(rerank))
}

/// The paths of llama.cpp's own API that the server answers.
fn llama_cpp_server() -> Router<Arc<Site>> {
    Router::new()
        .route("/props", post(native::no_props))
        .route("/lora-adapters", get(native::lora_adapters))
        .route("/models", get(models::list))
        .route("/models/load", post(models::load))
        .route("/models/unload", post(models::unload))
}

/// The paths of Ollama's API that a model answers.
fn ollama() -> Router<Arc<Site>> {
    Router::new()
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed_texts))
        .route("/api/embeddings", post(ollama::embed_text))
}

/// The paths of Ollama's API that the server answers.
fn ollama_server() -> Router<Arc<Site>> {
    Router::new()
        .route("/api/tags", get(ollama_models::tags))
        .route("/api/ps", get(ollama_models::ps))
        .route("/api/show", post(ollama_models::show))
        .route("/api/pull", post(ollama_pull::pull))
        .route("/api/delete", delete(ollama_models::delete))
        .route("/api/copy", post(ollama_models::copy))
        .route("/api/create", post(ollama::no_modelfiles))
        .route("/api/push", post(ollama::no_modelfiles))
        .route("/api/blobs/{digest}", get(ollama::no_modelfiles).post(ollama::no_modelfiles))
        .route("/api/version", get(ollama::version))
}

async fn check_host(
    State(hosts): State<Arc<AllowedHosts>>,
    request: Request,
    next: Next,
) -> Response {
    match hosts.check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

async fn check_key(State(site): SharedSite, request: Request, next: Next) -> Response {
    if auth::is_allowed(&site.common.options.api_keys, request.headers()) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
    }
}

async fn failures_of_other_apis(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let (is_anthropics, is_ollamas) = (path.starts_with(MESSAGES), path.starts_with(OLLAMA));
    let response = next.run(request).await;
    match (is_anthropics, is_ollamas) {
        (true, _) => in_form(response, ApiError::to_anthropic),
        (_, true) => in_form(response, ApiError::to_ollama),
        _ => response,
    }
}

/// One line a request, with nothing of its texts.
async fn log(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let start = Instant::now();
    let response = next.run(request).await;
    let (status, ms) = (response.status().as_u16(), start.elapsed().as_millis());
    tracing::info!("{method} {path} {status} {ms} ms");
    response
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the server met a bug of its own").into_response()
}

async fn not_found() -> ApiError {
    ApiError::status(StatusCode::NOT_FOUND, "there is no such path")
}

async fn method_not_allowed() -> ApiError {
    ApiError::status(StatusCode::METHOD_NOT_ALLOWED, "this path has no such method")
}

async fn health(State(site): SharedSite) -> Result<Response, ApiError> {
    match &site.models {
        Models::One(app) => app.healthy().map(|_| ok()),
        Models::Many(_) => Ok(ok()),
    }
}

async fn ready(State(site): SharedSite) -> Result<Response, ApiError> {
    match &site.models {
        Models::One(app) => app.ready().map(|_| ok()),
        Models::Many(_) => site.common.check_open().map(|()| ok()),
    }
}

fn ok() -> Response {
    json_response(StatusCode::OK, &json!({ "status": "ok" }))
}

async fn version() -> Response {
    json_response(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") }))
}

async fn metrics(State(site): SharedSite) -> Result<Response, ApiError> {
    let body =
        site.common.metrics.encode().map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], body).into_response())
}

async fn tokenize(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    let body = RequestBody::read(&app, request).await?;
    body.parse(&app, tokens::tokenize).await
}

async fn detokenize(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    let body = RequestBody::read(&app, request).await?;
    body.parse(&app, tokens::detokenize).await
}

async fn tokenizer_info(Chosen(app): Chosen) -> Result<Response, ApiError> {
    tokens::tokenizer_info(&app)
}

async fn embeddings(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let (encoding, requests) = body.parse(&app, embeddings::parse).await?;
    embeddings::answer(&app, encoding, requests).await
}

async fn rerank(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let ranked = body.parse(&app, scores::parse_rerank).await?;
    scores::rerank(&app, ranked, scores::Version::One).await
}

/// In the shape of Cohere's second version.
async fn rerank_v2(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let ranked = body.parse(&app, scores::parse_rerank).await?;
    scores::rerank(&app, ranked, scores::Version::Two).await
}

async fn score(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let pairs = body.parse(&app, scores::parse_score).await?;
    scores::score(&app, pairs).await
}
