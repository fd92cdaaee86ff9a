//! The paths that are about models: OpenAI's list, and those by which llama.cpp's router loads and
//! unloads them.

use super::SharedSite;
use crate::server::app::App;
use crate::server::body::RequestBody;
use crate::server::error::{ApiError, json_response};
use crate::server::fields::Fields;
use crate::server::models::{Listed, Offer, State as ModelState};
use crate::server::site::{Models, Site};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// All models.
pub(super) async fn list(State(site): SharedSite) -> Result<Response, ApiError> {
    let cards = match &site.models {
        Models::One(app) => vec![card(app)?],
        Models::Many(many) => {
            many.list().await.iter().map(|listed| listed_card(&site, listed)).collect()
        }
    };
    Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": cards })))
}

/// One of them.
pub(super) async fn one(
    State(site): SharedSite,
    model: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(model) = model.map_err(|error| ApiError::invalid(error.body_text()))?;
    let card = match &site.models {
        Models::One(app) => {
            app.check_model(Some(&model))?;
            card(app)?
        }
        Models::Many(many) => {
            let found = many.find(Some(&model)).await?;
            let is_it = |listed: &&Listed| listed.offer.settings.name == found.settings.name;
            let all = many.list().await;
            let listed = all.iter().find(is_it);
            listed.map(|listed| listed_card(&site, listed)).ok_or_else(|| {
                ApiError::unknown_name("the model was removed just now".to_owned())
            })?
        }
    };
    Ok(json_response(StatusCode::OK, &card))
}

fn card(app: &App) -> Result<Value, ApiError> {
    let context = app.healthy()?.context();
    let mut card = common_card(&app.settings.name, app.common.created);
    card["max_model_len"] = context.into();
    card["meta"] = meta(app, context);
    card["status"] = json!({ "value": "loaded" });
    Ok(card)
}

fn common_card(name: &str, created: u64) -> Value {
    json!({ "id": name, "object": "model", "created": created, "owned_by": "halfwarp" })
}

/// llama.cpp's.
fn meta(app: &App, context: usize) -> Value {
    let config = app.model.config();
    json!({
        "n_vocab": config.vocab_size,
        "n_ctx": context,
        "n_ctx_train": config.max_position_embeddings,
        "n_embd": config.hidden_size,
    })
}

fn listed_card(site: &Site, Listed { offer, state, status }: &Listed) -> Value {
    let mut card = common_card(&offer.settings.name, site.common.created);
    card["aliases"] = offer.aliases.clone().into();
    card["size"] = offer.bytes.into();
    card["status"] = json!({ "value": state.name() });
    let failure = status.as_ref().and_then(|status| status.failure.as_ref());
    if let Some(failure) = failure {
        card["status"]["failed"] = true.into();
        card["status"]["error"] = failure.to_string().into();
    }
    let served = match &site.models {
        Models::Many(many) => many.served(&offer.settings.name),
        Models::One(_) => None,
    };
    if let Some(app) = served.map(|served| Arc::clone(&served.app))
        && let Some(engine) = app.engine.get()
    {
        card["max_model_len"] = engine.context().into();
        card["meta"] = meta(&app, engine.context());
        card["status"]["memory_bytes"] = status.as_ref().map(|status| status.bytes).into();
    }
    card
}

/// Loads a model, and does not wait for it: its state says when it is there.
pub(super) async fn load(State(site): SharedSite, request: Request) -> Result<Response, ApiError> {
    let (offer, state) = named(&site, request).await?;
    if matches!(state, ModelState::Loaded | ModelState::Loading) {
        let what = format!("the model {} is {} already", offer.settings.name, state.name());
        return Err(ApiError::invalid(what));
    }
    site.many()?.load(&offer);
    Ok(json_response(StatusCode::OK, &json!({ "success": true })))
}

/// Unloads a model once its requests have ended.
pub(super) async fn unload(
    State(site): SharedSite,
    request: Request,
) -> Result<Response, ApiError> {
    let (offer, _) = named(&site, request).await?;
    match site.many()?.unload(&offer) {
        true => Ok(json_response(StatusCode::OK, &json!({ "success": true }))),
        false => {
            let what = format!("the model {} is not loaded", offer.settings.name);
            Err(ApiError::invalid(what))
        }
    }
}

/// The model that a request names, and what it is doing.
async fn named(site: &Arc<Site>, request: Request) -> Result<(Arc<Offer>, ModelState), ApiError> {
    let many = site.many()?;
    let body = RequestBody::read(site, request).await?;
    let parse = |_: &Site, body: &[u8]| {
        let mut fields = Fields::parse(body)?;
        let name = fields.require::<String>("model")?;
        fields.finish()?;
        Ok(name)
    };
    let name = body.parse(site, parse).await?;
    let offer = many.find(Some(&name)).await?;
    let state = many.state(&offer);
    Ok((offer, state))
}
