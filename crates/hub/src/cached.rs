//! Models that are in the cache.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    FileName, HubCache, HubError, ModelRef, RepoId,
    cache::Folder,
    choose::{Choice, INDEX, SINGLE, choose, is_first, is_gguf, is_model, parts},
    pull::shards,
};

/// A model in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedModel {
    /// Repository of the model.
    pub repo: RepoId,
    /// The GGUF file or the first of its parts, where it is one.
    pub file: Option<String>,
    /// The branch or tag that it was pulled as; `None` for an older commit.
    pub revision: Option<String>,
    /// The commit of the repository.
    pub commit: String,
    /// A `.gguf` file, the first of its parts, or a directory with safetensors.
    pub path: PathBuf,
    /// The length of its files.
    pub bytes: u64,
}

/// A commit of which files are in the cache.
struct Snapshot {
    commit: String,
    dir: PathBuf,
    files: Vec<FileName>,
    modified: SystemTime,
}

impl HubCache {
    /// The models whose files are all in the cache, by repository.
    ///
    /// # Errors
    /// [`HubError::Io`] if the cache cannot be read.
    pub fn models(&self) -> Result<Vec<CachedModel>, HubError> {
        let mut models = Vec::new();
        for repo in self.repos()? {
            let folder = self.folder(&repo);
            let revisions = revisions(&folder);
            for snapshot in snapshots(&folder, &repo) {
                let revision = revisions.get(&snapshot.commit).cloned();
                let mut add = |file: Option<&FileName>, path: PathBuf, bytes| {
                    let (repo, commit) = (repo.clone(), snapshot.commit.clone());
                    let file = file.map(|file| file.as_str().to_owned());
                    let revision = revision.clone();
                    models.push(CachedModel { repo, file, revision, commit, path, bytes });
                };
                if snapshot.has_safetensors() {
                    let bytes = snapshot.files.iter().map(|file| snapshot.bytes(file)).sum();
                    add(None, snapshot.dir.clone(), bytes);
                }
                let ggufs = snapshot.files.iter().filter(|file| is_gguf(file.as_str()));
                for file in ggufs.filter(|file| is_model(file) && is_first(file)) {
                    let Ok(parts) = parts(&repo, &snapshot.files, file) else { continue };
                    let bytes = parts.iter().map(|part| snapshot.bytes(part)).sum();
                    add(Some(file), snapshot.dir.join(file.as_str()), bytes);
                }
            }
        }
        Ok(models)
    }

    /// The repositories of models in the cache, sorted.
    pub(crate) fn repos(&self) -> Result<Vec<RepoId>, HubError> {
        let entries = match fs::read_dir(self.dir()) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HubError::at(self.dir())(error)),
        };
        let folders = entries.flatten().filter_map(|entry| {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            RepoId::from_folder(entry.file_name().to_str()?).filter(|_| is_dir)
        });
        let mut repos: Vec<_> = folders.collect();
        repos.sort();
        Ok(repos)
    }

    /// The path of `model`, if it is in the cache: of the commit that `main` was when it was pulled
    /// last, else of the newest that has it.
    ///
    /// # Errors
    /// [`HubError::Ambiguous`] where several files could be meant.
    pub fn find(&self, model: &ModelRef) -> Result<Option<PathBuf>, HubError> {
        let folder = self.folder(&model.repo);
        for snapshot in snapshots(&folder, &model.repo) {
            let files = match snapshot.has_safetensors() {
                true => &snapshot.files[..],
                false => &snapshot.ggufs()[..],
            };
            match choose(&model.repo, files, model.wanted.as_deref()) {
                Ok(Choice::Gguf(files)) => return Ok(Some(snapshot.dir.join(files[0].as_str()))),
                Ok(Choice::Safetensors { .. }) => return Ok(Some(snapshot.dir)),
                Err(
                    HubError::NoMatch { .. } | HubError::NoModel { .. } | HubError::Part { .. },
                ) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Snapshot {
    fn ggufs(&self) -> Vec<FileName> {
        self.files.iter().filter(|file| is_gguf(file.as_str())).cloned().collect()
    }

    fn has(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.as_str() == name)
    }

    /// Whether configuration and all weights are there.
    fn has_safetensors(&self) -> bool {
        let has_shards = || {
            let index = fs::read(self.dir.join(INDEX)).ok();
            let shards = index.and_then(|index| shards(&index).ok());
            shards.is_some_and(|shards| shards.iter().all(|shard| self.has(shard)))
        };
        self.has("config.json") && (self.has(SINGLE) || (self.has(INDEX) && has_shards()))
    }

    fn bytes(&self, file: &FileName) -> u64 {
        fs::metadata(self.dir.join(file.as_str())).map_or(0, |metadata| metadata.len())
    }
}

/// The commits of branches and tags: `main` where several are the same.
fn revisions(folder: &Folder) -> BTreeMap<String, String> {
    let mut revisions = BTreeMap::new();
    let refs = folder.dir().join("refs");
    for name in files_under(&refs) {
        if let Some(commit) = folder.commit(&name) {
            let known = revisions.entry(commit).or_insert_with(|| name.clone());
            if name == "main" {
                *known = name;
            }
        }
    }
    revisions
}

/// The snapshots of a repository: that of `main`, then from new to old.
fn snapshots(folder: &Folder, repo: &RepoId) -> Vec<Snapshot> {
    let main = folder.commit("main");
    let entries = fs::read_dir(folder.snapshots()).into_iter().flatten().flatten();
    let snapshot = |entry: fs::DirEntry| {
        let (dir, commit) = (entry.path(), entry.file_name().into_string().ok()?);
        let modified = entry.metadata().and_then(|metadata| metadata.modified()).ok()?;
        let names = files_under(&dir);
        let files = names.iter().filter_map(|name| FileName::new(repo, name).ok()).collect();
        Some(Snapshot { commit, dir, files, modified })
    };
    let mut snapshots: Vec<_> = entries.filter_map(snapshot).collect();
    let is_main = |snapshot: &Snapshot| main.as_ref() == Some(&snapshot.commit);
    snapshots.sort_by_key(|snapshot| (is_main(snapshot), snapshot.modified));
    snapshots.reverse();
    snapshots
}

/// The files under `dir` that can be read, links to nothing left out; directories that are links are not
/// followed.
fn files_under(dir: &Path) -> Vec<String> {
    const MAX_DEPTH: usize = 8;
    let mut files = Vec::new();
    let mut todo = vec![(dir.to_owned(), String::new(), 0)];
    while let Some((dir, prefix, depth)) = todo.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Ok(kind) = entry.file_type() else { continue };
            let name = format!("{prefix}{name}");
            if kind.is_dir() && depth < MAX_DEPTH {
                todo.push((entry.path(), format!("{name}/"), depth + 1));
            } else if entry.path().is_file() {
                files.push(name);
            }
        }
    }
    files.sort();
    files
}
