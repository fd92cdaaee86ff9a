//! `halfwarp serve`.

mod listing;
mod models;
mod preset;

use super::model::{EngineArgs, Serving};
use super::{
    choices,
    failure::Failure,
    interrupt,
    prompt::{TemplateArgs, read_text},
    sampling::ValuesArgs,
    terminal,
};
use clap::builder::NonEmptyStringValueParser;
use clap::builder::TypedValueParser;
use halfwarp::server::{
    ModelSettings, SchedulingPolicy, Server, ServerOptions, Tls, TlsError, is_host, is_origin,
    is_path_prefix,
};
use halfwarp::{EngineOptions, Message, ModelOverrides, Sampling, ServiceOptions};
use std::{io, num::NonZeroUsize, path::PathBuf, sync::Arc, time::Duration};
use tracing_subscriber::filter::LevelFilter;

const EXAMPLES: &str = "\
Examples:
  halfwarp serve                  all models in the caches, each loaded when it is asked for
  halfwarp serve -m model.gguf --host 0.0.0.0 --port 8000 --api-key SECRET
  curl http://127.0.0.1:8080/v1/chat/completions -H \"Content-Type: application/json\" \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'

docs/serving.md explains paths, metrics and limits.";

/// Arguments of `halfwarp serve`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    values: ValuesArgs,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    models: models::ModelsArgs,
}

/// The arguments of the server itself.
#[derive(clap::Args)]
#[command(next_help_heading = "Server")]
struct ServerArgs {
    /// Address to listen at; 0.0.0.0 for all
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port to listen at; 0 for any that is free
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Key that a client has to give (Authorization: Bearer KEY); repeat it for more [default:
    /// anyone is served]
    #[arg(long, value_name = "KEY", env = "HALFWARP_API_KEY", hide_env_values = true, value_parser = NonEmptyStringValueParser::new())]
    api_key: Vec<String>,
    /// File with such keys, one a line; lines that start with # are left out
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    api_key_file: Option<PathBuf>,
    /// Path before all paths of the server, such as /llm, for a proxy that serves others beside it
    #[arg(long, value_name = "PREFIX", value_parser = parse_prefix)]
    api_prefix: Option<String>,
    /// Origin whose web pages may use the server, such as https://chat.example, or * for all; repeat
    /// it for more [default: no other origin may]
    #[arg(long, value_name = "ORIGIN", value_parser = parse_origin)]
    cors_origin: Vec<String>,
    /// Name or address by which clients may call the server, such as that of a proxy before it; repeat
    /// it for more [default: on a loopback address without a key localhost, loopback addresses and
    /// --host; else any]
    #[arg(long, value_name = "NAME", value_parser = parse_host)]
    allowed_host: Vec<String>,
    /// PEM file with the server's certificate and those that vouch for it: HTTPS instead of HTTP
    #[arg(long, value_name = "PEM", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of --tls-cert
    #[arg(long, value_name = "PEM", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// What clients call the model [default: the name of its directory or file]
    #[arg(long, visible_alias = "alias", value_name = "NAME")]
    served_model_name: Option<String>,
    /// Requests that run at once [default: 64 on a GPU, else 8]
    #[arg(long, visible_alias = "parallel", value_name = "N")]
    max_num_seqs: Option<NonZeroUsize>,
    /// Tokens of a step, of all requests together; at least one of each that runs
    /// [default: 4096 on a GPU, less where its memory is short or on a CPU]
    #[arg(long, value_name = "N")]
    max_num_batched_tokens: Option<NonZeroUsize>,
    /// Tokens of one prompt in a step while others generate, which wait for it; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = EngineOptions::LONG_PREFILL_TOKEN_THRESHOLD)]
    long_prefill_token_threshold: usize,
    /// Tokens that the KV cache holds, of all requests together [default: room for --max-num-seqs
    /// contexts; without -c as much of that as the memory has]
    #[arg(long, value_name = "N")]
    kv_cache_tokens: Option<NonZeroUsize>,
    /// In which order requests are served
    #[arg(long, value_parser = policy(), value_name = "POLICY", default_value = "fcfs")]
    scheduling_policy: SchedulingPolicy,
    /// Requests that wait for those that run; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_queue: usize,
    /// Answers to a request at most: its n times its prompts
    #[arg(long, value_name = "N", default_value_t = 128)]
    max_choices: usize,
    /// Bytes of a request's body at most
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    max_body_bytes: usize,
    /// Seconds in which a client has to send a body, or take a part of a stream
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
    /// Seconds that running requests may go on after SIGTERM or Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    shutdown_timeout: u64,
    /// What is logged on stderr: off, error, warn or info. Texts never are
    #[arg(long, value_name = "LEVEL", default_value_t = LevelFilter::INFO)]
    log_level: LevelFilter,
}

/// In which order requests are served.
fn policy() -> impl TypedValueParser<Value = SchedulingPolicy> {
    let priority = "By the priority that they ask for, the lowest first";
    choices::one_of([
        ("fcfs", "As they come", SchedulingPolicy::Fcfs),
        ("priority", priority, SchedulingPolicy::Priority),
    ])
}

/// Serves until SIGTERM or SIGINT.
pub fn run(args: &ServeArgs) -> Result<(), Failure> {
    let ServerArgs { host, port, log_level, .. } = &args.server;
    tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_target(false)
        .with_max_level(*log_level)
        .init();
    let tls = args.server.tls()?;
    let api_keys = args.server.api_keys()?;
    let options = ServerOptions { tls, api_keys, ..args.server.options() };
    if !args.engine.names_model() {
        return models::run(args, options);
    }
    let scheme = scheme(&options);
    let model = args.engine.open_model_with(&args.overrides()?)?;
    if args.template.is_given() {
        // One that is malformed is told now, and not with each request.
        args.template.render(&model, &[Message::new("user", "Hello")])?;
    }
    let name = args.server.served_model_name.clone();
    let settings = args.settings(name.map_or_else(|| args.engine.model_name(), Ok)?);
    let server = Server::bind(host, *port, Arc::clone(&model), settings, options)
        .map_err(|error| cannot_listen(host, *port, &error))?;
    let address = server.local_addr().map_err(|error| cannot_listen(host, *port, &error))?;
    terminal::note(format_args!("listening on {scheme}://{address}"));
    let (engine, sizes) = (args.engine.clone(), args.server.sizes());
    let open = move || engine.serving_engine(&model, sizes);
    interrupt::polled(|| server.run(open, told_to_stop()))
}

fn scheme(options: &ServerOptions) -> &'static str {
    if options.tls.is_some() { "https" } else { "http" }
}

impl ServeArgs {
    /// What takes the place of what comes with a model.
    fn overrides(&self) -> Result<ModelOverrides, Failure> {
        let generation = self.values.values();
        let default = generation.sampling(Sampling::default());
        default.check(usize::MAX).map_err(|error| Failure::Input(error.to_string()))?;
        Ok(ModelOverrides { generation, ..self.template.overrides()? })
    }

    /// How a model answers that clients call `name`.
    fn settings(&self, name: String) -> ModelSettings {
        ModelSettings {
            name,
            chat_template_kwargs: self.template.variables(),
            parse_special_in_content: self.template.parse_special_in_content(),
            reasoning: self.template.reasoning(),
        }
    }
}

impl ServerArgs {
    /// What encrypts connections, if anything does.
    fn tls(&self) -> Result<Option<Tls>, Failure> {
        let (Some(cert), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        Tls::from_pem_files(cert, key).map(Some).map_err(|error| {
            let hint = match error {
                TlsError::Mismatch { .. } => "\ngive the two files that were made together",
                _ => "",
            };
            Failure::Input(format!("{error}{hint}"))
        })
    }

    /// The keys that are given, and those of the file.
    fn api_keys(&self) -> Result<Vec<String>, Failure> {
        let mut keys = self.api_key.clone();
        if let Some(file) = &self.api_key_file {
            let text = read_text(file)?;
            let is_key = |line: &&str| !line.is_empty() && !line.starts_with('#');
            let before = keys.len();
            keys.extend(text.lines().map(str::trim).filter(is_key).map(str::to_owned));
            if keys.len() == before {
                // Without keys anyone would be served.
                return Err(Failure::Input(format!("{}: there is no key in it", file.display())));
            }
        }
        Ok(keys)
    }

    fn sizes(&self) -> Serving {
        Serving {
            max_seqs: self.max_num_seqs.map(NonZeroUsize::get),
            max_tokens: self.max_num_batched_tokens.map(NonZeroUsize::get),
            long_prefill_token_threshold: NonZeroUsize::new(self.long_prefill_token_threshold),
            cache_positions: self.kv_cache_tokens.map(NonZeroUsize::get),
        }
    }

    fn options(&self) -> ServerOptions {
        let timeout = Duration::from_secs(self.timeout);
        ServerOptions {
            api_keys: Vec::new(),
            path_prefix: self.api_prefix.clone().unwrap_or_default(),
            cors_origins: self.cors_origin.clone(),
            allowed_hosts: self.allowed_host.clone(),
            tls: None,
            max_body_bytes: self.max_body_bytes,
            max_choices: self.max_choices,
            service: ServiceOptions { max_waiting: self.max_queue },
            scheduling_policy: self.scheduling_policy,
            read_timeout: timeout,
            write_timeout: timeout,
            shutdown_timeout: Duration::from_secs(self.shutdown_timeout),
        }
    }
}

fn parse_origin(origin: &str) -> Result<String, String> {
    match is_origin(origin) {
        true => Ok(origin.to_owned()),
        false => Err("an origin is SCHEME://HOST or SCHEME://HOST:PORT, or * for all".to_owned()),
    }
}

fn parse_prefix(prefix: &str) -> Result<String, String> {
    match prefix.trim_end_matches('/') {
        path if path.is_empty() || is_path_prefix(path) => Ok(path.to_owned()),
        _ => Err("a prefix is a path, such as /llm".to_owned()),
    }
}

fn parse_host(host: &str) -> Result<String, String> {
    match is_host(host) {
        true => Ok(host.to_owned()),
        false => Err("a host is a name or an address, without scheme and port".to_owned()),
    }
}

fn cannot_listen(host: &str, port: u16, error: &io::Error) -> Failure {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => "\nchoose another with --port",
        io::ErrorKind::AddrNotAvailable => "\nchoose an address of this machine with --host",
        _ => "",
    };
    Failure::Environment(format!("cannot listen at {host}:{port}: {error}{hint}"))
}

/// Ready when SIGTERM or SIGINT comes. A second SIGINT ends the process, see [`interrupt`].
async fn told_to_stop() {
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = terminated => {}
        () = interrupted => {}
    }
}
