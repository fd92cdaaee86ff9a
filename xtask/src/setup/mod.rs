//! `cargo xtask setup`: what the build and the tests need and the machine lacks, fetched to the cache.

mod library_source;
mod model;
pub mod wheel;

use crate::process;
use anyhow::{Context, Result};
use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

/// Fetches the library source and the default model, unless they are there.
pub fn run() -> Result<()> {
    let cache = Cache::open()?;
    library_source::provide(&cache).context("library source")?;
    model::provide(&cache, model_cache::DEFAULT).context("model")
}

/// The cache, held by this process alone.
///
/// What is fetched is made in [`Cache::work_dir`] and moved to its place when it is complete, so that an interrupted
/// download or a full disk leaves nothing that looks whole.
pub struct Cache {
    dir: PathBuf,
    _lock: File,
}

impl Cache {
    /// Waits until no other process fills the cache.
    ///
    /// # Errors
    /// If the cache's directory cannot be made.
    pub fn open() -> Result<Cache> {
        let dir = process::cache_dir()?;
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let path = dir.join("setup.lock");
        let lock =
            File::create(&path).with_context(|| format!("cannot make {}", path.display()))?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            eprintln!("waiting for another set-up in {}", dir.display());
            lock.lock()?;
        }
        Ok(Cache { dir, _lock: lock })
    }

    /// The cache's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// An empty directory in the cache that is removed when the value is dropped.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn work_dir(&self) -> Result<WorkDir> {
        let work = WorkDir(self.dir.join("partial"));
        work.clear()?;
        fs::create_dir(&work.0).with_context(|| format!("cannot make {}", work.0.display()))?;
        Ok(work)
    }
}

/// A directory for what is not complete yet; on the cache's own file system.
pub struct WorkDir(PathBuf);

impl WorkDir {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Moves `from`, a file or a directory now complete, to `to`.
    ///
    /// # Errors
    /// If `to`'s directory cannot be made or the move fails.
    pub fn keep(&self, from: &Path, to: &Path) -> Result<()> {
        process::check_interrupt()?;
        fs::create_dir_all(to.parent().context("the cache's root is no target")?)?;
        fs::rename(from, to).with_context(|| format!("cannot move to {}", to.display()))
    }

    /// Removes the directory; a process that was killed leaves one.
    fn clear(&self) -> Result<()> {
        if self.0.exists() {
            fs::remove_dir_all(&self.0)
                .with_context(|| format!("cannot remove {}", self.0.display()))?;
        }
        Ok(())
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("warning: {error:#}");
        }
    }
}
