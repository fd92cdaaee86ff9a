//! Finding a model: by path, or by the name of one that can be fetched.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use model_cache::{FetchedModel, MODELS};

use model_cache::NoCacheDir;

use crate::files;
use crate::weights::{PartName, is_hugging_face_dir};

/// Why a path or name leads to no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// Neither a path nor the name of a model that can be fetched.
    #[error(
        "{}: no such file or directory\nit is not the name of a model that can be fetched either: {}",
        path.display(), names()
    )]
    NotFound {
        /// As it was given.
        path: PathBuf,
    },
    /// The path cannot be read: permissions, a loop of symbolic links, and the like.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was to be read.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A directory without safetensors and with more than one GGUF file.
    #[error("{}: holds {} .gguf files, give the path of one: {}", dir.display(), files.len(), list(files))]
    Several {
        /// The directory.
        dir: PathBuf,
        /// The names of its GGUF files, sorted.
        files: Vec<String>,
    },
    /// A model that can be fetched, and has not been.
    #[error(
        "{} has not been fetched: {} is not there\n\
         to fetch it ({} MB): halfwarp fetch {}",
        model.name, path.display(), model.bytes / 1_000_000, model.name
    )]
    NotFetched {
        /// The model.
        model: &'static FetchedModel,
        /// Where it will be.
        path: PathBuf,
    },
    /// A model of the Hugging Face Hub that is not in its cache.
    #[cfg(feature = "cli")]
    #[error(
        "{name}: no such file or directory, and no model in the cache\nto pull it: halfwarp pull {name}"
    )]
    NotPulled {
        /// As it was given.
        name: String,
    },
    /// Several files of a model in the hub's cache could be meant, or it cannot be opened.
    #[cfg(feature = "cli")]
    #[error(transparent)]
    Hub(#[from] hub::HubError),
    /// The environment says nowhere where fetched models are.
    #[error(transparent)]
    NoCacheDir(#[from] NoCacheDir),
}

/// The path of a model: what [`Checkpoint::open`](crate::Checkpoint::open) takes.
///
/// `model` is, in this order:
/// 1. a `.gguf` file, or a directory with safetensors files as Hugging Face has them;
/// 2. a directory that holds exactly one `.gguf` file, or the parts of one;
/// 3. the [name](FetchedModel::name) of a fetched model, one of [`MODELS`];
/// 4. with the feature `cli`, `ORG/NAME` or `ORG/NAME:QUANT` of a model that was pulled.
///
/// What the files hold is looked at when they are opened.
///
/// # Errors
/// Any [`ResolveError`].
pub fn resolve(model: impl AsRef<Path>) -> Result<PathBuf, ResolveError> {
    resolve_in(model.as_ref(), model_cache::cache_dir())
}

/// [`resolve`] with the cache at `cache_dir`.
fn resolve_in(
    path: &Path,
    cache_dir: Result<PathBuf, NoCacheDir>,
) -> Result<PathBuf, ResolveError> {
    let io = |source| ResolveError::Io { path: path.to_owned(), source };
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => in_dir(path),
        Ok(_) => Ok(path.to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Ok(target) = fs::read_link(path) {
                let what = format!("a symbolic link to {}: {error}", target.display());
                return Err(io(io::Error::new(error.kind(), what)));
            }
            match path.to_str().and_then(FetchedModel::named) {
                Some(model) => fetched(model, cache_dir),
                None => pulled(path),
            }
        }
        Err(error) => Err(io(error)),
    }
}

/// The path of a model in the cache of the Hugging Face Hub.
#[cfg(feature = "cli")]
fn pulled(path: &Path) -> Result<PathBuf, ResolveError> {
    let model = path.to_str().and_then(|name| name.parse::<hub::ModelRef>().ok());
    let model = model.ok_or_else(|| ResolveError::NotFound { path: path.to_owned() })?;
    let cache = hub::HubCache::new(hub::Settings::cache_dir_from_env()?);
    cache.find(&model)?.ok_or_else(|| ResolveError::NotPulled { name: model.to_string() })
}

/// Without the command line nothing knows that cache.
#[cfg(not(feature = "cli"))]
fn pulled(path: &Path) -> Result<PathBuf, ResolveError> {
    Err(ResolveError::NotFound { path: path.to_owned() })
}

/// The path of the model that is meant where none is named, if it has been fetched.
///
/// # Errors
/// [`ResolveError::NotFetched`], [`ResolveError::NoCacheDir`], [`ResolveError::Io`].
pub fn default_model() -> Result<PathBuf, ResolveError> {
    fetched(model_cache::DEFAULT, model_cache::cache_dir())
}

/// `dir`, or its only GGUF file where it holds no safetensors.
fn in_dir(dir: &Path) -> Result<PathBuf, ResolveError> {
    let io = |source| ResolveError::Io { path: dir.to_owned(), source };
    if is_hugging_face_dir(dir).map_err(io)? {
        return Ok(dir.to_owned());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        if Path::new(&name).extension().is_some_and(|ext| ext.eq_ignore_ascii_case("gguf")) {
            files.push(name);
        }
    }
    match &files[..] {
        // Opening it says what a model directory holds.
        [] => Ok(dir.to_owned()),
        [file] => Ok(dir.join(file)),
        _ => {
            let names = files.iter().map(|name| name.to_string_lossy().into_owned());
            let mut files: Vec<_> = names.collect();
            files.sort();
            if are_parts(&files) {
                return Ok(dir.join(&files[0]));
            }
            Err(ResolveError::Several { dir: dir.to_owned(), files })
        }
    }
}

/// `NAME` of a file that is called `NAME-00001-of-00003.gguf`: one of those that a model is split
/// over.
pub fn split_name(file: &str) -> Option<&str> {
    PartName::parse(file).map(|part| part.model)
}

/// Whether all of `files` are of one model that is split over them. Opening it finds what is missing.
fn are_parts(files: &[String]) -> bool {
    let parts = files.iter().map(|name| PartName::parse(name));
    let mut models = parts.map(|part| part.map(|part| (part.model, part.count)));
    let first = models.next().flatten();
    first.is_some() && models.all(|model| model == first)
}

/// The path of `model` in the cache.
fn fetched(
    model: &'static FetchedModel,
    cache_dir: Result<PathBuf, NoCacheDir>,
) -> Result<PathBuf, ResolveError> {
    let path = model.path(&cache_dir?);
    match files::exists(&path) {
        Ok(true) => Ok(path),
        Ok(false) => Err(ResolveError::NotFetched { model, path }),
        Err(source) => Err(ResolveError::Io { path, source }),
    }
}

fn names() -> String {
    MODELS.iter().map(|model| model.name).collect::<Vec<_>>().join(", ")
}

/// The first of `files`, as many as fit in a line or two.
fn list(files: &[String]) -> String {
    const MAX_FILES: usize = 8;
    let shown = files.iter().take(MAX_FILES).map(|name| crate::weights::shown(name));
    let more = if files.len() > MAX_FILES { ", .." } else { "" };
    format!("{}{more}", shown.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "smollm2-135m-instruct";

    #[test]
    fn a_name_leads_to_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        let resolve_name = || resolve_in(Path::new(NAME), Ok(cache.path().to_owned()));
        let file = cache.path().join("models").join(NAME).join("SmolLM2-135M-Instruct.Q4_1.gguf");
        let error = resolve_name().unwrap_err();
        assert!(matches!(&error, ResolveError::NotFetched { path, .. } if *path == file));
        assert!(error.to_string().ends_with(&format!("halfwarp fetch {NAME}")), "{error}");

        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "GGUF").unwrap();
        assert_eq!(resolve_name().unwrap(), file);
    }

    #[test]
    fn what_is_no_name_needs_no_cache() {
        let unknown = resolve_in(Path::new("smollm2"), Err(NoCacheDir)).unwrap_err();
        assert!(matches!(unknown, ResolveError::NotFound { .. }));
        assert!(unknown.to_string().contains(NAME), "{unknown}");
        let named = resolve_in(Path::new(NAME), Err(NoCacheDir)).unwrap_err();
        assert!(matches!(named, ResolveError::NoCacheDir(_)));
        assert!(named.to_string().contains("HALFWARP_CACHE"), "{named}");
    }
}
