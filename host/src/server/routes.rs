//! The paths of the server, and what each answers.

use super::answer::{Asked, Completion, Endpoint, Prompted, ResponseObject, respond};
use super::app::{App, new_id, unix_time};
use super::auth;
use super::body::RequestBody;
use super::choice::{Choice, MAX_PARTS, Part};
use super::cors;
use super::embeddings;
use super::error::{ApiError, json_response};
use super::page;
use super::request::{ChatRequest, CompletionRequest, Params, Prompt, ResponseRequest};
use super::timed::Timed;
use super::tokens;
use super::tools::CallRules;
use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tower_http::catch_panic::CatchPanicLayer;

/// The media type of OpenMetrics' text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type SharedApp = State<Arc<App>>;

/// All paths. Every failure is OpenAI's error object.
pub(super) fn router(app: Arc<App>) -> Router {
    let with_key = Router::new()
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(completions))
        .route("/v1/responses", post(responses))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/metrics", get(metrics))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), check_key));
    let router = with_key
        .merge(page::routes())
        .route("/health", get(health))
        .route("/ready", get(ready))
        .route("/version", get(version))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(CatchPanicLayer::custom(panicked));
    // Before the keys: a preflight request has none.
    let router = match cors::layer(&app.options.cors_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.layer(middleware::from_fn(log)).with_state(app)
}

async fn check_key(State(app): SharedApp, request: Request, next: Next) -> Response {
    if auth::is_allowed(&app.options.api_keys, request.headers()) {
        next.run(request).await
    } else {
        ApiError::unauthorized().into_response()
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

async fn health(State(app): SharedApp) -> Result<Response, ApiError> {
    app.healthy().map(|_| ok())
}

async fn ready(State(app): SharedApp) -> Result<Response, ApiError> {
    app.ready().map(|_| ok())
}

fn ok() -> Response {
    json_response(StatusCode::OK, &json!({ "status": "ok" }))
}

async fn version() -> Response {
    json_response(StatusCode::OK, &json!({ "version": env!("CARGO_PKG_VERSION") }))
}

async fn metrics(State(app): SharedApp) -> Result<Response, ApiError> {
    let body = app.metrics.encode().map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], body).into_response())
}

async fn models(State(app): SharedApp) -> Result<Response, ApiError> {
    let body = json!({ "object": "list", "data": [model_card(&app)?] });
    Ok(json_response(StatusCode::OK, &body))
}

async fn model(
    State(app): SharedApp,
    model: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(model) = model.map_err(|error| ApiError::invalid(error.body_text()))?;
    app.check_model(Some(&model))?;
    Ok(json_response(StatusCode::OK, &model_card(&app)?))
}

fn model_card(app: &App) -> Result<serde_json::Value, ApiError> {
    Ok(json!({
        "id": app.options.model_name,
        "object": "model",
        "created": app.created,
        "owned_by": "halfwarp",
        "max_model_len": app.healthy()?.context(),
    }))
}

async fn tokenize(State(app): SharedApp, request: Request) -> Result<Response, ApiError> {
    let body = RequestBody::read(&app, request).await?;
    body.parse(&app, tokens::tokenize).await
}

async fn detokenize(State(app): SharedApp, request: Request) -> Result<Response, ApiError> {
    let body = RequestBody::read(&app, request).await?;
    body.parse(&app, tokens::detokenize).await
}

async fn tokenizer_info(State(app): SharedApp) -> Result<Response, ApiError> {
    tokens::tokenizer_info(&app)
}

async fn chat_completions(State(app): SharedApp, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let mut request = ChatRequest::parse(body, &app.model)?;
        let (text, tools) = (app.text()?, &request.conversation.tools);
        let calls = tools.rules(text)?;
        if let Some(form) = tools.form(text)? {
            request.params.form = Some(form);
        }
        check_params(app, &mut request.params, 1)?;
        let ids = request.conversation.encode(app)?;
        Ok((request.params, calls, vec![Prompted { ids, echo: String::new() }]))
    };
    let (params, calls, prompts) = body.parse(&app, parse).await?;
    complete(&app, Endpoint::Chat, params, calls, prompts).await
}

async fn completions(State(app): SharedApp, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let mut request = CompletionRequest::parse(body, &app.model)?;
        check_params(app, &mut request.params, request.prompts.len())?;
        let prompts = encode_prompts(app, &request)?;
        Ok((request.params, prompts))
    };
    let (params, prompts) = body.parse(&app, parse).await?;
    complete(&app, Endpoint::Completions, params, None, prompts).await
}

async fn responses(State(app): SharedApp, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let mut request = ResponseRequest::parse(body, &app.model)?;
        check_params(app, &mut request.params, 1)?;
        let ids = request.conversation.encode(app)?;
        Ok((request.params, request.settings, vec![Prompted { ids, echo: String::new() }]))
    };
    let (params, settings, prompts) = body.parse(&app, parse).await?;
    let parts = submit(&app, &params, None, false, &prompts)?;
    let writer = ResponseObject::new(asked(&app, "resp", &params, prompts), settings);
    Ok(respond(writer, params.stream, parts).await)
}

async fn embeddings(State(app): SharedApp, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let (encoding, requests) = body.parse(&app, embeddings::parse).await?;
    embeddings::answer(&app, encoding, requests).await
}

/// What a request may ask of this server; makes the constraint of its answers.
fn check_params(app: &App, params: &mut Params, num_prompts: usize) -> Result<(), ApiError> {
    app.check_model(params.model.as_deref())?;
    let (asked, max) = (params.n.saturating_mul(num_prompts), app.options.max_choices);
    if asked > max {
        let what = format!("{asked} answers in all, this server gives at most {max} a request");
        return Err(ApiError::param("n", what));
    }
    app.check_priority(params.priority)?;
    let context = app.healthy()?.context();
    if let Some(wanted) = params.min_context.filter(|&wanted| wanted > context) {
        let what = format!("{wanted} tokens, and the context of this server has {context}");
        return Err(ApiError::param("num_ctx", what));
    }
    if let Some(max) = params.max_new_tokens.filter(|&max| max < params.min_tokens) {
        let what = format!("{} tokens, and at most {max} are asked for", params.min_tokens);
        return Err(ApiError::param("min_tokens", what));
    }
    if !params.stop.is_empty() {
        app.text()?;
    }
    if let Some(form) = &params.form {
        let grammar = Arc::new(form.grammar(app.grammars()?)?);
        let timed = Timed::new(Arc::clone(&grammar), app.metrics.grammar_mask.clone());
        params.constraint = Some(Arc::new(timed));
        params.grammar = Some(grammar);
    }
    Ok(())
}

fn encode_prompts(app: &App, request: &CompletionRequest) -> Result<Vec<Prompted>, ApiError> {
    let encode = |prompt: &Prompt| {
        let ids = prompt.encode(app, request.add_special_tokens)?;
        let echo = match (request.echo, prompt) {
            (false, _) => String::new(),
            (true, Prompt::Text(text)) => text.clone(),
            (true, Prompt::Ids(ids)) => {
                app.model.text().map_or_else(String::new, |text| text.tokenizer.decode(ids, true))
            }
        };
        Ok(Prompted { ids, echo })
    };
    request.prompts.iter().map(encode).collect()
}

/// Answers prompts of a chat or of completions.
async fn complete(
    app: &App,
    endpoint: Endpoint,
    params: Params,
    calls: Option<CallRules>,
    prompts: Vec<Prompted>,
) -> Result<Response, ApiError> {
    let is_chat = endpoint == Endpoint::Chat;
    let parts = submit(app, &params, calls, !is_chat, &prompts)?;
    let prefix = if is_chat { "chatcmpl" } else { "cmpl" };
    let writer = Completion {
        asked: asked(app, prefix, &params, prompts),
        endpoint,
        include_usage: params.include_usage,
        return_token_ids: params.return_token_ids,
        logprobs: params.logprobs.is_some(),
        scores_prompt: params.scores_prompt,
        warnings: Vec::new(),
        model: Arc::clone(&app.model),
    };
    Ok(respond(writer, params.stream, parts).await)
}

fn asked(app: &App, prefix: &str, params: &Params, prompts: Vec<Prompted>) -> Asked {
    Asked {
        id: new_id(prefix),
        created: unix_time(),
        model: app.options.model_name.clone(),
        n: params.n,
        prompts,
        grammar: params.grammar.clone(),
    }
}

/// Gives the prompts to the engine; returns where the parts of the answers come. `continues`: their texts go on those of
/// the prompts.
fn submit(
    app: &App,
    params: &Params,
    calls: Option<CallRules>,
    continues: bool,
    prompts: &[Prompted],
) -> Result<mpsc::Receiver<Part>, ApiError> {
    let engine = app.ready()?;
    let requests = prompts.iter().flat_map(|prompt| params.requests(&app.model, &prompt.ids));
    let streams = engine.submit_all(requests.collect())?;
    let (sender, parts) = mpsc::channel(MAX_PARTS);
    let scored = |prompt: usize| params.scores_prompt.then(|| prompts[prompt].ids.clone());
    for (index, stream) in streams.into_iter().enumerate() {
        let choice = Choice {
            index,
            stream,
            model: Arc::clone(&app.model),
            metrics: Arc::clone(&app.metrics),
            stop: params.stop.clone(),
            calls,
            continues,
            logprobs: params.logprobs.is_some(),
            scored_prompt: scored(index / params.n),
            write_timeout: app.options.write_timeout,
        };
        tokio::spawn(choice.run(sender.clone()));
    }
    Ok(parts)
}
