//! The body of a request: of bounded length and time, and large ones one after the other.

use super::app::App;
use super::error::ApiError;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::LengthLimitError;
use std::error::Error;
use std::ops::Deref;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

/// From here on a body waits for its turn: while it is parsed and encoded it takes up to 250 times its size.
const LARGE_BYTES: usize = 256 << 10;

/// The body of a request, until its prompt is encoded.
pub(super) struct RequestBody {
    bytes: Bytes,
    /// Of a large one.
    _turn: Option<Turn>,
}

impl RequestBody {
    /// Reads the body of `request`; a large one waits until no other is being encoded.
    pub async fn read(app: &App, request: Request<Body>) -> Result<Self, ApiError> {
        let max = app.options.max_body_bytes;
        let too_large = || {
            let message = format!("the body has more than {max} bytes");
            ApiError::status(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        check_content_type(request.headers())?;
        let length = request.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > max as u64) {
            return Err(too_large());
        }
        let bytes =
            match timeout(app.options.read_timeout, to_bytes(request.into_body(), max)).await {
                Ok(Ok(bytes)) => bytes,
                Ok(Err(error)) if is_length_limit(&error) => return Err(too_large()),
                Ok(Err(_)) => return Err(ApiError::invalid("the body ends too early")),
                Err(_) => {
                    let message = "the body takes too long";
                    return Err(ApiError::status(StatusCode::REQUEST_TIMEOUT, message));
                }
            };
        let turn = match bytes.len() {
            0..LARGE_BYTES => None,
            _ => Arc::clone(&app.large_bodies).acquire_owned().await.ok().map(Turn),
        };
        Ok(RequestBody { bytes, _turn: turn })
    }
}

impl Deref for RequestBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The turn of a large body.
struct Turn(#[allow(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

impl Drop for Turn {
    fn drop(&mut self) {
        release_memory();
    }
}

/// Gives free memory back to the system: glibc keeps what the many small values of a large body leave behind, 600 MB of a
/// text of 4 MB, for each thread that has parsed one.
fn release_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it may be called at any time, from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn is_length_limit(error: &axum::Error) -> bool {
    error.source().is_some_and(|cause| cause.is::<LengthLimitError>())
}

/// A web page of another origin cannot send JSON without being asked first.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = value.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let message = "the body has to be JSON, with Content-Type: application/json";
    Err(ApiError::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use crate::server::ServerOptions;
    use std::time::Duration;
    use tokio::runtime;

    #[test]
    fn a_large_body_waits_for_another() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let app = App::new(Arc::new(Model::open(golden).unwrap()), ServerOptions::default());
        let read = async |len: usize| {
            let request = Request::builder().header(header::CONTENT_TYPE, "application/json");
            let request = request.body(Body::from(vec![b' '; len])).unwrap();
            RequestBody::read(&app, request).await.unwrap()
        };
        let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let first = read(LARGE_BYTES).await;
            assert_eq!(read(LARGE_BYTES - 1).await.len(), LARGE_BYTES - 1);
            let waits = timeout(Duration::from_millis(50), read(LARGE_BYTES)).await;
            assert!(waits.is_err());
            drop(first);
            assert_eq!(read(LARGE_BYTES).await.len(), LARGE_BYTES);
        });
    }
}
