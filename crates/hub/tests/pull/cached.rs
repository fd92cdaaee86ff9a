//! Models in the cache: listed, found by name, removed.

use crate::{
    Cache,
    server::{COMMIT, REPO, Server},
};
use hub::{HubCache, HubError};
use std::{fs, fs::File, path::Path};

const NEWER: &str = "fedcba9876543210fedcba9876543210fedcba98";

/// The path of a model in the cache, relative to it.
fn find(cache: &Cache, model: &str) -> Option<String> {
    let path = cache.hub().find(&model.parse().unwrap()).unwrap()?;
    Some(path.strip_prefix(cache.dir.path()).unwrap().to_str().unwrap().to_owned())
}

#[test]
fn a_model_is_found_by_its_name() {
    let server = Server::new(&[("a-Q4_K_M.gguf", b"four"), ("a-Q8_0.gguf", b"eight")]);
    let cache = Cache::new();
    assert_eq!(find(&cache, REPO), None);
    cache.pull(&server, "org/model:q8_0").unwrap();
    let old = format!("models--org--model/snapshots/{COMMIT}");
    assert_eq!(find(&cache, REPO), Some(format!("{old}/a-Q8_0.gguf")));
    assert_eq!(find(&cache, "org/model:q4_k_m"), None);
    cache.pull(&server, "org/model:q4_k_m").unwrap();
    assert_eq!(find(&cache, REPO), Some(format!("{old}/a-Q4_K_M.gguf")));

    // The newest is preferred; what only an older commit has is found too.
    server.set(|state| state.commit = NEWER.to_owned());
    server.put("a-Q4_K_M.gguf", b"four, better");
    cache.pull(&server, "org/model:a-Q4_K_M.gguf").unwrap();
    let new = format!("models--org--model/snapshots/{NEWER}");
    assert_eq!(find(&cache, REPO), Some(format!("{new}/a-Q4_K_M.gguf")));
    assert_eq!(find(&cache, "org/model:q8_0"), Some(format!("{old}/a-Q8_0.gguf")));

    let models = cache.hub().models().unwrap();
    let rows: Vec<_> = models
        .iter()
        .map(|model| (model.file.as_deref().unwrap(), model.revision.as_deref(), model.bytes))
        .collect();
    let expected =
        [("a-Q4_K_M.gguf", Some("main"), 12), ("a-Q4_K_M.gguf", None, 4), ("a-Q8_0.gguf", None, 5)];
    assert_eq!(rows, expected);
}

#[test]
fn what_is_not_whole_is_no_model() {
    let index = br#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    let server = Server::new(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("1.safetensors", b"one"),
        ("2.safetensors", b"two"),
    ]);
    server.change("2.safetensors", |file| file.cuts = vec![1, 0, 0, 0]);
    let cache = Cache::new();
    cache.pull(&server, REPO).unwrap_err();
    assert!((cache.hub().models().unwrap().is_empty(), find(&cache, REPO)) == (true, None));
    server.change("2.safetensors", |file| file.cuts.clear());
    cache.pull(&server, REPO).unwrap();
    let models = cache.hub().models().unwrap();
    assert_eq!((models.len(), models[0].bytes), (1, 2 + index.len() as u64 + 6));
    fs::remove_file(models[0].path.join("1.safetensors")).unwrap();
    assert_eq!((cache.hub().models().unwrap(), find(&cache, REPO)), (vec![], None));
}

#[test]
fn a_cache_that_is_not_there_is_empty_and_other_folders_are_left_alone() {
    assert_eq!(HubCache::new("/nowhere/at/all").models().unwrap(), []);
    let cache = Cache::new();
    for dir in ["datasets--org--model", "models--", "models--a--b/snapshots/x", "version"] {
        fs::create_dir_all(cache.path(dir)).unwrap();
    }
    assert_eq!(cache.hub().models().unwrap(), []);
    assert_eq!(cache.hub().repo("org/model").unwrap(), None);
}

#[test]
fn a_repository_is_removed_unless_it_is_being_pulled() {
    let server = Server::new(&[("m.gguf", b"content")]);
    let cache = Cache::new();
    cache.pull(&server, REPO).unwrap();
    let (hub, outside) = (cache.hub(), cache.path("outside"));
    fs::write(&outside, "kept").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(&outside, cache.path("models--org--model/link")).unwrap();
    let repo = hub.repo(REPO).unwrap().unwrap();
    assert_eq!(repo.path, cache.path("models--org--model"));
    assert_eq!(repo.bytes, 7 + 40);
    for name in ["org/mode", "../outside", "models--org--model", ""] {
        assert_eq!(hub.repo(name).unwrap(), None);
    }

    let locks = cache.path(".locks/models--org--model");
    let lock = fs::read_dir(locks).unwrap().next().unwrap().unwrap().path();
    let lock = File::open(lock).unwrap();
    lock.lock().unwrap();
    assert!(matches!(hub.remove(&repo), Err(HubError::Busy(_))));
    assert!(Path::new(&repo.path).exists());
    lock.unlock().unwrap();
    hub.remove(&repo).unwrap();
    assert!(!repo.path.exists() && outside.exists());
    assert_eq!(hub.repo(REPO).unwrap(), None);
}
