//! Names of models: `ORG/NAME`, with a quantisation or a file where one is meant.

use std::{fmt, path::Path, str::FromStr};

use crate::HubError;

/// The longest name that the hub gives.
const MAX_LEN: usize = 96;

/// A repository of a model: `ORG/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId(String);

impl RepoId {
    /// The name of its folder in the cache: `models--ORG--NAME`.
    pub fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }

    /// The repository of a folder of the cache. Old ones have no organisation: `models--gpt2`.
    pub fn from_folder(folder: &str) -> Option<RepoId> {
        let name = folder.strip_prefix("models--")?.replacen("--", "/", 1);
        check(&name, name.contains('/')).is_ok().then_some(RepoId(name))
    }

    /// The repository of a snapshot's directory in the cache: `models--ORG--NAME/snapshots/COMMIT`.
    pub fn from_snapshot(dir: &Path) -> Option<RepoId> {
        let snapshots = dir.parent().filter(|parent| parent.ends_with("snapshots"))?;
        RepoId::from_folder(snapshots.parent()?.file_name()?.to_str()?)
    }

    /// `NAME`.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// `ORG/NAME`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RepoId {
    type Err = HubError;

    /// The rules are those of `huggingface_hub.utils.validate_repo_id`.
    fn from_str(given: &str) -> Result<Self, HubError> {
        match check(given, true) {
            Ok(()) => Ok(RepoId(given.to_owned())),
            Err(why) => Err(HubError::Name { given: given.to_owned(), why }),
        }
    }
}

/// A repository, and what is meant of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRef {
    /// The repository.
    pub repo: RepoId,
    /// A quantisation (`Q4_K_M`) or the name of a GGUF file; `None` for what the repository offers.
    pub wanted: Option<String>,
}

impl FromStr for ModelRef {
    type Err = HubError;

    fn from_str(given: &str) -> Result<Self, HubError> {
        let (repo, wanted) = match given.split_once(':') {
            None => (given, None),
            Some((_, "")) => {
                let why = "nothing comes after `:`";
                return Err(HubError::Name { given: given.to_owned(), why });
            }
            Some((repo, wanted)) => (repo, Some(wanted.to_owned())),
        };
        Ok(ModelRef { repo: repo.parse()?, wanted })
    }
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wanted {
            Some(wanted) => write!(f, "{}:{wanted}", self.repo),
            None => write!(f, "{}", self.repo),
        }
    }
}

fn check(name: &str, has_org: bool) -> Result<(), &'static str> {
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() != 1 + usize::from(has_org) {
        return Err("it has one `/`");
    }
    if name.len() > MAX_LEN {
        return Err("it is longer than 96 characters");
    }
    if name.contains("--") || name.contains("..") {
        return Err("it has `--` or `..`");
    }
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    for part in parts {
        if part.is_empty() || !part.chars().all(is_allowed) {
            return Err("its parts are letters, digits, `-`, `_` and `.`");
        }
        if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
            return Err("a part begins or ends with `-` or `.`");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_an_organisation_and_may_choose_a_file() {
        let model: ModelRef = "bartowski/Llama-3.2-1B-GGUF:Q4_K_M".parse().unwrap();
        assert_eq!(model.repo.folder(), "models--bartowski--Llama-3.2-1B-GGUF");
        assert_eq!(RepoId::from_folder(&model.repo.folder()), Some(model.repo.clone()));
        assert_eq!(model.wanted.as_deref(), Some("Q4_K_M"));
        assert_eq!(model.to_string(), "bartowski/Llama-3.2-1B-GGUF:Q4_K_M");
        assert_eq!("a/b".parse::<ModelRef>().unwrap().wanted, None);
        let snapshot = Path::new("/hub").join(model.repo.folder()).join("snapshots/0123");
        assert_eq!(RepoId::from_snapshot(&snapshot).unwrap().name(), "Llama-3.2-1B-GGUF");
        assert_eq!(RepoId::from_snapshot(Path::new("models--a--b/0123")), None);
        assert_eq!(RepoId::from_folder("models--gpt2").unwrap().as_str(), "gpt2");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = format!("a/{}", "b".repeat(95));
        for name in [
            "",
            "gpt2",
            "a/b/c",
            "/b",
            "a/",
            "../b",
            "a/..",
            "a/b--c",
            "a b/c",
            "a/b:",
            "-a/b",
            "a/b.",
            "a/b\n",
            "https://hub/a/b",
            "a\\b/c",
            &long,
        ] {
            let error = name.parse::<ModelRef>();
            assert!(matches!(error, Err(HubError::Name { .. })), "{name:?}: {error:?}");
        }
        for folder in ["models--", "models--a--b--c", "datasets--a--b", "models--..--b", "a/b"] {
            assert_eq!(RepoId::from_folder(folder), None, "{folder}");
        }
    }
}
