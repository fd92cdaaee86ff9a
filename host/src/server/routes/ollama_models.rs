//! The paths of Ollama's API that are about models.

use super::SharedSite;
use crate::Model;
use crate::server::app::App;
use crate::server::body::RequestBody;
use crate::server::catalog::{self, Meaning, tagged};
use crate::server::error::{ApiError, json_response};
use crate::server::fields::Fields;
use crate::server::models::{Listed, Offer, State as ModelState};
use crate::server::request::take_name;
use crate::server::site::{Models, Site};
use crate::text::ChatTemplate;
use crate::weights::Origin;
use crate::weights::gguf::Value as GgufValue;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// The version of Ollama whose API this is: clients ask for a least one.
pub(super) const VERSION: &str = "0.12.6";
/// The longest name of a copy, and copies at most.
const MAX_NAME: usize = 256;
const MAX_COPIES: usize = 256;
/// When a model is unloaded that is not.
const NEVER: &str = "2318-01-01T00:00:00Z";

/// The models that are served or cached, the one that is served first.
pub(super) async fn tags(State(site): SharedSite) -> Result<Response, ApiError> {
    let models = match &site.models {
        Models::One(app) => {
            let app = Arc::clone(app);
            let list = tokio::task::spawn_blocking(move || list(&app)).await;
            list.map_err(|_| ApiError::internal("the server met a bug of its own"))?
        }
        Models::Many(many) => {
            let listed = many.list().await;
            let offers =
                listed.iter().map(|listed| offer_entry(&listed.offer.settings.name, &listed.offer));
            let mut models: Vec<Value> = offers.collect();
            for (name, model) in site.common.copies() {
                let is_it = |listed: &&Listed| listed.offer.settings.name == model;
                let listed = listed.iter().find(is_it);
                models.extend(listed.map(|listed| offer_entry(&name, &listed.offer)));
            }
            models
        }
    };
    Ok(json_response(StatusCode::OK, &json!({ "models": models })))
}

fn list(app: &App) -> Vec<Value> {
    let served = app.model.checkpoint().path();
    let own = |name: &str| entry(name, served, num_bytes(&app.model), details(&app.model));
    let mut models = vec![own(&app.settings.name)];
    models.extend(app.common.copies().keys().map(|name| own(name)));
    let served = served.canonicalize().ok();
    for model in catalog::cached() {
        if model.path.canonicalize().ok() != served {
            let details = details_of_path(&model.path);
            models.push(entry(&catalog::reference(&model), &model.path, model.bytes, details));
        }
    }
    models
}

/// A model that need not be loaded.
fn offer_entry(name: &str, offer: &Offer) -> Value {
    entry(name, &offer.path, offer.bytes, details_of_path(&offer.path))
}

/// What a path says of a model that is not opened.
fn details_of_path(path: &Path) -> Value {
    let format = if path.is_dir() { "safetensors" } else { "gguf" };
    json!({
        "parent_model": "", "format": format, "family": "", "families": [],
        "parameter_size": "", "quantization_level": quantization(path),
    })
}

fn entry(name: &str, path: &Path, bytes: u64, details: Value) -> Value {
    let name = tagged(name);
    let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    let modified = modified.and_then(|time| jiff::Timestamp::try_from(time).ok());
    json!({
        "name": name,
        "model": name,
        "modified_at": modified.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string(),
        "size": bytes,
        "digest": digest(&name),
        "details": details,
    })
}

/// What tells models apart: their files are not hashed, which would take minutes.
pub(super) fn digest(name: &str) -> String {
    Sha256::digest(name).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn num_bytes(model: &Model) -> u64 {
    let files = model.checkpoint().files();
    files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn num_parameters(model: &Model) -> usize {
    model.checkpoint().tensors().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
}

fn architecture(model: &Model) -> String {
    match model.checkpoint().origin() {
        Origin::Gguf { metadata } => match metadata.get("general.architecture") {
            Some(GgufValue::String(name)) => name.clone(),
            _ => String::new(),
        },
        Origin::HuggingFace { config, .. } => {
            config["model_type"].as_str().unwrap_or_default().to_owned()
        }
    }
}

fn details(model: &Model) -> Value {
    let (family, num) = (architecture(model), num_parameters(model) as f64);
    let size = match num {
        1e9.. => format!("{:.1}B", num / 1e9),
        1e6.. => format!("{:.2}M", num / 1e6),
        _ => format!("{:.2}K", num / 1e3),
    };
    let format = match model.checkpoint().origin() {
        Origin::Gguf { .. } => "gguf",
        Origin::HuggingFace { .. } => "safetensors",
    };
    let mut bytes: HashMap<String, usize> = HashMap::new();
    for tensor in model.checkpoint().tensors() {
        *bytes.entry(tensor.dtype.to_string()).or_default() += tensor.bytes.len();
    }
    let most = bytes.into_iter().max_by_key(|(name, bytes)| (*bytes, name.clone()));
    let named = quantization(model.checkpoint().path());
    let level = match named.is_empty() {
        true => most.map_or_else(String::new, |(name, _)| name.to_uppercase()),
        false => named,
    };
    json!({
        "parent_model": "",
        "format": format,
        "family": family,
        "families": [family],
        "parameter_size": size,
        "quantization_level": level,
    })
}

/// The quantisation in a file's name, such as `Q4_K_M`.
fn quantization(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_uppercase();
    let is_one = |part: &&str| {
        let digits = part.strip_prefix("IQ").or_else(|| part.strip_prefix('Q'));
        digits.is_some_and(|digits| digits.starts_with(|char: char| char.is_ascii_digit()))
            || ["F16", "BF16", "F32", "MXFP4"].contains(part)
    };
    stem.split(['-', '.']).rev().find(is_one).unwrap_or_default().to_owned()
}

/// The models that are loaded.
pub(super) async fn ps(State(site): SharedSite) -> Result<Response, ApiError> {
    let models = match &site.models {
        Models::One(app) => vec![running(app, num_bytes(&app.model) as usize, None)?],
        Models::Many(many) => {
            let listed = many.list().await;
            let loaded = listed.iter().filter_map(|listed| {
                let served = many.served(&listed.offer.settings.name)?;
                let status = listed.status.as_ref()?;
                running(&served.app, status.bytes, status.expires).ok()
            });
            loaded.collect()
        }
    };
    Ok(json_response(StatusCode::OK, &json!({ "models": models })))
}

/// A model that takes so many bytes, until it is unloaded.
fn running(app: &App, bytes: usize, expires: Option<Instant>) -> Result<Value, ApiError> {
    let context = app.healthy()?.context();
    let model = &app.model;
    let (path, details) = (model.checkpoint().path(), details(model));
    let mut entry = entry(&app.settings.name, path, num_bytes(model), details);
    let left = expires.map(|expires| expires.saturating_duration_since(Instant::now()));
    let expires = left.and_then(|left| jiff::Timestamp::now().checked_add(left).ok());
    entry["expires_at"] = expires.map_or(NEVER.to_owned(), |time| time.to_string()).into();
    entry["size_vram"] = bytes.into();
    entry["context_length"] = context.into();
    Ok(entry)
}

/// What there is to know of a model.
pub(super) async fn show(State(site): SharedSite, request: Request) -> Result<Response, ApiError> {
    let body = RequestBody::read(&site, request).await?;
    let parse = |_: &Site, body: &[u8]| {
        let mut fields = Fields::parse(body)?;
        let name = take_name(&mut fields)?;
        let is_verbose = fields.take::<bool>("verbose")?.unwrap_or(false);
        // Whatever else is there belongs to Modelfiles.
        fields.ignore(&["system", "template", "options"]);
        fields.finish()?;
        Ok((name, is_verbose))
    };
    let (name, is_verbose) = body.parse(&site, parse).await?;
    let (name, model) = match &site.models {
        Models::One(app) => {
            let app = Arc::clone(app);
            let model = move || {
                app.check_ollama_model(name.as_deref())?;
                Ok((app.settings.name.clone(), Arc::clone(&app.model)))
            };
            blocking(model).await?
        }
        Models::Many(many) => {
            let name = name.ok_or_else(|| ApiError::param("model", "this field is required"))?;
            let offer = many.find(Some(&name)).await?;
            let name = offer.settings.name.clone();
            match many.served(&name) {
                Some(served) => (name, Arc::clone(&served.app.model)),
                // Its tokenizer is read, and no weight.
                None => {
                    blocking(move || match Model::open_with(&offer.path, &offer.overrides) {
                        Ok(model) => Ok((name, Arc::new(model))),
                        Err(error) => Err(ApiError::internal(error.to_string())),
                    })
                    .await?
                }
            }
        }
    };
    Ok(json_response(
        StatusCode::OK,
        &blocking(move || Ok(shown(&name, &model, is_verbose))).await?,
    ))
}

/// What takes a processor's time, beside the connections.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the server met a bug of its own")))
}

fn shown(served: &str, model: &Model, is_verbose: bool) -> Value {
    let template = model.text().and_then(|text| text.chat_template.as_ref());
    let mut capabilities = vec!["completion"];
    // A template that knows no tools gets them in the system message.
    if template.is_some() {
        capabilities.push("tools");
    }
    if template.is_some_and(|template| template.answer_format().has_reasoning()) {
        capabilities.push("thinking");
    }
    if model.text().is_some_and(|text| text.fill_in_middle.is_some()) {
        capabilities.push("insert");
    }
    let entry = entry(served, model.checkpoint().path(), 0, details(model));
    let sampling = model.generation_config().sampling(crate::engine::Sampling::LLAMA_CPP);
    let parameters = [
        ("temperature", sampling.temperature.to_string()),
        ("top_k", sampling.top_k.to_string()),
        ("top_p", sampling.top_p.to_string()),
        ("min_p", sampling.min_p.to_string()),
    ];
    let parameters = parameters.map(|(name, value)| format!("{name:<30} {value}")).join("\n");
    json!({
        "modelfile": format!("# Modelfiles are not read: halfwarp serves this model.\nFROM {served}\n"),
        "parameters": parameters,
        "template": template.map_or("", ChatTemplate::source),
        "details": entry["details"],
        "model_info": model_info(model, is_verbose),
        "capabilities": capabilities,
        "modified_at": entry["modified_at"],
    })
}

/// The metadata under the names of GGUF. Lists are long, and `null` unless all is asked for.
fn model_info(model: &Model, is_verbose: bool) -> Map<String, Value> {
    let mut info = Map::new();
    if let Origin::Gguf { metadata } = model.checkpoint().origin() {
        for (key, value) in &metadata.0 {
            info.insert(key.clone(), gguf_json(value, is_verbose));
        }
    }
    let (architecture, config) = (architecture(model), model.config());
    for (key, value) in [
        ("context_length", config.max_position_embeddings),
        ("embedding_length", config.hidden_size),
        ("attention.head_count", config.num_heads),
        ("attention.head_count_kv", config.num_kv_heads),
    ] {
        info.entry(format!("{architecture}.{key}")).or_insert_with(|| value.into());
    }
    info.insert("general.architecture".to_owned(), architecture.into());
    info.insert("general.parameter_count".to_owned(), num_parameters(model).into());
    info
}

fn gguf_json(value: &GgufValue, is_verbose: bool) -> Value {
    match value {
        GgufValue::String(text) => text.as_str().into(),
        GgufValue::Bool(is) => (*is).into(),
        GgufValue::F32(number) => (*number).into(),
        GgufValue::F64(number) => (*number).into(),
        GgufValue::Array(values) if is_verbose => {
            values.iter().map(|value| gguf_json(value, false)).collect()
        }
        GgufValue::Array(_) => Value::Null,
        number => number.as_u64().map_or(Value::Null, Value::from),
    }
}

/// What a name means where there is one model.
pub(super) async fn meaning(app: &Arc<App>, name: &str) -> Result<Meaning, ApiError> {
    let (app, name) = (Arc::clone(app), name.to_owned());
    blocking(move || Ok(catalog::find(&name, &app.settings.name, &app.model))).await
}

/// Removes a model from the hub's cache, or another name of one that is served.
pub(super) async fn delete(
    State(site): SharedSite,
    request: Request,
) -> Result<Response, ApiError> {
    site.common.check_manages()?;
    let body = RequestBody::read(&site, request).await?;
    let parse = |_: &Site, body: &[u8]| {
        let mut fields = Fields::parse(body)?;
        let name = take_name(&mut fields)?.unwrap_or_default();
        fields.finish()?;
        Ok(name)
    };
    let name = body.parse(&site, parse).await?;
    if site.common.forget_copy(&name) {
        return Ok(json_response(StatusCode::OK, &json!({})));
    }
    let meaning = match &site.models {
        Models::One(app) => meaning(app, &name).await?,
        Models::Many(many) => {
            let offer = many.find(Some(&name)).await?;
            match many.state(&offer) {
                ModelState::Unloaded => cached_at(&offer).await?,
                _ => Meaning::Served,
            }
        }
    };
    match meaning {
        Meaning::Served => {
            let what = match &site.models {
                Models::One(_) => "is the model that this server has: stop it first",
                Models::Many(_) => "is loaded: POST /models/unload first",
            };
            return Err(ApiError::invalid(format!("{name:?} {what}")));
        }
        Meaning::Unknown => return Err(unknown(&name)),
        Meaning::Cached(model) => blocking(move || remove(&model)).await?,
    }
    Ok(json_response(StatusCode::OK, &json!({})))
}

/// The model of the hub's cache that an offer is; others are not this program's to delete.
async fn cached_at(offer: &Offer) -> Result<Meaning, ApiError> {
    let (path, name) = (offer.path.clone(), offer.settings.name.clone());
    blocking(move || {
        let found = catalog::cached().into_iter().find(|model| model.path == path);
        let found = found.map(|model| Meaning::Cached(Box::new(model)));
        found.ok_or_else(|| {
            ApiError::invalid(format!("{name} is not in the hub's cache: delete its file"))
        })
    })
    .await
}

fn unknown(name: &str) -> ApiError {
    ApiError::status(StatusCode::NOT_FOUND, format!("model '{name}' not found"))
}

/// Removes the repository of a model, if it is of this one alone.
fn remove(model: &hub::CachedModel) -> Result<(), ApiError> {
    let failed = |error: hub::HubError| ApiError::internal(error.to_string());
    let repo = model.repo.as_str();
    if catalog::cached().iter().filter(|other| other.repo == model.repo).count() > 1 {
        let what =
            format!("{repo} has other models in the cache: `halfwarp rm {repo}` removes all");
        return Err(ApiError::invalid(what));
    }
    let cache = catalog::cache().ok_or_else(|| unknown(repo))?;
    let found = cache.repo(repo).map_err(failed)?.ok_or_else(|| unknown(repo))?;
    cache.remove(&found).map_err(failed)
}

/// Gives a model that is served another name, until the server ends.
pub(super) async fn copy(State(site): SharedSite, request: Request) -> Result<Response, ApiError> {
    site.common.check_manages()?;
    let body = RequestBody::read(&site, request).await?;
    let parse = |_: &Site, body: &[u8]| {
        let mut fields = Fields::parse(body)?;
        let source = fields.require::<String>("source")?;
        let destination = fields.require::<String>("destination")?;
        fields.finish()?;
        if destination.is_empty() || destination.len() > MAX_NAME {
            let what = format!("it has to have 1 to {MAX_NAME} bytes");
            return Err(ApiError::param("destination", what));
        }
        Ok((source, destination))
    };
    let (source, destination) = body.parse(&site, parse).await?;
    let model = match &site.models {
        Models::One(app) => {
            let app = Arc::clone(app);
            blocking(move || {
                app.check_ollama_model(Some(&source))?;
                Ok(app.settings.name.clone())
            })
            .await?
        }
        Models::Many(many) => many.find(Some(&source)).await?.settings.name.clone(),
    };
    if !site.common.add_copy(&destination, model, MAX_COPIES) {
        return Err(ApiError::invalid(format!("there are {MAX_COPIES} copies already")));
    }
    Ok(json_response(StatusCode::OK, &json!({})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantisation_stands_in_the_name() {
        for (path, wanted) in [
            ("a/Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
            ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
            ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
            ("x-IQ2_XXS.gguf", "IQ2_XXS"),
            ("Qwen3-8B-BF16.gguf", "BF16"),
            ("Qwen3-8B", ""),
        ] {
            assert_eq!(quantization(Path::new(path)), wanted, "{path}");
        }
    }
}
