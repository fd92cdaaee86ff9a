//! What is asked of a hub.

use std::io::Read;

use crate::{FileName, HubError, RepoId};

/// A hub: what of its API a pull needs.
pub trait Hub {
    /// The files of `repo` at `revision`: a branch, a tag or a commit.
    ///
    /// # Errors
    /// [`HubError::NotFound`], [`HubError::NoRevision`], [`HubError::Access`], and those of a network.
    fn repo(&self, repo: &RepoId, revision: &str) -> Result<RepoInfo, HubError>;

    /// Size and checksum of a file.
    ///
    /// # Errors
    /// As [`Hub::repo`].
    fn file(&self, repo: &RepoId, commit: &str, file: &FileName) -> Result<FileInfo, HubError>;

    /// The content of a file, from its byte `offset` on if the hub can do that.
    ///
    /// # Errors
    /// As [`Hub::repo`].
    fn open(
        &self,
        repo: &RepoId,
        commit: &str,
        file: &FileName,
        offset: u64,
    ) -> Result<Body, HubError>;
}

/// A revision of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoInfo {
    /// The commit, 40 hexadecimal digits.
    pub commit: String,
    /// Files of the repository that could be part of a model.
    pub files: Vec<FileName>,
}

/// What a hub says of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// The name of its content in the cache: letters, digits, `-`, `_` and `.`.
    pub etag: String,
    /// Length of the file, if the hub says it.
    pub bytes: Option<u64>,
}

/// What an etag says of the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// A SHA-256, as of every file in Git LFS.
    Sha256,
    /// The SHA-1 of a Git blob, as of every other file.
    GitBlob,
    /// Nothing.
    None,
}

impl FileInfo {
    /// What the etag says of the content.
    pub fn checksum(&self) -> Checksum {
        let is_hex = self.etag.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match self.etag.len() {
            64 if is_hex => Checksum::Sha256,
            40 if is_hex => Checksum::GitBlob,
            _ => Checksum::None,
        }
    }
}

/// The content of a file.
pub struct Body {
    /// The first byte that comes: 0 where the hub cannot begin elsewhere.
    pub offset: u64,
    /// What comes.
    pub reader: Box<dyn Read>,
}
