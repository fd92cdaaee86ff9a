//! Pulls from a hub in this process: what is fetched, how a broken connection is taken up, what is
//! refused, and what is left in the cache.

mod cached;
mod refused;
mod server;
mod whole;

use hub::{Client, HubCache, HubError, Pulled, Retry, Settings, pull};
use server::{Server, TOKEN};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

/// Does not wait.
const RETRY: Retry = Retry { attempts: 3, pause: Duration::ZERO };
const ONCE: Retry = Retry { attempts: 1, pause: Duration::ZERO };

/// A cache in a directory of its own.
struct Cache {
    dir: TempDir,
}

impl Cache {
    fn new() -> Cache {
        Cache { dir: tempfile::tempdir().unwrap() }
    }

    fn hub(&self) -> HubCache {
        HubCache::new(self.dir.path())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn pull(&self, server: &Server, model: &str) -> Result<Pulled, HubError> {
        self.pull_with(server, model, "main", RETRY).0
    }

    /// Pulls with a token, and returns what was told.
    fn pull_with(
        &self,
        server: &Server,
        model: &str,
        revision: &str,
        retry: Retry,
    ) -> (Result<Pulled, HubError>, Vec<String>) {
        let client = client(server, Some(TOKEN));
        let mut events = Vec::new();
        let model = model.parse().unwrap();
        let pulled = pull(&client, &self.hub(), &model, revision, retry, &mut |event| {
            events.push(format!("{event:?}"));
        });
        (pulled, events)
    }

    /// Everything in the cache but locks, sorted.
    fn files(&self) -> Vec<String> {
        let mut files = Vec::new();
        walk(self.dir.path(), self.dir.path(), &mut files);
        files.retain(|file| !file.starts_with(".locks"));
        files.sort();
        files
    }
}

fn walk(root: &Path, dir: &Path, files: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        if entry.file_type().unwrap().is_dir() {
            walk(root, &entry.path(), files);
        } else {
            files.push(entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned());
        }
    }
}

fn client(server: &Server, token: Option<&str>) -> Client {
    let settings = Settings::from_vars(|name| match name {
        "HF_ENDPOINT" => Some(server.url.clone()),
        "HF_TOKEN" => token.map(str::to_owned),
        _ => None,
    });
    Client::new(&settings.unwrap()).unwrap()
}

/// Bytes of which no two ranges are alike.
fn bytes(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}
