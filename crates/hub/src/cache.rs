//! The cache as `huggingface_hub` has it: contents by their etag, and links to them by their name.
//!
//! ```text
//! .locks/models--ORG--NAME/<etag>.lock
//! models--ORG--NAME/blobs/<etag>               a content
//! models--ORG--NAME/blobs/<etag>.incomplete    what has come of one
//! models--ORG--NAME/snapshots/<commit>/<file>  a link to ../../blobs/<etag>
//! models--ORG--NAME/refs/main                  the commit of a branch or tag
//! ```

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{FileName, HubError, RepoId};

/// The cache of a user.
#[derive(Clone, Debug)]
pub struct HubCache {
    dir: PathBuf,
}

impl HubCache {
    /// The cache in `dir`, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> HubCache {
        HubCache { dir: dir.into() }
    }

    /// The cache's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn folder(&self, repo: &RepoId) -> Folder {
        let name = repo.folder();
        Folder { dir: self.dir.join(&name), locks: self.dir.join(".locks").join(name) }
    }
}

/// The folder of a repository.
pub(crate) struct Folder {
    dir: PathBuf,
    locks: PathBuf,
}

impl Folder {
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn locks(&self) -> &Path {
        &self.locks
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.dir.join("blobs").join(etag)
    }

    pub(crate) fn incomplete(&self, etag: &str) -> PathBuf {
        self.dir.join("blobs").join(format!("{etag}.incomplete"))
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.dir.join("snapshots")
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    /// The commit of a branch or tag, when it was pulled last.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        let commit = fs::read_to_string(self.dir.join("refs").join(revision)).ok()?;
        let commit = commit.trim();
        let is_commit = !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_commit.then(|| commit.to_owned())
    }

    /// The lock of a content, which Python's tools take too; calls `waiting` first if another
    /// process has it.
    pub(crate) fn lock(&self, etag: &str, waiting: impl FnOnce()) -> Result<File, HubError> {
        make_dir(&self.locks)?;
        let path = self.locks.join(format!("{etag}.lock"));
        let lock = File::create(&path).map_err(HubError::at(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                lock.lock().map_err(HubError::at(&path))?;
            }
            Err(TryLockError::Error(source)) => return Err(HubError::at(&path)(source)),
        }
        Ok(lock)
    }

    /// Gives the content `etag` the name `file` in the snapshot of `commit`.
    pub(crate) fn link(
        &self,
        commit: &str,
        file: &FileName,
        etag: &str,
    ) -> Result<PathBuf, HubError> {
        let depth = 2 + file.as_str().matches('/').count();
        let target = Path::new(&"../".repeat(depth)).join("blobs").join(etag);
        let link = self.snapshot(commit).join(file.as_str());
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(link);
        }
        make_dir(link.parent().unwrap_or(&self.dir))?;
        let made = self.unfinished();
        remove_file(&made)?;
        symlink(&target, &self.blob(etag), &made).map_err(HubError::at(&made))?;
        fs::rename(&made, &link).map_err(HubError::at(&link))?;
        Ok(link)
    }

    /// A name for what is renamed when it is made, of this process and thread alone.
    fn unfinished(&self) -> PathBuf {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.dir.join(format!(".{}.{number}.unfinished", process::id()))
    }

    /// Notes that `revision` is `commit`.
    pub(crate) fn note_revision(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.dir.join("refs").join(revision);
        make_dir(path.parent().unwrap_or(&self.dir))?;
        let made = self.unfinished();
        fs::write(&made, commit).map_err(HubError::at(&made))?;
        fs::rename(&made, &path).map_err(HubError::at(&path))
    }
}

#[cfg(unix)]
fn symlink(target: &Path, _blob: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// A copy, as Python's tools make one where links need a privilege.
#[cfg(not(unix))]
fn symlink(_target: &Path, blob: &Path, link: &Path) -> io::Result<()> {
    fs::copy(blob, link).map(|_| ())
}

pub(crate) fn make_dir(dir: &Path) -> Result<(), HubError> {
    fs::create_dir_all(dir).map_err(HubError::at(dir))
}

/// Removes a file if there is one.
pub(crate) fn remove_file(path: &Path) -> Result<(), HubError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(HubError::at(path)(error)),
        _ => Ok(()),
    }
}
