//! The cache while it is filled: locked, and with a place for what is not complete.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use crate::FetchError;

/// The cache, which no other process can fill while this lives.
///
/// What is fetched is made in [`Cache::work_dir`] and moved into place when it is complete: an interrupted download or
/// a full disk leaves nothing that looks whole.
#[derive(Debug)]
pub struct Cache {
    dir: PathBuf,
    _lock: File,
}

impl Cache {
    /// Makes `dir` where it is missing, and locks it; calls `waiting` first if another process holds the lock.
    ///
    /// # Errors
    /// [`FetchError::Io`] if the directory or its lock file cannot be made.
    pub fn open(dir: &Path, waiting: impl FnOnce()) -> Result<Cache, FetchError> {
        fs::create_dir_all(dir).map_err(FetchError::at(dir))?;
        let path = dir.join("setup.lock");
        let lock = File::create(&path).map_err(FetchError::at(&path))?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            waiting();
            lock.lock().map_err(FetchError::at(&path))?;
        }
        Ok(Cache { dir: dir.to_owned(), _lock: lock })
    }

    /// The cache's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// An empty directory in the cache that is removed when the value is dropped.
    ///
    /// # Errors
    /// [`FetchError::Io`] if it cannot be made.
    pub fn work_dir(&self) -> Result<WorkDir, FetchError> {
        let work = WorkDir(self.dir.join("partial"));
        work.clear()?;
        fs::create_dir(&work.0).map_err(FetchError::at(&work.0))?;
        Ok(work)
    }
}

/// A directory for what is not complete yet, on the cache's own file system.
#[derive(Debug)]
pub struct WorkDir(PathBuf);

impl WorkDir {
    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Moves `from`, a file or a directory now complete, to `to`.
    ///
    /// # Errors
    /// [`FetchError::Io`] if `to`'s directory cannot be made or the move fails.
    pub fn keep(&self, from: &Path, to: &Path) -> Result<(), FetchError> {
        if let Some(dir) = to.parent() {
            fs::create_dir_all(dir).map_err(FetchError::at(dir))?;
        }
        fs::rename(from, to).map_err(FetchError::at(to))
    }

    /// Removes the directory; a process that was killed leaves one.
    fn clear(&self) -> Result<(), FetchError> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FetchError::at(&self.0)(error))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next `work_dir`.
        let _ = self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path(), || panic!("nobody else has it")).unwrap();
        let killed = dir.path().join("partial/of-a-process-that-was-killed");
        fs::create_dir_all(&killed).unwrap();
        let work = cache.work_dir().unwrap();
        assert!(!killed.exists());
        for name in ["kept", "left"] {
            fs::write(work.path().join(name), name).unwrap();
        }
        let place = dir.path().join("models/a/kept");
        work.keep(&work.path().join("kept"), &place).unwrap();
        drop(work);
        assert_eq!(fs::read_to_string(place).unwrap(), "kept");
        assert!(!dir.path().join("partial").exists());
    }

    #[test]
    fn a_second_one_waits() {
        let dir = tempfile::tempdir().unwrap();
        let first = Cache::open(dir.path(), || panic!("nobody else has it")).unwrap();
        // `waiting` lets go of the first: without the lock it would not be called.
        let mut first = Some(first);
        Cache::open(dir.path(), || drop(first.take())).unwrap();
        assert!(first.is_none());
    }
}
