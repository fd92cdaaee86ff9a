//! Names of files, as a hub gives them: untrusted.

use std::fmt;

use crate::{HubError, RepoId};

/// The longest component that file systems take, less what `.incomplete` and the like add.
const MAX_COMPONENT_BYTES: usize = 200;

/// The relative path of a file in a repository, which stays in the folder that it is joined to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName(String);

impl FileName {
    /// The name, if it is one.
    ///
    /// # Errors
    /// [`HubError::FileName`] for an absolute path, `..`, and characters that no file of a model
    /// needs.
    pub fn new(repo: &RepoId, name: &str) -> Result<FileName, HubError> {
        let checked = escapes(name).map_or_else(|| odd(name), Some);
        match checked {
            None => Ok(FileName(name.to_owned())),
            Some(why) => Err(HubError::FileName { repo: repo.clone(), name: name.to_owned(), why }),
        }
    }

    /// Names of a repository's files that could be part of a model.
    ///
    /// # Errors
    /// [`HubError::FileName`] if any name could lead out of the cache, even that of a file that
    /// nobody wants, or if a file of a model has odd characters. A picture may have them.
    pub(crate) fn all(repo: &RepoId, names: &[String]) -> Result<Vec<FileName>, HubError> {
        let is_meant = |name: &&String| escapes(name).is_some() || is_of_model(name);
        names.iter().filter(is_meant).map(|name| FileName::new(repo, name)).collect()
    }

    /// The path, with `/` between its components.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last component.
    pub(crate) fn base(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Whether the file is not in a folder.
    pub(crate) fn is_at_root(&self) -> bool {
        !self.0.contains('/')
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether a file by its extension can be part of a model that is fetched.
fn is_of_model(name: &str) -> bool {
    let extension = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    matches!(&extension[..], "gguf" | "safetensors" | "json" | "jinja" | "model" | "txt")
}

/// Why `name` could lead to another place than into the folder it is joined to.
fn escapes(name: &str) -> Option<&'static str> {
    if name.starts_with('/') {
        return Some("is an absolute path");
    }
    if name.contains('\\') || name.chars().any(char::is_control) {
        return Some("has a backslash or a control character");
    }
    name.split('/').find_map(|part| match part {
        "" | "." | ".." => Some("has an empty component, `.` or `..`"),
        _ if part.len() > MAX_COMPONENT_BYTES => Some("has a component that is too long"),
        _ => None,
    })
}

/// Why `name` is not the name of a model's file.
fn odd(name: &str) -> Option<&'static str> {
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || "._-+=,@()[] /".contains(char);
    (!name.chars().all(is_allowed)).then_some("has characters that no file of a model needs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> RepoId {
        "a/b".parse().unwrap()
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = "x".repeat(MAX_COMPONENT_BYTES + 1);
        for name in [
            "",
            "/etc/passwd",
            "..",
            "../x.json",
            "a/../../x.json",
            "a//b",
            "./a",
            "a/.",
            "a\\b",
            "C:\\x.gguf",
            "a\0b",
            "a\nb",
            "\u{1b}[2J.gguf",
            "a:b.gguf",
            "x$(id).gguf",
            "x%2e.gguf",
            "\u{202e}.gguf",
            "~é.gguf",
            &long,
        ] {
            let refused = FileName::new(&repo(), name);
            assert!(matches!(refused, Err(HubError::FileName { .. })), "{name:?}: {refused:?}");
        }
    }

    #[test]
    fn names_of_models_are_taken() {
        for name in ["config.json", "Q4_K_M/Llama-3.2 (1B)-Q4_K_M-00001-of-00002.gguf", "a.b/c=1"] {
            assert_eq!(FileName::new(&repo(), name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn a_picture_may_have_any_name_that_stays_inside() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let files = FileName::all(&repo(), &names(&["was?.png", "config.json"])).unwrap();
        assert_eq!(files.iter().map(FileName::as_str).collect::<Vec<_>>(), ["config.json"]);
        assert!(FileName::all(&repo(), &names(&["../was.png", "config.json"])).is_err());
        assert!(FileName::all(&repo(), &names(&["was?.gguf"])).is_err());
    }
}
