//! What is fetched, and where it is then.

use crate::{
    Cache, ONCE, RETRY, bytes,
    server::{COMMIT, REPO, Server, TOKEN, git_blob, sha256},
};
use hub::HubError;
use std::{fs, thread};

const FOLDER: &str = "models--org--model";

#[test]
fn a_gguf_file_is_fetched_once_and_linked_as_python_does() {
    let content = bytes(700_000);
    let server = Server::new(&[
        ("README.md", b"no"),
        ("m-Q4_K_M.gguf", &content),
        ("m-Q8_0.gguf", b"other"),
    ]);
    let cache = Cache::new();
    let pulled = cache.pull(&server, "org/model:q4_k_m").unwrap();
    let sha = sha256(&content);
    assert_eq!(pulled.commit, COMMIT);
    assert_eq!(pulled.path, cache.path(&format!("{FOLDER}/snapshots/{COMMIT}/m-Q4_K_M.gguf")));
    assert_eq!(fs::read(&pulled.path).unwrap(), content);
    let link = fs::read_link(&pulled.path).unwrap();
    assert_eq!(link.to_str().unwrap(), format!("../../blobs/{sha}"));
    assert_eq!(fs::read_to_string(cache.path(&format!("{FOLDER}/refs/main"))).unwrap(), COMMIT);
    assert_eq!(
        cache.files(),
        [
            format!("{FOLDER}/blobs/{sha}"),
            format!("{FOLDER}/refs/main"),
            format!("{FOLDER}/snapshots/{COMMIT}/m-Q4_K_M.gguf"),
        ]
    );
    assert!(cache.path(&format!(".locks/{FOLDER}/{sha}.lock")).exists());

    server.requests();
    assert_eq!(cache.pull(&server, "org/model:q4_k_m").unwrap(), pulled);
    assert!(server.requests().iter().all(|request| request.host == "api"));
}

#[test]
fn the_token_goes_to_the_hub_and_to_no_other_host() {
    let server = Server::new(&[("m.gguf", &bytes(1000))]);
    server.set(|state| state.renamed_from = Some("org/old"));
    Cache::new().pull(&server, "org/old").unwrap();
    let requests = server.requests();
    assert!(requests.iter().any(|request| request.host == "storage"));
    assert!(requests.iter().any(|request| request.path.contains("org/old/resolve")));
    for request in requests {
        let token = request.headers.get("authorization");
        match request.host {
            "api" => assert_eq!(token.unwrap(), &format!("Bearer {TOKEN}"), "{request:?}"),
            _ => assert_eq!(token, None, "{request:?}"),
        }
    }
}

/// The hub itself says nothing of a file but the address on another host, which says all.
#[test]
fn a_mirror_may_send_on_to_another_host() {
    let content = bytes(3000);
    let server = Server::new(&[("config.json", b"{}"), ("model.safetensors", &content)]);
    server.set(|state| state.is_mirror = true);
    let cache = Cache::new();
    let pulled = cache.pull(&server, REPO).unwrap();
    assert_eq!(fs::read(pulled.path.join("model.safetensors")).unwrap(), content);
    assert!(cache.path(&format!("{FOLDER}/blobs/{}", sha256(&content))).exists());
    assert!(cache.path(&format!("{FOLDER}/blobs/{}", git_blob(b"{}"))).exists());
    for request in server.requests() {
        let has_token = request.headers.contains_key("authorization");
        assert_eq!(has_token, request.host == "api", "{request:?}");
    }
    // What it sends is verified as from the hub.
    server.change("model.safetensors", |file| file.body = Some(bytes(2999)));
    let other = Cache::new().pull(&server, REPO);
    assert!(other.is_err(), "{other:?}");
}

#[test]
fn all_parts_of_a_gguf_file_are_fetched() {
    let names = [1, 2, 3].map(|part| format!("q8/m-Q8_0-{part:05}-of-00003.gguf"));
    let contents = [bytes(1000), bytes(2000), bytes(3000)];
    let files: Vec<_> = names.iter().zip(&contents).map(|(n, c)| (&n[..], &c[..])).collect();
    let server = Server::new(&files);
    server.put("m-Q4_0.gguf", b"other");
    server.change(&names[2], |file| file.cuts = vec![1, 0, 0, 0]);
    let cache = Cache::new();
    cache.pull(&server, "org/model:q8_0").unwrap_err();
    // Two of three are no model.
    assert_eq!(cache.hub().models().unwrap(), []);
    assert_eq!(cache.hub().find(&"org/model:q8_0".parse().unwrap()).unwrap(), None);
    let pulled = cache.pull(&server, "org/model:q8_0").unwrap();
    let dir = cache.path(&format!("{FOLDER}/snapshots/{COMMIT}"));
    assert_eq!(pulled.path, dir.join(&names[0]));
    for (name, content) in names.iter().zip(&contents) {
        assert_eq!(&fs::read(dir.join(name)).unwrap(), content);
        assert!(cache.path(&format!("{FOLDER}/blobs/{}", sha256(content))).exists());
    }
    let [model] = &cache.hub().models().unwrap()[..] else { panic!("one model") };
    assert_eq!((model.bytes, model.file.as_deref()), (6000, Some(&names[0][..])));
    let second = "org/model:m-Q8_0-00002-of-00003.gguf".parse().unwrap();
    assert_eq!(cache.hub().find(&second).unwrap(), Some(pulled.path));
}

#[test]
fn safetensors_come_with_what_belongs_to_them() {
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let server = Server::new(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{}x"),
        ("tokenizer_config.json", b"{}"),
        ("chat_template.jinja", b"{{ x }}"),
        ("model.safetensors.index.json", index),
        ("model-1.safetensors", b"one"),
        ("model-2.safetensors", b"two"),
        ("consolidated.safetensors", b"both"),
        ("pytorch_model.bin", b"pickle"),
        ("original/consolidated.pt", b"pickle"),
        ("m.gguf", b"gguf"),
    ]);
    let cache = Cache::new();
    let pulled = cache.pull(&server, REPO).unwrap();
    assert_eq!(pulled.path, cache.path(&format!("{FOLDER}/snapshots/{COMMIT}")));
    let mut names: Vec<_> = fs::read_dir(&pulled.path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "chat_template.jinja",
            "config.json",
            "model-1.safetensors",
            "model-2.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
    );
    assert_eq!(fs::read(pulled.path.join("model-2.safetensors")).unwrap(), b"two");
    let blob = cache.path(&format!("{FOLDER}/blobs/{}", git_blob(b"{}x")));
    assert_eq!(fs::read(blob).unwrap(), b"{}x");
}

#[test]
fn what_breaks_is_taken_up_where_it_broke() {
    let content = bytes(900_000);
    let server = Server::new(&[("m.gguf", &content)]);
    server.change("m.gguf", |file| file.cuts = vec![300_000, 0, 200_000]);
    let cache = Cache::new();
    let (pulled, events) = cache.pull_with(&server, REPO, "main", RETRY);
    assert_eq!(fs::read(pulled.unwrap().path).unwrap(), content);
    let ranges: Vec<_> = server
        .requests()
        .into_iter()
        .filter(|request| request.host == "storage")
        .map(|request| request.headers.get("range").cloned().unwrap_or_default())
        .collect();
    assert_eq!(ranges, ["", "bytes=300000-", "bytes=300000-", "bytes=500000-"]);
    assert_eq!(events.iter().filter(|event| event.starts_with("Again")).count(), 3);
    assert!(events.last().unwrap().starts_with("Verified"), "{events:?}");
}

#[test]
fn the_next_pull_takes_up_what_the_last_one_left() {
    let content = bytes(500_000);
    let server = Server::new(&[("m.gguf", &content)]);
    server.change("m.gguf", |file| file.cuts = vec![200_000]);
    let cache = Cache::new();
    let (cut, _) = cache.pull_with(&server, REPO, "main", ONCE);
    assert!(matches!(cut, Err(HubError::Cut { received: 200_000, .. })), "{cut:?}");
    let sha = sha256(&content);
    assert_eq!(cache.files(), [format!("{FOLDER}/blobs/{sha}.incomplete")]);
    assert_eq!(cache.hub().find(&REPO.parse().unwrap()).unwrap(), None);

    server.requests();
    let (pulled, events) = cache.pull_with(&server, REPO, "main", ONCE);
    assert_eq!(fs::read(pulled.unwrap().path).unwrap(), content);
    assert!(events[0].contains("received: 200000"), "{events:?}");
    let requests = server.requests();
    let of_storage: Vec<_> = requests.iter().filter(|request| request.host == "storage").collect();
    assert_eq!(of_storage.len(), 1);
    assert_eq!(of_storage[0].headers["range"], "bytes=200000-");
    assert!(!cache.path(&format!("{FOLDER}/blobs/{sha}.incomplete")).exists());
}

#[test]
fn a_hub_without_ranges_begins_again() {
    let content = bytes(500_000);
    let server = Server::new(&[("m.gguf", &content)]);
    server.change("m.gguf", |file| {
        file.cuts = vec![200_000];
        file.has_no_ranges = true;
    });
    let pulled = Cache::new();
    let path = pulled.pull(&server, REPO).unwrap().path;
    assert_eq!(fs::read(path).unwrap(), content);
}

#[test]
fn a_whole_part_needs_no_request_and_a_longer_one_begins_again() {
    let content = bytes(100_000);
    for len in [100_000, 100_001] {
        let server = Server::new(&[("m.gguf", &content)]);
        let cache = Cache::new();
        let blobs = cache.path(&format!("{FOLDER}/blobs"));
        fs::create_dir_all(&blobs).unwrap();
        let part = blobs.join(format!("{}.incomplete", sha256(&content)));
        fs::write(part, bytes(len)).unwrap();
        let path = cache.pull(&server, REPO).unwrap().path;
        assert_eq!(fs::read(path).unwrap(), content);
        let num_fetched = server.requests().iter().filter(|r| r.host == "storage").count();
        assert_eq!(num_fetched, usize::from(len > 100_000));
    }
}

#[test]
fn a_damaged_blob_is_fetched_again() {
    let content = bytes(1000);
    let server = Server::new(&[("m.gguf", &content)]);
    let cache = Cache::new();
    let path = cache.pull(&server, REPO).unwrap().path;
    fs::write(cache.path(&format!("{FOLDER}/blobs/{}", sha256(&content))), "short").unwrap();
    assert_eq!(cache.pull(&server, REPO).unwrap().path, path);
    assert_eq!(fs::read(path).unwrap(), content);
}

#[test]
fn a_hub_that_is_busy_is_asked_again() {
    let server = Server::new(&[("m.gguf", b"content")]);
    server.set(|state| state.num_unavailable = 2);
    Cache::new().pull(&server, REPO).unwrap();
    server.set(|state| state.num_unavailable = usize::MAX);
    let error = Cache::new().pull(&server, REPO).unwrap_err();
    assert!(matches!(error, HubError::Status { status: 503, .. }), "{error}");
}

#[test]
fn two_pulls_of_one_file_fetch_it_once() {
    let content = bytes(3_000_000);
    let server = Server::new(&[("m.gguf", &content)]);
    let cache = Cache::new();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let path = cache.pull(&server, REPO).unwrap().path;
                assert_eq!(fs::read(path).unwrap(), content);
            });
        }
    });
    let num_fetched = server.requests().iter().filter(|r| r.host == "storage").count();
    assert_eq!(num_fetched, 1);
    assert_eq!(cache.files().len(), 3);
}

#[test]
fn a_revision_is_noted_under_its_name() {
    let server = Server::new(&[("m.gguf", b"content")]);
    let cache = Cache::new();
    cache.pull_with(&server, REPO, "refs/pr/1", RETRY).0.unwrap();
    let noted = fs::read_to_string(cache.path(&format!("{FOLDER}/refs/refs/pr/1"))).unwrap();
    assert_eq!(noted, COMMIT);
    cache.pull_with(&server, REPO, COMMIT, RETRY).0.unwrap();
    assert!(!cache.path(&format!("{FOLDER}/refs/{COMMIT}")).exists());
    assert!(cache.hub().find(&REPO.parse().unwrap()).unwrap().is_some());
}
