//! The paths of Ollama's API that answer prompts.

use super::generate::{Asking, asked, check_params, prompted, submit};
use super::native::fill_in;
use crate::Model;
use crate::engine::Request as EngineRequest;
use crate::server::answer::{
    Line, OllamaAnswer, OllamaEndpoint, Prompted, StreamItem, respond, timestamp,
};
use crate::server::app::App;
use crate::server::body::RequestBody;
use crate::server::embeddings::{Norm, embed};
use crate::server::error::{ApiError, json_response};
use crate::server::request::{Input, OllamaEmbed, OllamaRequest, default_pooling};
use crate::server::site::Chosen;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

pub(super) async fn chat(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    answer(app, request, OllamaRequest::parse_chat, OllamaEndpoint::Chat).await
}

pub(super) async fn generate(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    let endpoint = OllamaEndpoint::Generate { keeps_context: false };
    answer(app, request, OllamaRequest::parse_generate, endpoint).await
}

/// What is asked of the engine, and what the answer needs besides.
struct Asked {
    asking: Option<Asking>,
    name: String,
    endpoint: OllamaEndpoint,
    stream: bool,
    unloads: bool,
}

type Parse = fn(&[u8], &Arc<Model>) -> Result<OllamaRequest, ApiError>;

async fn answer(
    app: Arc<App>,
    request: Request,
    parse: Parse,
    endpoint: OllamaEndpoint,
) -> Result<Response, ApiError> {
    let begin = Instant::now();
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = move |app: &App, body: &[u8]| ask(app, parse(body, &app.model)?, endpoint);
    let Asked { asking, name, endpoint, stream, unloads } = body.parse(&app, parse).await?;
    let Some((params, rules, prompts)) = asking else {
        return Ok(loaded(&name, endpoint, stream, unloads));
    };
    let continues = rules.is_none() && endpoint != OllamaEndpoint::Chat;
    let parts = submit(&app, &params, rules, continues, &prompts)?;
    let asked = crate::server::answer::Asked { model: name, ..asked(&app, "", &params, prompts) };
    let writer = OllamaAnswer::new(asked, Arc::clone(&app.model), endpoint, begin);
    Ok(respond(writer, stream, parts).await)
}

fn ask(app: &App, request: OllamaRequest, endpoint: OllamaEndpoint) -> Result<Asked, ApiError> {
    let OllamaRequest { mut params, name, input, unloads } = request;
    let name = app.check_ollama_model(name.as_deref())?;
    let stream = params.stream;
    let mut endpoint = endpoint;
    let mut keep_context = || {
        if let OllamaEndpoint::Generate { keeps_context } = &mut endpoint {
            *keeps_context = true;
        }
    };
    let asking = match input {
        Input::Nothing => None,
        Input::Chat(conversation) => Some(prompted(app, params, &conversation)?),
        Input::Turn(conversation, history) => {
            keep_context();
            let (params, rules, mut prompts) = prompted(app, params, &conversation)?;
            for prompt in &mut prompts {
                prompt.ids.splice(0..0, history.iter().copied());
            }
            Some((params, rules, prompts))
        }
        Input::Raw(prompt) => {
            check_params(app, &mut params, 1)?;
            let ids = app.encode(&prompt, true)?;
            Some((params, None, vec![Prompted { ids, echo: String::new() }]))
        }
        Input::Gap(gap) => {
            check_params(app, &mut params, 1)?;
            let ids = fill_in(app, &mut params, &gap)?;
            Some((params, None, vec![Prompted { ids, echo: String::new() }]))
        }
    };
    Ok(Asked { asking, name, endpoint, stream, unloads })
}

/// The answer to a request that only loads the model, or unloads it: one that is alone stays.
fn loaded(name: &str, endpoint: OllamaEndpoint, stream: bool, unloads: bool) -> Response {
    let reason = if unloads { "unload" } else { "load" };
    let mut body = json!({ "model": name, "created_at": timestamp() });
    match endpoint {
        OllamaEndpoint::Chat => body["message"] = json!({ "role": "assistant", "content": "" }),
        OllamaEndpoint::Generate { .. } => body["response"] = "".into(),
    }
    body["done"] = true.into();
    body["done_reason"] = reason.into();
    match stream {
        true => Line::response(futures_util::stream::iter([Line::new(&body)])),
        false => json_response(StatusCode::OK, &body),
    }
}

/// The answer to a request to `path` that only unloads the model.
pub(in crate::server) fn only_unloaded(path: &str, name: &str, stream: bool) -> Response {
    let endpoint = match path {
        "/api/chat" => OllamaEndpoint::Chat,
        _ => OllamaEndpoint::Generate { keeps_context: false },
    };
    loaded(name, endpoint, stream, true)
}

/// The embeddings of texts.
pub(super) async fn embed_texts(
    Chosen(app): Chosen,
    request: Request,
) -> Result<Response, ApiError> {
    let begin = Instant::now();
    let body = RequestBody::read(&app, request).await?;
    let (name, num_tokens, vectors) = vectors(app, body, OllamaEmbed::parse).await?;
    let body = Embeddings {
        model: name,
        embeddings: vectors,
        total_duration: begin.elapsed().as_nanos() as u64,
        load_duration: 0,
        prompt_eval_count: num_tokens,
    };
    Ok(json_response(StatusCode::OK, &body))
}

/// Vectors of f32, which as JSON values would be written with twice the digits.
#[derive(Serialize)]
struct Embeddings {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
struct Embedding {
    embedding: Vec<f32>,
}

/// The embedding of one text; of none it is empty.
pub(super) async fn embed_text(
    Chosen(app): Chosen,
    request: Request,
) -> Result<Response, ApiError> {
    let body = RequestBody::read(&app, request).await?;
    let (_, _, mut vectors) = vectors(app, body, OllamaEmbed::parse_one).await?;
    let body = Embedding { embedding: vectors.pop().unwrap_or_default() };
    Ok(json_response(StatusCode::OK, &body))
}

/// The model's name, the tokens of all texts and a vector of each.
async fn vectors(
    app: Arc<App>,
    body: RequestBody,
    parse: fn(&[u8]) -> Result<OllamaEmbed, ApiError>,
) -> Result<(String, usize, Vec<Vec<f32>>), ApiError> {
    app.ready()?;
    let parse = move |app: &App, body: &[u8]| {
        let request = parse(body)?;
        let name = app.check_ollama_model(request.name.as_deref())?;
        let context = app.healthy()?.context();
        let encode = |text: &String| {
            let prompt = match request.truncates {
                true => app.encode_at_most(text, true, context)?,
                false => app.encode(text, true)?,
            };
            let pooling = Some(default_pooling(&app.model)?);
            Ok(EngineRequest { prompt, pooling, ..EngineRequest::default() })
        };
        let requests = request.inputs.iter().map(encode).collect::<Result<Vec<_>, ApiError>>()?;
        Ok((name, requests, request.dimensions))
    };
    let (name, requests, dimensions) = body.parse(&app, parse).await?;
    let num_tokens = requests.iter().map(|request| request.prompt.len()).sum();
    let mut vectors = embed(&app, requests).await?;
    if let Some(dimensions) = dimensions {
        for vector in &mut vectors {
            vector.truncate(dimensions);
            *vector = Norm::Power(2.0).apply(std::mem::take(vector));
        }
    }
    Ok((name, num_tokens, vectors))
}

/// What is no model of this server's: Modelfiles and the files for them.
pub(super) async fn no_modelfiles() -> ApiError {
    let message = "Modelfiles are not read, and nothing is made of them or pushed: give a system text in the request, \
        and a template and sampling values to `halfwarp serve` (--chat-template, --temp ..)";
    ApiError::status(StatusCode::NOT_IMPLEMENTED, message)
}

pub(super) async fn version() -> Response {
    let body: Value = json!({ "version": super::ollama_models::VERSION });
    json_response(StatusCode::OK, &body)
}
