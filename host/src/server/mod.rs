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
mod common;
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
mod models;
mod page;
mod prefix;
mod request;
mod routes;
mod scores;
mod site;
mod socket;
mod store;
mod timed;
mod tls;
mod tokens;
mod tools;
mod wait;

pub use cors::is_origin;
pub use host::is_host;
pub use models::{KeepAlive, ModelsOptions, Offer};
pub use prefix::is_path_prefix;
pub use tls::{Tls, TlsError};

use crate::Model;
use crate::engine::{Engine, EngineError, EngineHandle, EngineService, ServiceOptions};
use crate::text::answer::Reasoning;
use app::App;
use axum::Router;
use common::Common;
use host::AllowedHosts;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use models::Many;
use serde_json::{Map, Value};
use site::{Models, Site};
use socket::WriteTimeout;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, spawn_blocking};
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

/// How a model answers.
#[derive(Clone, Debug)]
pub struct ModelSettings {
    /// What clients call it.
    pub name: String,
    /// Variables of the chat template for every chat; those of a request take their place.
    pub chat_template_kwargs: Map<String, Value>,
    /// Takes control tokens that messages spell out for the tokens themselves.
    pub parse_special_in_content: bool,
    /// How the reasoning of answers is set apart, where a request does not say.
    pub reasoning: Reasoning,
}

impl Default for ModelSettings {
    fn default() -> Self {
        ModelSettings {
            name: "halfwarp".to_owned(),
            chat_template_kwargs: Map::new(),
            parse_special_in_content: false,
            reasoning: Reasoning::Auto,
        }
    }
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
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
            api_keys: Vec::new(),
            path_prefix: String::new(),
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            tls: None,
            max_body_bytes: 8 << 20,
            max_choices: 128,
            service: ServiceOptions::default(),
            scheduling_policy: SchedulingPolicy::default(),
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
    site: Arc<Site>,
}

impl Server {
    /// Listens at `port` of the first address of `host` where it is free; 0 for any port that is. It serves one model.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(
        host: &str,
        port: u16,
        model: Arc<Model>,
        settings: ModelSettings,
        options: ServerOptions,
    ) -> io::Result<Self> {
        Self::listen(host, port, options, |common| {
            Models::One(Arc::new(App::new(common, model, settings)))
        })
    }

    /// As [`Server::bind`], for models that requests choose from by name.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind_models(
        host: &str,
        port: u16,
        models: ModelsOptions,
        options: ServerOptions,
    ) -> io::Result<Self> {
        Self::listen(host, port, options, |common| Models::Many(Many::new(common, models)))
    }

    fn listen(
        host: &str,
        port: u16,
        options: ServerOptions,
        models: impl FnOnce(&Arc<Common>) -> Models,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((host, port))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?.ip();
        let hosts = AllowedHosts::new(host, address, &options);
        let is_private = address.to_canonical().is_loopback() || !options.api_keys.is_empty();
        let common = Arc::new(Common::new(options, is_private).map_err(io::Error::other)?);
        let models = models(&common);
        Ok(Server { listener, hosts, site: Arc::new(Site { common, models }) })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Opens the engine, and serves until `shutdown` is ready; then lets answers end. Until the engine is open, requests
    /// are refused with 503. A server of many models opens each when it is asked for, and not this one.
    ///
    /// # Errors
    /// That of `open`; [`EngineError::Thread`]; [`EngineError::Stopped`] for an engine that failed for good.
    pub fn run<E: From<EngineError> + Send + 'static>(
        self,
        open: impl FnOnce() -> Result<Engine, E> + Send + 'static,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), E> {
        self.block_on(async |site: Arc<Site>| match &site.models {
            Models::One(app) => serve_one(app, open, shutdown).await,
            Models::Many(many) => {
                serve_many(&site.common, many, shutdown).await;
                Ok(())
            }
        })
    }

    /// Serves many models until `shutdown` is ready; then lets answers end.
    ///
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn run_models(self, shutdown: impl Future<Output = ()>) -> Result<(), EngineError> {
        self.run(|| Err(EngineError::ShuttingDown), shutdown)
    }

    /// Serves connections while `models` are there.
    fn block_on<E: From<EngineError>>(
        self,
        models: impl AsyncFnOnce(Arc<Site>) -> Result<(), E>,
    ) -> Result<(), E> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(NUM_THREADS)
            .max_blocking_threads(MAX_BLOCKING_THREADS)
            .enable_all()
            .build()
            .map_err(|error| E::from(EngineError::Thread(error)))?;
        let Server { listener, hosts, site } = self;
        let result = runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)
                .map_err(|error| E::from(EngineError::Thread(error)))?;
            let (close, is_closing) = oneshot::channel();
            let connections = tokio::spawn(accept(listener, hosts, Arc::clone(&site), is_closing));
            let result = models(site).await;
            drop(close);
            let _ = timeout(CLOSE_TIMEOUT, connections).await;
            result
        });
        // An engine that is still loading is not waited for.
        runtime.shutdown_background();
        result
    }
}

/// Serves one model until `shutdown` is ready or its engine has failed for good.
async fn serve_one<E: From<EngineError> + Send + 'static>(
    app: &Arc<App>,
    open: impl FnOnce() -> Result<Engine, E> + Send + 'static,
    shutdown: impl Future<Output = ()>,
) -> Result<(), E> {
    let options = app.common.options.service;
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
    tracing::info!("ready: {} with a context of {context} tokens", app.settings.name);

    let stopped = tokio::select! {
        () = shutdown => None,
        error = has_stopped(&engine) => Some(error),
    };
    match &stopped {
        None => tracing::info!("shutting down: requests that run may end"),
        Some(error) => tracing::error!("{error}"),
    }
    app.common.drain();
    let draining = spawn_blocking(move || service.shutdown());
    end_in_time(&app.common, draining, || engine.stop()).await;
    stopped.map_or(Ok(()), |error| Err(error.into()))
}

/// Serves many models until `shutdown` is ready.
async fn serve_many(common: &Common, many: &Many, shutdown: impl Future<Output = ()>) {
    tracing::info!("ready: models are loaded when they are asked for");
    many.preload();
    let look_after = async {
        loop {
            sleep(CHECK_INTERVAL).await;
            many.tick();
        }
    };
    tokio::select! {
        () = shutdown => {}
        () = look_after => {}
    }
    tracing::info!("shutting down: requests that run may end");
    common.drain();
    let served = many.close();
    let ending = served.clone();
    let draining = spawn_blocking(move || ending.iter().for_each(|served| served.end()));
    let engines = served.iter().filter_map(|served| served.app.engine.get());
    let engines: Vec<EngineHandle> = engines.cloned().collect();
    // At once, and not one after the other.
    engines.iter().for_each(EngineHandle::drain);
    end_in_time(common, draining, || engines.iter().for_each(EngineHandle::stop)).await;
}

/// Waits for requests that run, which are stopped if they take too long.
async fn end_in_time(common: &Common, mut draining: JoinHandle<()>, stop: impl FnOnce()) {
    if timeout(common.options.shutdown_timeout, &mut draining).await.is_err() {
        stop();
        // Within a step.
        let _ = draining.await;
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
    site: Arc<Site>,
    mut is_closing: oneshot::Receiver<()>,
) {
    let tls = site.common.options.tls.as_ref().map(Tls::acceptor);
    let write_timeout = site.common.options.write_timeout;
    let router = routes::router(site, hosts);
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
        let body = format!("{{\"prompt\": {prompt}, \"max_tokens\": 3, \"temperature\": 0}}");
        request.send(&body).unwrap().status().as_u16()
    }

    /// How a server ends whose executor answers token 13 so, after the requests of `talk`.
    fn serve(fault: fn() -> ExecError, talk: impl FnOnce(SocketAddr)) -> Result<(), EngineError> {
        let engine = unlucky_engine(fault).unwrap();
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let model = Arc::new(Model::open(golden).unwrap());
        let server =
            Server::bind("127.0.0.1", 0, model, ModelSettings::default(), ServerOptions::default())
                .unwrap();
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
