//! Removing a repository from the cache.

use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

use crate::{HubCache, HubError, RepoId, cache::Folder};

/// The folder of a repository in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedRepo {
    /// The repository.
    pub repo: RepoId,
    /// Folder of the repository.
    pub path: PathBuf,
    /// What it takes on the disk, with what is not whole.
    pub bytes: u64,
}

impl HubCache {
    /// The folder of `name`; `None` if there is none.
    ///
    /// # Errors
    /// [`HubError::Io`] if the cache cannot be read.
    pub fn repo(&self, name: &str) -> Result<Option<CachedRepo>, HubError> {
        let found = self.repos()?.into_iter().find(|repo| repo.as_str() == name);
        Ok(found.map(|repo| {
            let path = self.folder(&repo).dir().to_owned();
            CachedRepo { bytes: bytes_under(&path), path, repo }
        }))
    }

    /// Removes the folder of a repository.
    ///
    /// # Errors
    /// [`HubError::Busy`] while a file of it is fetched, [`HubError::Io`].
    pub fn remove(&self, repo: &CachedRepo) -> Result<(), HubError> {
        let folder = self.folder(&repo.repo);
        let _locks = locks(&folder, &repo.repo)?;
        fs::remove_dir_all(folder.dir()).map_err(HubError::at(folder.dir()))
    }
}

/// All locks of a repository's files. The files of the locks stay: who waits for one has it open.
fn locks(folder: &Folder, repo: &RepoId) -> Result<Vec<File>, HubError> {
    let mut locks = Vec::new();
    for entry in fs::read_dir(folder.locks()).into_iter().flatten().flatten() {
        let path = entry.path();
        let lock = File::open(&path).map_err(HubError::at(&path))?;
        match lock.try_lock() {
            Ok(()) => locks.push(lock),
            Err(TryLockError::WouldBlock) => return Err(HubError::Busy(repo.clone())),
            Err(TryLockError::Error(source)) => return Err(HubError::at(&path)(source)),
        }
    }
    Ok(locks)
}

/// The length of the files under `dir`, links not followed.
fn bytes_under(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_under(&entry.path()),
            Ok(metadata) if metadata.is_file() => metadata.len(),
            _ => 0,
        })
        .sum()
}
