//! `halfwarp serve` without `-m`: the models that there are, each loaded when it is asked for.

use super::listing::Listing;
use super::preset::{self, Preset};
use super::{ServeArgs, cannot_listen, scheme, told_to_stop};
use crate::cli::{failure::Failure, interrupt, terminal};
use halfwarp::server::{KeepAlive, ModelsOptions, Server, ServerOptions};
use halfwarp::{EngineOptions, ModelOverrides};
use std::path::PathBuf;

/// Positions of a model's KV cache where nothing says how many, of all its requests together: a
/// model that is alone may take all memory, one of many leaves room for others.
const CACHE_POSITIONS: usize = 16_384;

/// The arguments of a server of many models.
#[derive(clap::Args)]
#[command(next_help_heading = "Models, without -m")]
pub struct ModelsArgs {
    /// Directory with .gguf files and directories that hold a model, which are served beside those
    /// of the caches
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, conflicts_with_all = ["model", "hf"])]
    models_dir: Option<PathBuf>,
    /// TOML file with a section for each model that has settings of its own
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with_all = ["model", "hf"])]
    models_preset: Option<PathBuf>,
    /// Models that are loaded at once; 0 for as many as the memory has room for
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = ["model", "hf"])]
    models_max: usize,
    /// Load no model because a request names it: POST /models/load does that
    #[arg(long, conflicts_with_all = ["model", "hf"])]
    no_models_autoload: bool,
    /// How long a model stays loaded after its last request, such as 30s, 5m or 1h; -1 for as long
    /// as no other one needs its room
    #[arg(long, value_name = "DURATION", default_value = "5m", allow_hyphen_values = true, conflicts_with_all = ["model", "hf"])]
    keep_alive: KeepAlive,
}

/// How a model is set up.
#[derive(Clone)]
pub struct Setup {
    pub overrides: ModelOverrides,
    pub engine: EngineOptions,
    /// With a name that is not its own.
    pub settings: halfwarp::server::ModelSettings,
    pub section: preset::Section,
}

/// Serves the models that there are until SIGTERM or SIGINT.
pub fn run(args: &ServeArgs, options: ServerOptions) -> Result<(), Failure> {
    if let Some(name) = &args.server.served_model_name {
        return Err(Failure::Input(format!(
            "--served-model-name {name} is for one model: give it with -m, or `alias` in --models-preset"
        )));
    }
    let models = &args.models;
    if let Some(dir) = models.models_dir.as_ref().filter(|dir| !dir.is_dir()) {
        return Err(Failure::Input(format!("--models-dir {}: no such directory", dir.display())));
    }
    cpu_ops::host_memory::return_large_buffers();
    args.engine.start_threads()?;
    let preset = match &models.models_preset {
        Some(file) => Preset::read(file)?,
        None => Preset::default(),
    };
    let listing = Listing::new(args, &preset, models.models_dir.clone())?;
    let found = listing.offers();
    for name in listing.unused(&found) {
        terminal::note(format_args!(
            "warning: the preset has settings of {name}, which is not there"
        ));
    }
    if found.is_empty() {
        terminal::note("there is no model yet: halfwarp fetch and halfwarp pull ORG/NAME get one");
    }
    let engine = setup(args, preset::Section::default())?.engine;
    let memory = engine.device.free_memory()?;
    let models = ModelsOptions {
        list: Box::new(move || listing.offers()),
        default: Some(model_cache::DEFAULT.name.to_owned()),
        max_models: (models.models_max > 0).then_some(models.models_max),
        room_bytes: memory.map(|memory| memory.room_bytes(engine.gpu_memory_utilization)),
        keep_alive: models.keep_alive,
        loads_by_name: !models.no_models_autoload,
    };
    let (host, port) = (&args.server.host, args.server.port);
    let scheme = scheme(&options);
    let server = Server::bind_models(host, port, models, options)
        .map_err(|error| cannot_listen(host, port, &error))?;
    let address = server.local_addr().map_err(|error| cannot_listen(host, port, &error))?;
    terminal::note(format_args!("listening on {scheme}://{address}"));
    Ok(interrupt::polled(|| server.run_models(told_to_stop()))?)
}

/// How a model is set up by these arguments.
pub fn setup(args: &ServeArgs, section: preset::Section) -> Result<Setup, Failure> {
    let mut engine = args.engine.serving_options(args.server.sizes());
    if (engine.context, engine.cache_positions) == (None, None) {
        engine.cache_positions = Some(CACHE_POSITIONS);
    }
    let (overrides, settings) = (args.overrides()?, args.settings(String::new()));
    Ok(Setup { overrides, engine, settings, section })
}
