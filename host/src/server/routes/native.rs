//! The paths of llama.cpp's own API.

use super::generate::{asked, check_params, submit};
use crate::server::answer::{NativeAnswer, NativeFields, Prompted, respond};
use crate::server::app::App;
use crate::server::body::RequestBody;
use crate::server::embeddings;
use crate::server::error::{ApiError, json_response};
use crate::server::request::{
    ChatRequest, InfillRequest, NativeOptions, NativeRequest, Params, default_settings,
};
use crate::server::site::Chosen;
use crate::text::{ChatTemplate, Gap};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// Tokens that a prompt of a gap leaves room for where the request has no limit, and the share of the context that it
/// leaves at most.
const FILLED_IN: usize = 256;
const FILLED_IN_SHARE: usize = 4;

pub(super) async fn completion(
    Chosen(app): Chosen,
    request: Request,
) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let mut request = NativeRequest::parse(body, &app.model)?;
        let prompts = request.encode(app)?;
        check_params(app, &mut request.params, prompts.len())?;
        Ok((request.params, request.options, prompts))
    };
    let (params, options, prompts) = body.parse(&app, parse).await?;
    answer(&app, params, options, prompts).await
}

pub(super) async fn infill(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let InfillRequest { mut params, options, gap } = InfillRequest::parse(body, &app.model)?;
        check_params(app, &mut params, 1)?;
        let prompt = fill_in(app, &mut params, &gap)?;
        Ok((params, options, vec![prompt]))
    };
    let (params, options, prompts) = body.parse(&app, parse).await?;
    answer(&app, params, options, prompts).await
}

/// The prompt of a gap; such an answer ends at other tokens, too.
pub(super) fn fill_in(app: &App, params: &mut Params, gap: &Gap) -> Result<Vec<u32>, ApiError> {
    let text = app.text()?;
    let Some(form) = &text.fill_in_middle else {
        let what = "this model does not fill in the middle: its vocabulary has no tokens for it";
        return Err(ApiError::invalid(what).with_code("unsupported_parameter"));
    };
    params.stop_at(&form.stop_tokens);
    let gap = gap.clone().cut_to_bytes(app.max_prompt_bytes()?);
    let context = app.healthy()?.context();
    let reserve = params.max_new_tokens.unwrap_or(FILLED_IN).min(context / FILLED_IN_SHARE);
    Ok(text.fill_in(&gap, context - reserve)?.unwrap_or_default())
}

async fn answer(
    app: &Arc<App>,
    params: Params,
    options: NativeOptions,
    prompts: Vec<Vec<u32>>,
) -> Result<Response, ApiError> {
    let prompted = |ids| Prompted { ids, echo: String::new() };
    let prompts: Vec<Prompted> = prompts.into_iter().map(prompted).collect();
    let parts = submit(app, &params, None, true, &prompts)?;
    let fields = NativeFields {
        model: Arc::clone(&app.model),
        options,
        stops: params.stop.clone(),
        context: app.healthy()?.context(),
    };
    let writer = NativeAnswer::new(asked(app, "cmpl-", &params, prompts), fields);
    Ok(respond(writer, params.stream, parts).await)
}

/// The prompt that a chat becomes.
pub(super) async fn apply_template(
    Chosen(app): Chosen,
    request: Request,
) -> Result<Response, ApiError> {
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let request = ChatRequest::parse(body, &app.model)?;
        app.check_model(request.params.model.as_deref())?;
        Ok(request.conversation.prompt(app)?.text().to_owned())
    };
    let prompt = body.parse(&app, parse).await?;
    Ok(json_response(StatusCode::OK, &json!({ "prompt": prompt })))
}

/// In llama.cpp's form, where `/v1/embeddings` has OpenAI's.
pub(super) async fn embedding(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let (norm, requests) = body.parse(&app, embeddings::parse_native).await?;
    let vectors = embeddings::embed(&app, requests).await?.into_iter().enumerate();
    let of = |(index, vector)| Embedding { index, embedding: [norm.apply(vector)] };
    Ok(json_response(StatusCode::OK, &vectors.map(of).collect::<Vec<_>>()))
}

/// The one vector of an input.
#[derive(Serialize)]
struct Embedding {
    index: usize,
    embedding: [Vec<f32>; 1],
}

/// What there is to know of the server and its model.
pub(super) async fn props(Chosen(app): Chosen) -> Result<Response, ApiError> {
    let engine = app.healthy()?;
    let template = app.model.text().and_then(|text| text.chat_template.as_ref());
    let file = app.model.checkpoint().path().file_name().unwrap_or_default();
    let body = json!({
        "default_generation_settings": {
            "params": default_settings(&app.model)?,
            "n_ctx": engine.context(),
        },
        "total_slots": engine.max_seqs(),
        "model_alias": app.settings.name,
        // Not where it is: that is nobody's business.
        "model_path": file.to_string_lossy(),
        "modalities": { "vision": false, "video": false, "audio": false },
        "endpoint_slots": true,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "chat_template": template.map_or("", ChatTemplate::source),
        "chat_template_caps": {},
        "bos_token": template.and_then(ChatTemplate::bos_token).unwrap_or_default(),
        "eos_token": template.and_then(ChatTemplate::eos_token).unwrap_or_default(),
        "build_info": concat!("halfwarp-", env!("CARGO_PKG_VERSION")),
        "is_sleeping": false,
    });
    Ok(json_response(StatusCode::OK, &body))
}

pub(super) async fn no_props() -> ApiError {
    let message = "the properties of this server are read: start it with other options";
    ApiError::status(StatusCode::NOT_IMPLEMENTED, message)
}

/// The requests that can run at once, of which as many run as the engine has.
pub(super) async fn slots(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    let engine = app.healthy()?;
    let (num_running, num_slots) = (engine.stats().num_running, engine.max_seqs());
    let query = request.uri().query().unwrap_or_default();
    let wants_one = query.split('&').any(|pair| pair.starts_with("fail_on_no_slot="));
    if wants_one && num_running >= num_slots {
        return Err(ApiError::unavailable("no slot is free"));
    }
    let slot = |id: usize| {
        json!({
            "id": id,
            "n_ctx": engine.context(),
            "speculative": false,
            "is_processing": id < num_running,
        })
    };
    Ok(json_response(StatusCode::OK, &(0..num_slots).map(slot).collect::<Vec<_>>()))
}

/// The adapters that requests can ask for: none.
pub(super) async fn lora_adapters() -> Response {
    json_response(StatusCode::OK, &json!([]))
}
