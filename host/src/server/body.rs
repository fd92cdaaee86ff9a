//! The body of a request: of bounded length and time, and large ones parsed one after the other.

use super::common::Common;
use super::error::ApiError;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::LengthLimitError;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::error::Error;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// From here on a body is large: while it is parsed and encoded it takes up to 250 times its size.
const LARGE_BYTES: usize = 256 << 10;

/// The body of a request.
pub(super) struct RequestBody(Bytes);

impl RequestBody {
    /// Reads the body of `request`.
    pub async fn read<A: AsRef<Common>>(
        app: &Arc<A>,
        request: Request<Body>,
    ) -> Result<Self, ApiError> {
        let options = &(**app).as_ref().options;
        let max = options.max_body_bytes;
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
        match timeout(options.read_timeout, to_bytes(request.into_body(), max)).await {
            Ok(Ok(bytes)) => Ok(RequestBody(bytes)),
            Ok(Err(error)) if is_length_limit(&error) => Err(too_large()),
            Ok(Err(_)) => Err(ApiError::invalid("the body ends too early")),
            Err(_) => Err(ApiError::status(StatusCode::REQUEST_TIMEOUT, "the body takes too long")),
        }
    }

    /// The bytes that came.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// What `parse` makes of it, beside the connections: it takes a processor's time. A large body waits for its turn.
    pub async fn parse<A: AsRef<Common> + Send + Sync + 'static, T: Send + 'static>(
        self,
        app: &Arc<A>,
        parse: impl FnOnce(&A, &[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let RequestBody(bytes) = self;
        let is_large = bytes.len() >= LARGE_BYTES;
        let (sender, parsed) = oneshot::channel();
        let parse = {
            let app = Arc::clone(app);
            move || {
                // A client that has left in the meantime costs nothing.
                if !sender.is_closed() {
                    let _ = sender.send(parse(&app, &bytes));
                }
            }
        };
        if is_large {
            (**app).as_ref().large_bodies.spawn_fifo(parse);
        } else {
            spawn_blocking(parse);
        }
        parsed.await.unwrap_or_else(|_| Err(ApiError::internal("the server met a bug of its own")))
    }
}

/// The one thread that parses large bodies: an allocator keeps for each thread what many small values leave behind, 600 MB
/// of a text of 4 MB.
pub(super) fn thread_of_large_bodies() -> Result<ThreadPool, ThreadPoolBuildError> {
    ThreadPoolBuilder::new()
        .num_threads(1)
        .thread_name(|_| "large bodies".to_owned())
        // Its request is told, as nothing comes.
        .panic_handler(drop)
        .build()
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
    use crate::server::app::App;
    use crate::server::{ModelSettings, ServerOptions};
    use std::sync::mpsc;
    use std::time::Duration;
    use tokio::runtime;

    #[test]
    fn a_large_body_waits_for_another() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let common = Arc::new(Common::new(ServerOptions::default(), false).unwrap());
        let model = Arc::new(Model::open(golden).unwrap());
        let app = Arc::new(App::new(&common, model, ModelSettings::default()));
        let body = |len: usize| RequestBody(vec![b' '; len].into());
        let len = async |len: usize| body(len).parse(&app, |_, body| Ok(body.len())).await;
        let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (release, released) = mpsc::channel::<()>();
            let first = body(LARGE_BYTES).parse(&app, move |_, _| {
                assert!(released.recv().is_ok(), "a parser that panics");
                Ok(())
            });
            let mut first = std::pin::pin!(first);
            let soon = Duration::from_millis(50);
            assert!(timeout(soon, first.as_mut()).await.is_err());
            assert_eq!(len(LARGE_BYTES - 1).await.unwrap(), LARGE_BYTES - 1);
            assert!(timeout(soon, len(LARGE_BYTES)).await.is_err());
            drop(release);
            // It panics, and the thread goes on.
            assert!(first.await.is_err());
            assert_eq!(len(LARGE_BYTES).await.unwrap(), LARGE_BYTES);
        });
    }
}
