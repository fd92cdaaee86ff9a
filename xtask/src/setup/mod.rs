//! `cargo xtask setup`: what the build and the tests need and the machine lacks, fetched to the cache.

mod library_source;

use crate::process;
use anyhow::{Context, Result};
use model_cache::{Cache, FetchedModel, Progress};

/// Fetches the library source and the default model, unless they are there.
pub fn run() -> Result<()> {
    let cache = open_cache()?;
    library_source::provide(&cache).context("library source")?;
    fetch(model_cache::DEFAULT, &cache).context("model")
}

/// The cache, locked.
///
/// # Errors
/// If there is no place for it, or it cannot be made.
pub fn open_cache() -> Result<Cache> {
    let dir = process::cache_dir()?;
    Ok(Cache::open(&dir, || eprintln!("waiting for another set-up in {}", dir.display()))?)
}

fn fetch(model: &FetchedModel, cache: &Cache) -> Result<()> {
    let path = model.fetch(cache, |step| {
        if step == Progress::Downloading {
            let megabytes = model.bytes / 1_000_000;
            eprintln!("model: fetching {} ({megabytes} MB, {})", model.name, model.license);
        }
    })?;
    eprintln!("model: {}", path.display());
    Ok(())
}
