//! What can go wrong with models of the hub.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::RepoId;

/// What can go wrong with models of the hub.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Not the name of a model on the hub.
    #[error(
        "`{given}` is not the name of a model on the hub: {why}\nit has the form ORG/NAME, ORG/NAME:QUANT or ORG/NAME:FILE.gguf"
    )]
    Name {
        /// As it was given.
        given: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Not the name of a revision.
    #[error("`{0}` is not a revision: a branch, a tag or a commit")]
    Revision(String),
    /// `HF_ENDPOINT` is no address.
    #[error("HF_ENDPOINT: `{0}` is not an address that begins with https:// or http://")]
    Endpoint(String),
    /// The token has characters that no token has.
    #[error("the token in {0} has characters that no token has: set HF_TOKEN to one of yours")]
    Token(String),
    /// Nothing in the environment says where the cache could be.
    #[error("no place for the hub's cache: set HF_HOME or HF_HUB_CACHE to a directory")]
    NoCacheDir,
    /// `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE` is set.
    #[error("{0} cannot be pulled: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set")]
    Offline(RepoId),
    /// There is no such model, or it is private and no token was given.
    #[error("there is no model {repo} at {endpoint}")]
    NotFound {
        /// The model.
        repo: RepoId,
        /// The hub.
        endpoint: String,
    },
    /// The model has no such revision.
    #[error("{repo} has no revision `{revision}`")]
    NoRevision {
        /// The model.
        repo: RepoId,
        /// The revision.
        revision: String,
    },
    /// The hub refuses to give the model: it is gated or private.
    #[error("{repo} is gated or private, or there is no such model (HTTP {status})\n{}", access(repo, endpoint, *has_token))]
    Access {
        /// The model.
        repo: RepoId,
        /// The hub.
        endpoint: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The hub answers with a status that means no success.
    #[error("{url}: the hub answers with HTTP {status}{}", if *status == 429 { ", too many requests: try again later" } else { "" })]
    Status {
        /// What was requested.
        url: String,
        /// The status.
        status: u16,
    },
    /// The hub cannot be reached, or the connection broke.
    #[error("{url}: {source}")]
    Network {
        /// What was requested.
        url: String,
        /// What the connection reports.
        source: Box<ureq::Error>,
    },
    /// The hub's answer is not what its API promises.
    #[error("{url}: {what}\nis HF_ENDPOINT the address of a hub?")]
    Answer {
        /// What was requested.
        url: String,
        /// What is wrong with the answer.
        what: String,
    },
    /// A file name that could lead out of the cache, or has characters that no file of a model needs.
    #[error("{repo} names a file {name:?}, which {why}: nothing is fetched")]
    FileName {
        /// The model.
        repo: RepoId,
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The model has no GGUF file that is meant.
    #[error("{repo} has no GGUF file {wanted}\n{}", has(files))]
    NoMatch {
        /// The model.
        repo: RepoId,
        /// A quantisation, or the name of a file.
        wanted: String,
        /// The model's GGUF files.
        files: Vec<String>,
    },
    /// The model has several GGUF files that could be meant.
    #[error("{repo}: {} GGUF files could be meant, choose one as {repo}:{}\n{}", files.len(), example(files), has(files))]
    Ambiguous {
        /// The model.
        repo: RepoId,
        /// Files that could be meant.
        files: Vec<String>,
    },
    /// A part of a GGUF file is missing.
    #[error("{repo}: {file} is one of {count} parts, and {missing} is not there")]
    Part {
        /// The model.
        repo: RepoId,
        /// A part that is there.
        file: String,
        /// How many parts there should be.
        count: usize,
        /// One that is not.
        missing: String,
    },
    /// The repository holds nothing that could be opened.
    #[error(
        "{repo} has no model that halfwarp opens: no .gguf file, and no model.safetensors with config.json\n{}",
        has(files)
    )]
    NoModel {
        /// The model.
        repo: RepoId,
        /// What it has instead.
        files: Vec<String>,
    },
    /// The index of the weights cannot be read, or names what the model does not have.
    #[error("{repo}: model.safetensors.index.json {what}")]
    Index {
        /// The model.
        repo: RepoId,
        /// What is wrong with it.
        what: String,
    },
    /// What was fetched is not the file that the hub announced.
    #[error(
        "{file}: {what}\nnothing of it is kept; pull it again, and ask the hub's owner if it stays so"
    )]
    Wrong {
        /// The file.
        file: String,
        /// What differs.
        what: String,
    },
    /// The connection broke again and again.
    #[error(
        "{file}: the connection broke after {received} bytes: {why}\nthe same command takes it up from there"
    )]
    Cut {
        /// The file.
        file: String,
        /// How many bytes there are.
        received: u64,
        /// What broke it at last.
        why: String,
    },
    /// A file or directory of the cache cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The model is being pulled.
    #[error("{0} is being pulled by another process")]
    Busy(RepoId),
}

impl HubError {
    /// Whether what the user gave is wrong: a name, a choice, a token; not the network or the disk.
    pub fn is_mistake(&self) -> bool {
        !matches!(
            self,
            HubError::Status { .. }
                | HubError::Network { .. }
                | HubError::Answer { .. }
                | HubError::FileName { .. }
                | HubError::Index { .. }
                | HubError::Wrong { .. }
                | HubError::Cut { .. }
                | HubError::Io { .. }
                | HubError::Busy(_)
        )
    }

    /// Whether the same request may succeed a little later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            HubError::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            HubError::Network { source, .. } => match &**source {
                // A certificate that is refused, or another protocol, will be so the next time.
                ureq::Error::Io(error) => error.kind() != io::ErrorKind::InvalidData,
                other => matches!(
                    other,
                    ureq::Error::Timeout(_)
                        | ureq::Error::Protocol(_)
                        | ureq::Error::ConnectionFailed
                ),
            },
            _ => false,
        }
    }

    /// The error of the file system at `path`, for `map_err`.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> HubError {
        let path = path.to_owned();
        move |source| HubError::Io { path, source }
    }
}

fn access(repo: &RepoId, endpoint: &str, has_token: bool) -> String {
    let token = if has_token {
        "HF_TOKEN gives no access to it: set HF_TOKEN to a token that does"
    } else {
        "set HF_TOKEN to a token that may read it"
    };
    format!("{token}; the terms of a gated one are accepted at {endpoint}/{repo}")
}

/// The files that there are, as many as fit in a few lines of a terminal.
fn has(files: &[String]) -> String {
    const MAX_FILES: usize = 40;
    if files.is_empty() {
        return "it has none".to_owned();
    }
    let shown: Vec<_> = files.iter().take(MAX_FILES).map(String::as_str).collect();
    let more = files.len().saturating_sub(MAX_FILES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("it has: {}{more}", shown.join(", "))
}

fn example(files: &[String]) -> &str {
    files.first().map_or("FILE.gguf", String::as_str)
}
