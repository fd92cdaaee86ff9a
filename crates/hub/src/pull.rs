//! A model from the hub into the cache.

use std::{collections::BTreeSet, fs, path::PathBuf, thread, time::Duration};

use serde::Deserialize;

use crate::{
    Checksum, FileInfo, FileName, Hub, HubCache, HubError, ModelRef, RepoInfo,
    blob::{self, Source},
    cache::Folder,
    choose::{Choice, INDEX, choose},
};

/// How often a request is tried that brings nothing.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// How often, at least once.
    pub attempts: u32,
    /// How long to wait before the second one; it doubles.
    pub pause: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Retry { attempts: 5, pause: Duration::from_secs(1) }
    }
}

/// What a pull does.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Another process fetches the same file.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// The file is in the cache already.
    Present {
        /// The file.
        file: &'a str,
        /// Length of the file.
        bytes: u64,
    },
    /// A file is fetched.
    Started {
        /// The file.
        file: &'a str,
        /// Length of the file, if the hub says it.
        bytes: Option<u64>,
        /// How much an earlier fetch has left.
        received: u64,
    },
    /// More of it has come.
    Received {
        /// The file.
        file: &'a str,
        /// How much there is.
        received: u64,
    },
    /// The connection broke, and is tried again.
    Again {
        /// The file.
        file: &'a str,
        /// What broke it.
        why: &'a str,
    },
    /// The file is whole, and is what the hub announced.
    Verified {
        /// The file.
        file: &'a str,
        /// What it was verified with, besides its length.
        checksum: Checksum,
    },
}

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// A `.gguf` file, the first of its parts, or a directory with safetensors.
    pub path: PathBuf,
    /// The commit of the repository that it is of.
    pub commit: String,
}

/// Fetches what `model` means at `revision` (a branch, a tag or a commit), unless it is in the
/// cache. The revision is noted when all of it is there: until then the cache names what it named
/// before.
///
/// # Errors
/// [`HubError`]: what an interrupted fetch has left is taken up by the next one, what is wrong is
/// removed.
pub fn pull(
    hub: &dyn Hub,
    cache: &HubCache,
    model: &ModelRef,
    revision: &str,
    retry: Retry,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Pulled, HubError> {
    let repo = &model.repo;
    if FileName::new(repo, revision).is_err() {
        return Err(HubError::Revision(revision.to_owned()));
    }
    let RepoInfo { commit, files } =
        again(retry, repo.as_str(), tell, || hub.repo(repo, revision))?;
    let folder = cache.folder(repo);
    let mut pull = Pull { hub, model, commit: &commit, folder: &folder, retry, tell };
    let path = match choose(repo, &files, model.wanted.as_deref())? {
        Choice::Gguf(files) => {
            let paths: Result<Vec<_>, _> = files.iter().map(|file| pull.file(file)).collect();
            // A name was chosen, so there is one.
            paths?.swap_remove(0)
        }
        Choice::Safetensors { text, weights } => {
            for file in &text {
                pull.file(file)?;
            }
            if weights.as_str() == INDEX {
                pull.shards(&weights, &files)?;
            } else {
                pull.file(&weights)?;
            }
            folder.snapshot(&commit)
        }
    };
    folder.note_revision(revision, &commit)?;
    Ok(Pulled { path, commit })
}

struct Pull<'a> {
    hub: &'a dyn Hub,
    model: &'a ModelRef,
    commit: &'a str,
    folder: &'a Folder,
    retry: Retry,
    tell: &'a mut dyn FnMut(Event<'_>),
}

impl Pull<'_> {
    /// Fetches a file, and returns its place in the snapshot.
    fn file(&mut self, file: &FileName) -> Result<PathBuf, HubError> {
        let info = self.content(file)?;
        self.folder.link(self.commit, file, &info.etag)
    }

    /// Fetches the content of a file.
    fn content(&mut self, file: &FileName) -> Result<FileInfo, HubError> {
        let (hub, repo, commit) = (self.hub, &self.model.repo, self.commit);
        let request = || hub.file(repo, commit, file);
        let info = again(self.retry, file.as_str(), self.tell, request)?;
        let source = Source { hub, repo, commit, file, info: &info };
        blob::fetch(&source, self.folder, self.retry, self.tell)?;
        Ok(info)
    }

    /// Fetches the files that the index names. The index gets its name last: a directory with one is a model.
    fn shards(&mut self, index: &FileName, files: &[FileName]) -> Result<(), HubError> {
        let info = self.content(index)?;
        let path = self.folder.blob(&info.etag);
        let text = fs::read(&path).map_err(HubError::at(&path))?;
        let wrong = |what: String| HubError::Index { repo: self.model.repo.clone(), what };
        let shards = shards(&text).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        let mut chosen = Vec::new();
        for shard in &shards {
            let found = files.iter().find(|file| file.as_str() == shard && is_shard(shard));
            let missing = || wrong(format!("names {shard:?}, which is no file of weights there"));
            chosen.push(found.ok_or_else(missing)?);
        }
        for shard in chosen {
            self.file(shard)?;
        }
        self.folder.link(self.commit, index, &info.etag)?;
        Ok(())
    }
}

fn is_shard(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// The files that an index of weights names.
pub(crate) fn shards(index: &[u8]) -> serde_json::Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: std::collections::BTreeMap<String, String>,
    }
    Ok(serde_json::from_slice::<Index>(index)?.weight_map.into_values().collect())
}

/// Requests until there is an answer, or an error that stays.
fn again<T>(
    retry: Retry,
    file: &str,
    tell: &mut dyn FnMut(Event<'_>),
    mut request: impl FnMut() -> Result<T, HubError>,
) -> Result<T, HubError> {
    let mut attempt = 1;
    loop {
        match request() {
            Err(error) if error.is_transient() && attempt < retry.attempts => {
                tell(Event::Again { file, why: &error.to_string() });
                thread::sleep(retry.pause * (1 << attempt.min(5)) / 2);
                attempt += 1;
            }
            result => return result,
        }
    }
}
