//! Models by their names: the one that is served, and those of the hub's cache.

use crate::Model;
use hub::{CachedModel, HubCache, ModelRef, Settings};
use std::path::PathBuf;

/// Before the names of Hugging Face models, as Ollama's users write them.
const HUB_HOSTS: [&str; 4] =
    ["hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/"];
/// The tag of a model without one.
const LATEST: &str = ":latest";

/// What a name means.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meaning {
    /// The model that is served.
    Served,
    /// Another one, which is in the cache.
    Cached(Box<CachedModel>),
    Unknown,
}

/// A name with a tag, as all of Ollama's have one.
pub(super) fn tagged(name: &str) -> String {
    if name.contains(':') { name.to_owned() } else { format!("{name}{LATEST}") }
}

/// The models of the hub's cache; none where there is no cache.
pub(super) fn cached() -> Vec<CachedModel> {
    let cache = cache();
    cache.and_then(|cache| cache.models().ok()).unwrap_or_default()
}

/// The hub's cache, if the environment says where it is.
pub(super) fn cache() -> Option<HubCache> {
    Settings::cache_dir_from_env().ok().map(HubCache::new)
}

/// What `-m` takes for a model.
pub(super) fn reference(model: &CachedModel) -> String {
    match &model.file {
        Some(file) => format!("{}:{file}", model.repo),
        None => model.repo.to_string(),
    }
}

/// The model of the hub that `name` is, if it has the form of one.
pub(super) fn hub_name(name: &str) -> Option<ModelRef> {
    let name = HUB_HOSTS.iter().find_map(|host| name.strip_prefix(host)).unwrap_or(name);
    name.strip_suffix(LATEST).unwrap_or(name).parse().ok()
}

/// A name without its tag of the latest, in lower case.
pub(super) fn plain(name: &str) -> String {
    name.strip_suffix(LATEST).unwrap_or(name).to_lowercase()
}

/// What `name` means where `model` is served as `served`: its name, a name of the hub's with what is wanted of it, or one
/// of Ollama's library, such as `qwen3:8b`, which says how names begin.
pub(super) fn find(name: &str, served: &str, model: &Model) -> Meaning {
    if plain(name) == plain(served) {
        return Meaning::Served;
    }
    let models = cached();
    let path = model.checkpoint().path().canonicalize().ok();
    let is_served = |it: &CachedModel| path.is_some() && it.path.canonicalize().ok() == path;
    if let Some(wanted) = hub_name(name) {
        let found = cache().and_then(|cache| cache.find(&wanted).ok().flatten());
        let is_it =
            |it: &&CachedModel| found.as_ref().is_some_and(|found: &PathBuf| it.path == *found);
        return match models.iter().find(is_it) {
            Some(it) if is_served(it) => Meaning::Served,
            Some(it) => Meaning::Cached(Box::new(it.clone())),
            None => Meaning::Unknown,
        };
    }
    let wanted = squashed(&plain(name));
    if wanted.is_empty() || name.contains('/') {
        return Meaning::Unknown;
    }
    if squashed(served).starts_with(&wanted) {
        return Meaning::Served;
    }
    let names = |it: &CachedModel| {
        let stem = |file: &String| file.rsplit('/').next().unwrap_or(file).to_owned();
        [Some(it.repo.name().to_owned()), it.file.as_ref().map(stem)].into_iter().flatten()
    };
    let fits = |it: &&CachedModel| names(it).any(|name| squashed(&name).starts_with(&wanted));
    let mut fitting: Vec<&CachedModel> = models.iter().filter(fits).collect();
    // The shortest name says the least beside what is wanted.
    fitting.sort_by_key(|it| (!is_served(it), it.repo.name().len()));
    match fitting.first() {
        Some(it) if is_served(it) => Meaning::Served,
        Some(it) => Meaning::Cached(Box::new((*it).clone())),
        None => Meaning::Unknown,
    }
}

/// Letters and digits alone: names write versions and sizes with other marks between them.
pub(super) fn squashed(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_have_an_organisation() {
        for (name, wanted) in [
            ("hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M", Some("Qwen/Qwen3-8B-GGUF:Q4_K_M")),
            ("huggingface.co/a/b", Some("a/b")),
            ("a/b:latest", Some("a/b")),
            ("qwen3:8b", None),
            ("a/b/c", None),
            ("hf.co/x", None),
        ] {
            assert_eq!(hub_name(name).map(|it| it.to_string()).as_deref(), wanted, "{name}");
        }
    }

    #[test]
    fn a_name_of_ollamas_library_is_the_beginning_of_others() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let model = Model::open(golden).unwrap();
        for (name, is_it) in [
            ("Llama-3.2-1B-Instruct", true),
            ("llama-3.2-1b-instruct:latest", true),
            ("llama3.2:1b", true),
            ("llama3.2:1b-instruct", true),
            ("llama3.2", true),
            ("llama3.2:3b", false),
            ("qwen3:8b", false),
            (":", false),
            ("", false),
        ] {
            let meaning = find(name, "Llama-3.2-1B-Instruct", &model);
            assert_eq!(meaning == Meaning::Served, is_it, "{name}: {meaning:?}");
        }
    }
}
