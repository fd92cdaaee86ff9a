//! `/api/pull`: a model is fetched into the hub's cache.

use super::SharedSite;
use super::ollama_models::{digest, meaning};
use crate::server::answer::{Line, StreamItem};
use crate::server::body::RequestBody;
use crate::server::catalog::{self, Meaning};
use crate::server::error::{ApiError, json_response};
use crate::server::fields::Fields;
use crate::server::request::take_name;
use crate::server::site::{Models, Site};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use hub::{Client, Event, HubCache, ModelRef, Retry, Settings};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Lines of a pull that wait for a reader.
const MAX_LINES: usize = 256;
/// Bytes that are not told one by one.
const TOLD_BYTES: u64 = 1 << 20;

/// Fetches a model into the hub's cache, and says how far it is.
pub(super) async fn pull(State(site): SharedSite, request: Request) -> Result<Response, ApiError> {
    site.common.check_manages()?;
    let body = RequestBody::read(&site, request).await?;
    let parse = |_: &Site, body: &[u8]| {
        let mut fields = Fields::parse(body)?;
        let name = take_name(&mut fields)?.unwrap_or_default();
        let stream = fields.take::<bool>("stream")?.unwrap_or(true);
        fields.ignore(&["insecure", "username", "password"]);
        fields.finish()?;
        Ok((name, stream))
    };
    let (name, stream) = body.parse(&site, parse).await?;
    let wanted = wanted(&site, name).await?;
    let place = Arc::clone(&site.common.pulls).try_acquire_owned().map_err(|_| {
        ApiError::status(StatusCode::TOO_MANY_REQUESTS, "other models are being pulled: ask again")
    })?;
    let (sender, mut lines) = mpsc::channel(MAX_LINES);
    // A thread of its own: those of requests would be taken for hours.
    let body = move || {
        let end = match wanted.map_or(Ok(()), |wanted| fetch(&wanted, &sender)) {
            Ok(()) => json!({ "status": "success" }),
            Err(error) => json!({ "error": error }),
        };
        let _ = sender.blocking_send(end);
        drop(place);
    };
    let thread = std::thread::Builder::new().name("pull".to_owned()).spawn(body);
    thread.map_err(|error| ApiError::internal(format!("no thread: {error}")))?;
    if stream {
        let lines = futures_util::stream::unfold(lines, async |mut lines| {
            let line = lines.recv().await?;
            Some((Line::new(&line), lines))
        });
        return Ok(Line::response(lines));
    }
    let mut last = json!({ "status": "success" });
    while let Some(line) = lines.recv().await {
        last = line;
    }
    match last["error"].as_str() {
        Some(error) => Err(ApiError::invalid(error)),
        None => Ok(json_response(StatusCode::OK, &last)),
    }
}

/// The model that is to be fetched; `None` if it is here.
async fn wanted(site: &Site, name: String) -> Result<Option<ModelRef>, ApiError> {
    if let Some(wanted) = catalog::hub_name(&name) {
        return Ok(Some(wanted));
    }
    let is_here = match &site.models {
        Models::One(app) => meaning(app, &name).await? != Meaning::Unknown,
        Models::Many(many) => many.find(Some(&name)).await.is_ok(),
    };
    match is_here {
        true => Ok(None),
        false => Err(ApiError::invalid(format!(
            "{name:?} is a name of Ollama's library, and models come from the Hugging Face Hub: give ORG/NAME or \
             ORG/NAME:QUANT, such as hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M"
        ))),
    }
}

/// Fetches `model`, and tells `lines` of it. A client that leaves does not end it: the next pull
/// finds what has come.
fn fetch(model: &ModelRef, lines: &mpsc::Sender<Value>) -> Result<(), String> {
    let text = |error: hub::HubError| error.to_string();
    let settings = Settings::from_env().map_err(text)?;
    if settings.is_offline {
        return Err(hub::HubError::Offline(model.repo.clone()).to_string());
    }
    let client = Client::new(&settings).map_err(text)?;
    let cache = HubCache::new(settings.cache_dir().map_err(text)?);
    let say = |line: Value| drop(lines.blocking_send(line));
    say(json!({ "status": "pulling manifest" }));
    let mut progress = Progress::default();
    let mut tell = |event: Event<'_>| progress.lines(event).into_iter().for_each(say);
    hub::pull(&client, &cache, model, "main", Retry::default(), &mut tell).map_err(text)?;
    say(json!({ "status": "writing manifest" }));
    Ok(())
}

/// How far the file is that is being fetched.
#[derive(Default)]
struct Progress {
    total: Option<u64>,
    told: u64,
}

impl Progress {
    /// What is said of an event.
    fn lines(&mut self, event: Event<'_>) -> Option<Value> {
        let pulling = |file: &str, total: Option<u64>, completed: u64| {
            let digest = format!("sha256:{}", digest(file));
            let mut line = json!({ "status": format!("pulling {file}"), "digest": digest });
            if let Some(total) = total {
                line["total"] = total.into();
            }
            line["completed"] = completed.into();
            line
        };
        match event {
            Event::Present { file, bytes } => Some(pulling(file, Some(bytes), bytes)),
            Event::Started { file, bytes, received } => {
                (self.total, self.told) = (bytes, received);
                Some(pulling(file, bytes, received))
            }
            Event::Received { file, received } => {
                let is_told = received >= self.told + TOLD_BYTES || Some(received) == self.total;
                is_told.then(|| {
                    self.told = received;
                    pulling(file, self.total, received)
                })
            }
            Event::Waiting { file } => {
                Some(json!({ "status": format!("waiting for another pull of {file}") }))
            }
            Event::Again { file, why } => {
                let why = why.lines().next().unwrap_or_default();
                Some(json!({ "status": format!("{file}: {why}: trying again") }))
            }
            Event::Verified { .. } => Some(json!({ "status": "verifying sha256 digest" })),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_told_by_the_megabyte() {
        let mut progress = Progress::default();
        let mut told = Vec::new();
        let total = 5 << 19;
        let mut tell = |event| told.extend(progress.lines(event));
        tell(Event::Started { file: "a", bytes: Some(total), received: 0 });
        for received in (0..=total).step_by(1 << 16) {
            tell(Event::Received { file: "a", received });
        }
        let completed: Vec<_> = told.iter().map(|line| line["completed"].as_u64()).collect();
        assert_eq!(completed, [0, 1 << 20, 1 << 21, total].map(Some));
        assert!(told.iter().all(|line| line["total"] == total), "{told:?}");
    }
}
