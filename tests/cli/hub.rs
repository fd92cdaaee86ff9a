//! Models of a hub in this process: pulled, listed, opened by their name, removed.

use crate::{
    hub_server::{COMMIT, REPO, Server},
    support::{LLAMA, halfwarp, stderr},
};
use std::{fs, path::Path, process::Output};
use tempfile::TempDir;

/// A hub with a golden model in safetensors.
fn server() -> Server {
    let file = |name: &str| fs::read(Path::new(LLAMA).join(name)).unwrap();
    Server::new(&[
        ("README.md", b"no"),
        ("config.json", &file("config.json")),
        ("model.safetensors", &file("model.safetensors")),
        ("pytorch_model.bin", b"no"),
    ])
}

/// A command with caches of its own.
fn run(server: &Server, cache: &TempDir, args: &[&str]) -> Output {
    let mut command = halfwarp(args);
    for name in ["HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    command
        .env("HF_ENDPOINT", &server.url)
        .env("HF_HOME", cache.path())
        .env("HALFWARP_CACHE", cache.path())
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

const GENERATE: &[&str] = &[
    "generate",
    "--device",
    "cpu",
    "--tokens",
    "1,2,3",
    "-n",
    "4",
    "--ignore-eos",
    "--temp",
    "0",
    "--output-format",
    "json",
];

#[test]
fn a_model_is_pulled_listed_opened_and_removed() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    let run = |args: &[&str]| run(&server, &cache, args);
    let open = |option: &str| run(&[GENERATE, &[option, REPO]].concat());

    let missing = open("-m");
    assert_eq!(missing.status.code(), Some(2));
    assert!(stderr(&missing).contains("halfwarp pull org/model"), "{}", stderr(&missing));
    assert!(stderr(&run(&["list"])).contains("halfwarp pull"));

    let pulled = run(&["pull", REPO]);
    let dir = cache.path().join("hub/models--org--model/snapshots").join(COMMIT);
    assert_eq!(stdout(&pulled), format!("{}\n", dir.display()));
    assert!(stderr(&pulled).contains("model.safetensors is verified by its SHA-256"));
    assert!(!dir.join("pytorch_model.bin").exists());

    let list = stdout(&run(&["list"]));
    let row: Vec<_> = list.lines().nth(1).unwrap().split("  ").filter(|s| !s.is_empty()).collect();
    assert_eq!((row[0], row[1]), (REPO, "main 0123456"), "{list}");
    assert_eq!(row.last().unwrap().trim(), dir.to_str().unwrap());

    let tokens = |output: &Output| {
        let json: serde_json::Value = serde_json::from_str(&stdout(output)).unwrap();
        json["tokens"].clone()
    };
    let want = tokens(&run(&[GENERATE, &["-m", LLAMA]].concat()));
    server.requests();
    for option in ["-m", "-hf", "--hf", "--hf-repo"] {
        assert_eq!(tokens(&open(option)), want, "{option}");
    }
    assert_eq!(server.requests().len(), 0, "what is in the cache needs no hub");

    let unasked = run(&["rm", REPO]);
    assert_eq!(unasked.status.code(), Some(2));
    assert!(stderr(&unasked).contains("--yes") && dir.exists(), "{}", stderr(&unasked));
    let removed = run(&["rm", "--yes", REPO]);
    stdout(&removed);
    assert!(stderr(&removed).contains("models--org--model"), "{}", stderr(&removed));
    assert!(!cache.path().join("hub/models--org--model").exists());
    for name in [REPO, "../hub", "models--org--model", "org/model:q4_k_m"] {
        assert_eq!(run(&["rm", "--yes", name]).status.code(), Some(2), "{name}");
    }

    // llama.cpp's way: what is not there is pulled.
    assert_eq!(tokens(&open("-hf")), want);
    assert!(dir.exists());
}

#[test]
fn what_cannot_be_pulled_is_said_in_two_lines() {
    let (server, cache) = (server(), tempfile::tempdir().unwrap());
    let refuses = |args: &[&str], code: i32, expected: &str| {
        let output = run(&server, &cache, args);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(expected) && message.lines().count() <= 2, "{message}");
    };
    refuses(&["pull", "no-such-form"], 2, "ORG/NAME");
    refuses(&["pull", "org/other"], 2, "no model org/other");
    refuses(&["pull", "org/model:q4_k_m"], 2, "no GGUF file q4_k_m");
    refuses(&["pull", REPO, "--revision", "v2"], 2, "no revision `v2`");
    refuses(&["pull", REPO, "--revision", "../main"], 2, "not a revision");
    refuses(&[GENERATE, &["-m", LLAMA, "-hf", REPO]].concat(), 2, "--hf");
    server.set(|state| state.status = Some((401, "GatedRepo")));
    refuses(&["pull", REPO], 2, "HF_TOKEN");
    server.set(|state| state.status = None);
    server.put("../evil.gguf", b"evil");
    refuses(&["pull", REPO], 1, "nothing is fetched");
    assert!(!cache.path().join("hub").exists());
}
