//! A file in memory.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::WeightsError;
use crate::files;

/// A regular file, mapped read-only.
#[derive(Debug)]
pub(super) struct MappedFile {
    pub path: PathBuf,
    map: Mmap,
}

impl MappedFile {
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let io = |source| WeightsError::Io { path: path.to_owned(), source };
        // Before the file is opened: opening a pipe would wait for its writer.
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(WeightsError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is private and read-only, and everything that reads it takes any bytes.
        // What is left is a file that another process rewrites or cuts while it is mapped;
        // `Checkpoint::open` forbids that to its caller.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        if files::is_lfs_pointer(&map) {
            return Err(WeightsError::LfsPointer { path: path.to_owned() });
        }
        Ok(MappedFile { path: path.to_owned(), map })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}
