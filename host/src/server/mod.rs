//! A server of OpenAI's API: `/v1/chat/completions`, `/v1/completions`, `/v1/responses`; of Anthropic's `/v1/messages`; and
//! of what vLLM's users have beside them.
//!
//! ```text
//! connection -> route -> prompt (blocking threads) -> EngineHandle -> one task a choice -> body, or server-sent events
//! ```
//! Dropping any part of it cancels the requests after it: a client that leaves frees its place within a step.

mod answer;
mod app;
mod auth;
mod body;
mod catalog;
mod choice;
mod cors;
mod embeddings;
mod error;
mod fields;
mod form;
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod lines;
mod metrics;
mod page;
mod prefix;
mod request;
mod routes;
mod scores;
mod socket;
mod store;
mod timed;
mod tls;
mod tokens;
mod tools;

pub use cors::is_origin;
pub use host::is_host;
pub use prefix::is_path_prefix;
pub use tls::{Tls, TlsError};

use crate::Model;
use crate::engine::{Engine, EngineError, EngineHandle, EngineService, ServiceOptions};
use crate::text::answer::Reasoning;
use app::App;
use axum::Router;
use host::AllowedHosts;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use serde_json::{Map, Value};
use socket::WriteTimeout;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

/// Threads for connections; prompts are parsed and encoded on others, and the engine has its own.
const NUM_THREADS: usize = 2;
/// Requests that are parsed and encoded at once.
const MAX_BLOCKING_THREADS: usize = 8;
/// Connections at once; more wait until one ends.
const MAX_CONNECTIONS: usize = 1024;
/// How long a connection may be idle, and how long a head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How often the server looks whether its engine has failed for good.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long connections may take for what is left to write, after the last answer has ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// In which order requests are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// As they come; a request for a priority is refused.
    #[default]
    Fcfs,
    /// By the priority that they ask for, those of the same priority as they come.
    Priority,
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// What clients call the model.
    pub model_name: String,
    /// Keys of which a client has to give one; none: anyone is served.
    pub api_keys: Vec<String>,
    /// Path before all paths of the server, see [`is_path_prefix`]; empty: none.
    pub path_prefix: String,
    /// Origins whose pages may talk to the server, see [`is_origin`]; none: only its own page may.
    pub cors_origins: Vec<String>,
    /// Hosts by which clients may call the server, see [`is_host`], beside those of its machine: `localhost`, addresses of
    /// the loopback interface, and the host at which it listens. None: it does not matter how it is called, unless it
    /// listens on the loopback interface and has no keys.
    pub allowed_hosts: Vec<String>,
    /// Connections are encrypted; none: they are plain HTTP.
    pub tls: Option<Tls>,
    /// Bytes of a request's body at most.
    pub max_body_bytes: usize,
    /// Answers to a request at most: its prompts times its `n`.
    pub max_choices: usize,
    /// The queue.
    pub service: ServiceOptions,
    /// In which order requests are served.
    pub scheduling_policy: SchedulingPolicy,
    /// Variables of the chat template for every chat; those of a request take their place.
    pub chat_template_kwargs: Map<String, Value>,
    /// Takes control tokens that messages spell out for the tokens themselves.
    pub parse_special_in_content: bool,
    /// How the reasoning of answers is set apart, where a request does not say.
    pub reasoning: Reasoning,
    /// How long the body of a request may take.
    pub read_timeout: Duration,
    /// How long a client may leave an answer unread before its request is cancelled and the connection closed.
    pub write_timeout: Duration,
    /// How long answers may go on after a shutdown has begun.
    pub shutdown_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            model_name: "halfwarp".to_owned(),
            api_keys: Vec::new(),
            path_prefix: String::new(),
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            tls: None,
            max_body_bytes: 8 << 20,
            max_choices: 128,
            service: ServiceOptions::default(),
            scheduling_policy: SchedulingPolicy::default(),
            chat_template_kwargs: Map::new(),
            parse_special_in_content: false,
            reasoning: Reasoning::Auto,
            read_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(20),
        }
    }
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    hosts: Option<AllowedHosts>,
    app: Arc<App>,
}

impl Server {
    /// Listens at `port` of the first address of `host` where it is free; 0 for any port that is.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(
        host: &str,
        port: u16,
        model: Arc<Model>,
        options: ServerOptions,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((host, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.ip();
        let hosts = AllowedHosts::new(host, address, &options);
        let is_private = address.to_canonical().is_loopback() || !options.api_keys.is_empty();
        let mut app = App::new(model, options).map_err(io::Error::other)?;
        app.manages = is_private;
        Ok(Server { listener, hosts, app: Arc::new(app) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Opens the engine, and serves until `shutdown` is ready; then lets answers end. Until the engine is open, requests
    /// are refused with 503.
    ///
    /// # Errors
    /// That of `open`; [`EngineError::Thread`]; [`EngineError::Stopped`] for an engine that failed for good.
    pub fn run<E: From<EngineError> + Send + 'static>(
        self,
        open: impl FnOnce() -> Result<Engine, E> + Send + 'static,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), E> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(NUM_THREADS)
            .max_blocking_threads(MAX_BLOCKING_THREADS)
            .enable_all()
            .build()
            .map_err(|error| E::from(EngineError::Thread(error)))?;
        let result = runtime.block_on(self.serve(open, shutdown));
        // An engine that is still loading is not waited for.
        runtime.shutdown_background();
        result
    }

    async fn serve<E: From<EngineError> + Send + 'static>(
        self,
        open: impl FnOnce() -> Result<Engine, E> + Send + 'static,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), E> {
        let Server { listener, hosts, app } = self;
        let listener = tokio::net::TcpListener::from_std(listener)
            .map_err(|error| E::from(EngineError::Thread(error)))?;
        let (close, is_closing) = oneshot::channel();
        let connections = tokio::spawn(accept(listener, hosts, Arc::clone(&app), is_closing));
        let options = app.options.service;
        let loading = spawn_blocking(move || EngineService::start(options, open));
        let mut shutdown = std::pin::pin!(shutdown);
        let service = tokio::select! {
            loaded = loading => loaded.unwrap_or_else(|panic| {
                std::panic::resume_unwind(panic.into_panic())
            })?,
            () = &mut shutdown => return Ok(()),
        };
        let engine = service.handle().clone();
        let context = engine.context();
        drop(app.engine.set(engine.clone()));
        tracing::info!("ready: {} with a context of {context} tokens", app.options.model_name);

        let stopped = tokio::select! {
            () = shutdown => None,
            error = has_stopped(&engine) => Some(error),
        };
        match &stopped {
            None => tracing::info!("shutting down: requests that run may end"),
            Some(error) => tracing::error!("{error}"),
        }
        app.drain();
        let mut draining = spawn_blocking(move || service.shutdown());
        if timeout(app.options.shutdown_timeout, &mut draining).await.is_err() {
            engine.stop();
            // Within a step.
            let _ = draining.await;
        }
        drop(close);
        let _ = timeout(CLOSE_TIMEOUT, connections).await;
        stopped.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Waits until the engine has failed for good.
async fn has_stopped(engine: &EngineHandle) -> EngineError {
    loop {
        match engine.check_running() {
            Err(error @ EngineError::Stopped(_)) => return error,
            _ => sleep(CHECK_INTERVAL).await,
        }
    }
}

/// Serves connections until `is_closing`; then lets each end its response.
async fn accept(
    listener: tokio::net::TcpListener,
    hosts: Option<AllowedHosts>,
    app: Arc<App>,
    mut is_closing: oneshot::Receiver<()>,
) {
    let tls = app.options.tls.as_ref().map(Tls::acceptor);
    let write_timeout = app.options.write_timeout;
    let router = routes::router(app, hosts);
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            _ = &mut is_closing => break,
        };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) => {
                // As a rule no file descriptor is left: it gets better when a connection ends.
                tracing::warn!("cannot accept a connection: {error}");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        // Tokens are small, and each is awaited.
        let _ = socket.set_nodelay(true);
        let (router, watcher, tls) = (router.clone(), graceful.watcher(), tls.clone());
        tokio::spawn(async move {
            let socket = WriteTimeout::new(socket, write_timeout);
            match tls {
                None => serve_connection(socket, router, watcher).await,
                Some(tls) => match timeout(HEAD_TIMEOUT, tls.accept(socket)).await {
                    Ok(Ok(socket)) => serve_connection(socket, router, watcher).await,
                    Ok(Err(error)) => tracing::info!("a TLS handshake failed: {error}"),
                    Err(_) => {}
                },
            }
            drop(place);
        });
    }
    graceful.shutdown().await;
}

/// Serves a connection until it ends, or `watcher` ends it after a response.
async fn serve_connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    socket: S,
    router: Router,
    watcher: Watcher,
) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(socket), service);
    // A client that leaves is no news.
    let _ = watcher.watch(connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::unlucky_engine;
    use crate::exec::ExecError;

    /// With the status of a completion of `prompt`.
    fn post(address: SocketAddr, prompt: &str) -> u16 {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        let request = ureq::Agent::from(config)
            .post(format!("http://{address}/v1/completions"))
            .header("Content-Type", "application/json");
        let body = format!("{{\"prompt\": {prompt}, \"max_tokens\": 3}}");
        request.send(&body).unwrap().status().as_u16()
    }

    /// How a server ends whose executor answers token 13 so, after the requests of `talk`.
    fn serve(fault: fn() -> ExecError, talk: impl FnOnce(SocketAddr)) -> Result<(), EngineError> {
        let engine = unlucky_engine(fault).unwrap();
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let model = Arc::new(Model::open(golden).unwrap());
        let server = Server::bind("127.0.0.1", 0, model, ServerOptions::default()).unwrap();
        let address = server.local_addr().unwrap();
        let (stop, is_stopped) = oneshot::channel::<()>();
        std::thread::scope(|scope| {
            let run =
                || server.run(move || Ok(engine), async { is_stopped.await.unwrap_or_default() });
            let server = scope.spawn(run);
            while post(address, "[1]") == 503 {
                std::thread::sleep(Duration::from_millis(5));
            }
            talk(address);
            if matches!(fault(), ExecError::Step(_)) {
                drop(stop);
                return server.join().unwrap();
            }
            let ended = server.join().unwrap();
            drop(stop);
            ended
        })
    }

    #[test]
    fn a_failed_step_is_an_error_of_its_requests() {
        let ended = serve(
            || ExecError::Step("bad luck".to_owned()),
            |address| assert_eq!([post(address, "[13]"), post(address, "[1]")], [500, 200]),
        );
        ended.unwrap();
    }

    #[test]
    fn a_broken_device_ends_the_server() {
        let ended = serve(
            || ExecError::Driver { call: "run".to_owned(), error: "lost".to_owned() },
            |address| assert_eq!(post(address, "[13]"), 500),
        );
        let error = ended.unwrap_err().to_string();
        assert_eq!(error, "the engine has stopped: CUDA: run: lost");
    }
}
