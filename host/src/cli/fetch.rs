//! `halfwarp fetch`.

use super::{failure::Failure, terminal};
use model_cache::{Cache, DEFAULT, FetchedModel, MODELS, Progress};

/// Arguments of `halfwarp fetch`.
#[derive(clap::Args)]
pub struct FetchArgs {
    /// The model [default: smollm2-135m-instruct]
    name: Option<String>,
}

/// Fetches a model into the cache, unless it is there, and prints the path of its file.
pub fn run(args: &FetchArgs) -> Result<(), Failure> {
    let model = match &args.name {
        None => DEFAULT,
        Some(name) => FetchedModel::named(name).ok_or_else(|| {
            let known: Vec<_> = MODELS.iter().map(|model| model.name).collect();
            Failure::Input(format!("{name}: not a model to fetch\nthose are: {}", known.join(", ")))
        })?,
    };
    let dir = model_cache::cache_dir().map_err(|error| Failure::Input(error.to_string()))?;
    let waiting = || terminal::note("waiting for another process that fetches into the cache");
    let cache = Cache::open(&dir, waiting)?;
    let path = model.fetch(&cache, |progress| match progress {
        Progress::Present => terminal::note(format_args!("{} is in the cache already", model.name)),
        Progress::Downloading => terminal::note(format_args!(
            "fetching {} ({} MB, {})",
            model.name,
            model.bytes / 1_000_000,
            model.license
        )),
        _ => {}
    })?;
    terminal::print(&format!("{}\n", path.display()))
}
