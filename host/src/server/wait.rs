//! Requests that wait for their model.

use super::error::ApiError;
use super::models::KeepAlive;
use super::request::keep_alive_of;
use super::routes::only_unloaded;
use super::site::Site;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// How long a stream may wait before it begins with comments: an error before that has its own
/// status.
const GRACE: Duration = Duration::from_secs(1);
/// How often a stream that waits says so.
const COMMENT_INTERVAL: Duration = Duration::from_secs(2);
/// Pieces of a body that wait for their reader.
const MAX_PIECES: usize = 8;

/// What a request says about its model.
#[derive(Debug, Default)]
pub(super) struct Asked {
    name: Option<String>,
    keep_alive: Option<KeepAlive>,
    is_streamed: bool,
    is_ollamas: bool,
    /// Whether it is a request of Ollama's that only unloads.
    only_unloads: bool,
}

/// The fields of a body that are of interest before the model is known.
#[derive(Deserialize)]
struct Head {
    model: Option<Value>,
    name: Option<Value>,
    stream: Option<Value>,
    keep_alive: Option<Value>,
    prompt: Option<IgnoredAny>,
    messages: Option<IgnoredAny>,
    input: Option<IgnoredAny>,
}

impl Asked {
    /// Reads the body of a request to `path`.
    ///
    /// # Errors
    /// 400 for what is no object, a name that is no text, and a time that is none.
    pub fn from_body(path: &str, body: &[u8]) -> Result<Self, ApiError> {
        let head: Head = serde_json::from_slice(body)
            .map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))?;
        let text = |field: Option<Value>| match field {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(name)) => Ok(Some(name).filter(|name| !name.is_empty())),
            Some(_) => Err(ApiError::param("model", "it has to be a text")),
        };
        let is_ollamas = path.starts_with("/api/");
        let name = match is_ollamas {
            true => text(head.model)?.or(text(head.name)?),
            false => text(head.model)?,
        };
        if is_ollamas && name.is_none() {
            return Err(ApiError::param("model", "this field is required"));
        }
        let keep_alive = match head.keep_alive.filter(|_| is_ollamas) {
            Some(Value::Null) | None => None,
            Some(value) => Some(keep_alive_of(value)?),
        };
        let is_empty = head.prompt.is_none() && head.messages.is_none() && head.input.is_none();
        Ok(Asked {
            name,
            keep_alive,
            // Ollama streams unless it is told not to.
            is_streamed: head.stream.unwrap_or(is_ollamas.into()) == Value::Bool(true),
            is_ollamas,
            only_unloads: is_empty && keep_alive == Some(KeepAlive::For(Duration::ZERO)),
        })
    }

    /// `model` of a query.
    pub fn from_query(query: &str) -> Self {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let name = pairs.into_iter().find(|(key, _)| *key == "model").map(|(_, name)| decode(name));
        Asked { name, ..Asked::default() }
    }
}

/// A value of a query without its escapes.
fn decode(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        let mut rest = bytes.clone();
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match (byte, digit(rest.next()), digit(rest.next())) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                bytes = rest;
            }
            (b'+', ..) => decoded.push(b' '),
            _ => decoded.push(byte),
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The answer of `next` to a request, with the model that it asks for.
pub(super) async fn answer(
    site: Arc<Site>,
    asked: Asked,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let path = request.uri().path().to_owned();
    // Lines of JSON have no comments.
    let is_events = asked.is_streamed && !asked.is_ollamas;
    let mut answer = Box::pin(with_model(site, asked, request, next));
    if !is_events {
        return answer.await;
    }
    match timeout(GRACE, &mut answer).await {
        Ok(answer) => answer,
        Err(_) => Ok(comments_until(answer, path)),
    }
}

async fn with_model(
    site: Arc<Site>,
    asked: Asked,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let many = site.many()?;
    let offer = many.find(asked.name.as_deref()).await?;
    if asked.only_unloads {
        many.unload(&offer);
        let name = asked.name.unwrap_or_default();
        return Ok(only_unloaded(request.uri().path(), &name, asked.is_streamed));
    }
    let lease = many.lease(&offer, asked.keep_alive).await?;
    request.extensions_mut().insert(Arc::clone(&lease.model.app));
    let response = next.run(request).await;
    // The model stays until the last byte is written, or the client has gone.
    Ok(response.map(|body| {
        Body::new(body.map_err(move |error| {
            let _ = &lease;
            error
        }))
    }))
}

/// Server-sent events: comments, then those of `answer`.
fn comments_until(
    answer: impl Future<Output = Result<Response, ApiError>> + Send + 'static,
    path: String,
) -> Response {
    let (pieces, reader) = mpsc::channel::<Bytes>(MAX_PIECES);
    let write = async move {
        let mut answer = std::pin::pin!(answer);
        let answer = loop {
            tokio::select! {
                answer = &mut answer => break answer,
                // The reader has gone: so does the request, and its place.
                () = pieces.closed() => return,
                () = tokio::time::sleep(COMMENT_INTERVAL) => {
                    let _ = pieces.try_send(COMMENT);
                }
            }
        };
        let response = answer.unwrap_or_else(IntoResponse::into_response);
        if let Some(error) = response.extensions().get::<ApiError>() {
            let _ = pieces.send(failure(&path, error).into()).await;
            return;
        }
        let mut body = response.into_body().into_data_stream();
        loop {
            let piece = tokio::select! {
                piece = body.next() => piece,
                // An answer that has nothing to say for long is not kept for nobody.
                () = pieces.closed() => return,
            };
            let Some(Ok(piece)) = piece else { return };
            if pieces.send(piece).await.is_err() {
                return;
            }
        }
    };
    tokio::spawn(write);
    let pieces = futures_util::stream::unfold(reader, async |mut reader| {
        let piece = reader.recv().await?;
        Some((Ok::<_, Infallible>(piece), reader))
    });
    let first = futures_util::stream::iter([Ok(COMMENT)]);
    let mut response = Body::from_stream(first.chain(pieces)).into_response();
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// What clients of server-sent events read over.
const COMMENT: Bytes = Bytes::from_static(b": the model is loading\n\n");

/// The last event of a stream that fails before its first, as the API of `path` has it.
fn failure(path: &str, error: &ApiError) -> String {
    let error = match path {
        path if path.starts_with("/v1/messages") => {
            return format!("event: error\ndata: {}\n\n", error.to_anthropic());
        }
        _ => error,
    };
    let body = error.to_json();
    if path.ends_with("/responses") {
        let mut event = body["error"].clone();
        event["error"] = body["error"].clone();
        event["type"] = "error".into();
        event["sequence_number"] = 0.into();
        return format!("event: error\ndata: {event}\n\n");
    }
    match path.starts_with("/v1/") || path.starts_with("/chat/") {
        true => format!("data: {body}\n\ndata: [DONE]\n\n"),
        false => format!("data: {body}\n\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime;
    use tokio::sync::oneshot;

    type Answer = Result<Response, ApiError>;

    /// What a client of `path` reads whose model is loaded when it has read the first comment.
    fn read(path: &str, answer: Answer) -> String {
        let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (loaded, is_loaded) = oneshot::channel::<Answer>();
            let waits = async { is_loaded.await.unwrap() };
            let response = comments_until(waits, path.to_owned());
            assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
            let mut body = response.into_body().into_data_stream();
            assert_eq!(body.next().await.unwrap().unwrap(), COMMENT);
            assert!(loaded.send(answer).is_ok());
            let mut rest = String::new();
            while let Some(piece) = body.next().await {
                rest += std::str::from_utf8(&piece.unwrap()).unwrap();
            }
            rest.replace(std::str::from_utf8(&COMMENT).unwrap(), "")
        })
    }

    #[test]
    fn a_stream_that_waits_is_told_and_then_answered() {
        let answer = || Ok(Body::from("data: 1\n\ndata: [DONE]\n\n").into_response());
        assert_eq!(read("/v1/completions", answer()), "data: 1\n\ndata: [DONE]\n\n");
    }

    #[test]
    fn a_stream_whose_model_is_not_loaded_ends_as_its_api_has_it() {
        let refused = || ApiError::unavailable("no room");
        let openai = refused().to_json();
        let done = format!("data: {openai}\n\ndata: [DONE]\n\n");
        assert_eq!(read("/v1/chat/completions", Err(refused())), done);
        // What the handler refuses is told in the same way.
        assert_eq!(read("/v1/completions", Ok(refused().into_response())), done);
        assert_eq!(read("/completion", Err(refused())), format!("data: {openai}\n\n"));
        let anthropics = format!("event: error\ndata: {}\n\n", refused().to_anthropic());
        assert_eq!(read("/v1/messages", Err(refused())), anthropics);
        let response = read("/v1/responses", Err(refused()));
        assert!(response.starts_with("event: error\ndata: {\"message\":\"no room\""), "{response}");
    }

    #[test]
    fn a_client_that_leaves_drops_what_it_waits_for() {
        let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (alive, is_dropped) = oneshot::channel::<()>();
            let waits = async move {
                let _alive = alive;
                std::future::pending::<Answer>().await
            };
            drop(comments_until(waits, "/v1/completions".to_owned()));
            assert!(is_dropped.await.is_err());
        });
    }

    #[test]
    fn a_client_that_leaves_drops_an_answer_that_is_silent() {
        let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (alive, is_dropped) = oneshot::channel::<()>();
            let silent = futures_util::stream::once(async move {
                let _alive = alive;
                std::future::pending::<Result<Bytes, Infallible>>().await
            });
            let answer = Ok(Body::from_stream(silent).into_response());
            let response = comments_until(std::future::ready(answer), "/completion".to_owned());
            let mut body = response.into_body().into_data_stream();
            assert_eq!(body.next().await.unwrap().unwrap(), COMMENT);
            // It waits for the first piece by then.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            drop(body);
            assert!(timeout(Duration::from_secs(10), is_dropped).await.unwrap().is_err());
        });
    }

    #[test]
    fn only_what_says_which_model_is_read() {
        let read = |path: &str, body: &str| Asked::from_body(path, body.as_bytes());
        let chat = r#"{"messages": [{"model": "no"}], "model": "a", "stream": true, "name": "b"}"#;
        let asked = read("/v1/chat/completions", chat).unwrap();
        assert_eq!((asked.name.as_deref(), asked.is_streamed), (Some("a"), true));
        let asked = read("/api/chat", r#"{"name": "b", "keep_alive": "1m"}"#).unwrap();
        assert_eq!((asked.name.as_deref(), asked.is_streamed), (Some("b"), true));
        assert_eq!(asked.keep_alive, Some(KeepAlive::For(Duration::from_secs(60))));
        assert!(!asked.only_unloads);
        assert!(read("/api/generate", r#"{"model": "b", "keep_alive": 0}"#).unwrap().only_unloads);
        let asked = read("/api/generate", r#"{"model": "b", "keep_alive": 0, "prompt": "x"}"#);
        assert!(!asked.unwrap().only_unloads);
        for body in ["", "[]", "{\"model\": 1}", "{\"model\": \"a\""] {
            assert_eq!(read("/v1/completions", body).unwrap_err().status, 400, "{body}");
        }
        let query = |query: &str| Asked::from_query(query).name;
        assert_eq!(query("a=b&model=org%2Fname%3aq+x"), Some("org/name:q x".to_owned()));
        assert_eq!(query("model=%zz%2"), Some("%zz%2".to_owned()));
        assert_eq!(query("model"), None);
    }
}
