//! What is refused, with nothing left in the cache.

use crate::{
    Cache, RETRY, bytes, client,
    server::{REPO, Server, sha256},
};
use hub::{HubCache, HubError, pull};
use std::fs;

/// Pulls, and sees that the pull fails and that no file is left.
fn refused(server: &Server, model: &str) -> HubError {
    let cache = Cache::new();
    let error = cache.pull(server, model).unwrap_err();
    assert_eq!(cache.files(), [""; 0], "{error}");
    let message = error.to_string();
    assert!(message.lines().count() <= 2, "{message}");
    error
}

#[test]
fn a_wrong_body_is_refused_and_nothing_is_left() {
    for name in ["m.gguf", "config.json"] {
        let content = bytes(10_000);
        let server = Server::new(&[(name, &content), ("model.safetensors", b"weights")]);
        if name == "m.gguf" {
            server.set(|state| drop(state.files.remove("model.safetensors")));
        }
        let mut wrong = content.clone();
        wrong[5000] ^= 1;
        server.change(name, |file| file.body = Some(wrong));
        let error = refused(&server, REPO);
        assert!(matches!(&error, HubError::Wrong { file, .. } if file == name), "{error}");
        // What comes right later is taken.
        server.change(name, |file| file.body = None);
        Cache::new().pull(&server, REPO).unwrap();
    }
}

#[test]
fn a_body_that_does_not_end_is_cut_off() {
    let server = Server::new(&[("m.gguf", &bytes(1000))]);
    server.change("m.gguf", |file| file.body = Some(bytes(2_000_000)));
    let error = refused(&server, REPO);
    assert!(error.to_string().contains("more comes than the 1000 bytes"), "{error}");
}

#[test]
fn a_damaged_part_is_found_at_the_end_and_removed() {
    let content = bytes(10_000);
    let server = Server::new(&[("m.gguf", &content)]);
    let cache = Cache::new();
    let blobs = cache.path("models--org--model/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.incomplete", sha256(&content)));
    fs::write(&part, vec![7; 4000]).unwrap();
    let error = cache.pull(&server, REPO).unwrap_err();
    assert!(matches!(error, HubError::Wrong { .. }), "{error}");
    assert!(!part.exists());
    assert_eq!(fs::read(cache.pull(&server, REPO).unwrap().path).unwrap(), content);
}

#[test]
fn without_access_the_token_is_named() {
    let server = Server::new(&[("m.gguf", b"content")]);
    for (status, code) in [(401, "GatedRepo"), (401, "RepoNotFound"), (403, "")] {
        server.set(|state| state.status = Some((status, code)));
        let with = refused(&server, REPO);
        assert!(matches!(with, HubError::Access { has_token: true, .. }), "{with}");
        let cache = HubCache::new("/nowhere");
        let model = REPO.parse().unwrap();
        let client = client(&server, None);
        let without = pull(&client, &cache, &model, "main", RETRY, &mut |_| ()).unwrap_err();
        let message = without.to_string();
        assert!(message.contains("set HF_TOKEN to a token that may read it"), "{message}");
        assert!(message.contains(REPO) && without.is_mistake(), "{message}");
    }
}

#[test]
fn what_the_hub_has_not_is_said() {
    let server = Server::new(&[("m-Q8_0.gguf", b"content")]);
    let model = refused(&server, "org/other");
    assert!(matches!(model, HubError::NotFound { .. }), "{model}");
    assert!(model.to_string().contains("no model org/other"), "{model}");
    let quant = refused(&server, "org/model:q4_k_m");
    assert!(quant.to_string().contains("it has: m-Q8_0.gguf"), "{quant}");
    let revision = Cache::new().pull_with(&server, REPO, "v2", RETRY).0.unwrap_err();
    assert!(matches!(revision, HubError::NoRevision { .. }), "{revision}");
    for hostile in ["../main", "/etc", "a\nb", ""] {
        let error = Cache::new().pull_with(&server, REPO, hostile, RETRY).0.unwrap_err();
        assert!(matches!(error, HubError::Revision(_)), "{hostile:?}: {error}");
    }
}

#[test]
fn hostile_file_names_are_refused() {
    for name in ["../../evil.gguf", "/tmp/evil.gguf", "a\\b.gguf", "a\u{1b}[2J.gguf", "../evil.png"]
    {
        let server = Server::new(&[("m-Q4_K_M.gguf", b"content"), (name, b"evil")]);
        let error = refused(&server, REPO);
        assert!(matches!(error, HubError::FileName { .. }), "{name:?}: {error}");
        assert!(!error.to_string().contains('\u{1b}'), "{error}");
    }
}

#[test]
fn an_index_names_files_of_the_model_alone() {
    for shard in ["../../../evil.safetensors", "/etc/passwd", "gone.safetensors", "config.json"] {
        let index = format!(r#"{{"weight_map": {{"a": {shard:?}}}}}"#);
        let server = Server::new(&[
            ("config.json", b"{}"),
            ("model.safetensors.index.json", index.as_bytes()),
            ("model-1.safetensors", b"one"),
        ]);
        let cache = Cache::new();
        let error = cache.pull(&server, REPO).unwrap_err();
        assert!(matches!(error, HubError::Index { .. }), "{shard}: {error}");
        assert_eq!(cache.hub().models().unwrap(), []);
        assert_eq!(cache.hub().find(&REPO.parse().unwrap()).unwrap(), None);
    }
}

#[test]
fn hostile_headers_are_refused() {
    for etag in ["../../../evil", "", "a/b", "..", "x.incomplete"] {
        let server = Server::new(&[("m.gguf", b"content")]);
        server.change("m.gguf", |file| file.etag = Some(etag.to_owned()));
        let error = refused(&server, REPO);
        assert!(matches!(error, HubError::Answer { .. }), "{etag}: {error}");
    }
    for commit in ["../../../../evil", "", "main", "0123"] {
        let server = Server::new(&[("m.gguf", b"content")]);
        server.set(|state| state.commit = commit.to_owned());
        let error = refused(&server, REPO);
        assert!(matches!(error, HubError::Answer { .. }), "{commit}: {error}");
    }
    let server = Server::new(&[("m.gguf", b"content")]);
    server.set(|state| state.is_loop = true);
    let error = refused(&server, REPO);
    assert!(error.to_string().contains("redirects"), "{error}");
    assert!(server.requests().len() < 20);
}

#[test]
fn a_hub_that_is_not_there_is_said() {
    let server = Server::new(&[]);
    let gone = Server { url: "http://127.0.0.1:1".to_owned(), state: server.state };
    let error = refused(&gone, REPO);
    assert!(matches!(error, HubError::Network { .. }) && !error.is_mistake(), "{error}");
}
