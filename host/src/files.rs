//! Reading files of a model other than its weights.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// The largest file that is read, in bytes: the largest tokenizers have some tens of millions.
const MAX_LEN: u64 = 1 << 28;

/// What a Git LFS pointer, checked out in place of a large file, begins with.
/// Source: <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>.
const LFS_POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// Said of a Git LFS pointer.
pub const LFS_ADVICE: &str =
    "this is a Git LFS pointer, not the file itself: run `git lfs pull` there";

/// Whether a file of these bytes is a Git LFS pointer.
pub fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(LFS_POINTER)
}

/// Whether there is anything at `path`, be it a symbolic link to nothing.
///
/// # Errors
/// Where the system does not tell, for instance for lack of permission.
pub fn exists(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The bytes of the regular file `path`. Pipes and devices are refused: reading one may never end.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_LEN + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LEN {
        let reason = format!("over {} MiB, more than such a file can have", MAX_LEN >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    if is_lfs_pointer(&bytes) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, LFS_ADVICE));
    }
    Ok(bytes)
}
