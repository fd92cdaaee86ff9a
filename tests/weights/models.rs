//! Finding a model by its path, and the errors where there is none.

use crate::files::{assert_error, open_dir, tests_dir};
use halfwarp::models::{ResolveError, resolve};
use halfwarp::weights::{Checkpoint, WeightsError};
use halfwarp::{Model, OpenError, Text, TextError};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// What Git LFS leaves in a checkout that was made without it.
const POINTER: &str = "version https://git-lfs.github.com/spec/v1\n\
                       oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n\
                       size 988097824\n";

/// A directory of these empty files.
fn dir_of(names: &[&str]) -> TempDir {
    let dir = TempDir::new().unwrap();
    for name in names {
        fs::write(dir.path().join(name), "").unwrap();
    }
    dir
}

#[test]
fn files_and_hugging_face_directories_are_themselves() {
    for path in ["goldens/gguf/qwen3.gguf", "goldens/llama-gqa", "goldens/phi3"] {
        let path = tests_dir().join(path);
        assert_eq!(resolve(&path).unwrap(), path);
    }
    let both = dir_of(&["model.safetensors", "a.gguf", "b.gguf"]);
    assert_eq!(resolve(both.path()).unwrap(), both.path());
}

#[test]
fn a_directory_with_one_gguf_file_is_that_file() {
    for name in ["model.gguf", "MODEL.GGUF"] {
        let dir = dir_of(&["README.md", name, "config.json"]);
        assert_eq!(resolve(dir.path()).unwrap(), dir.path().join(name));
    }
    let none = dir_of(&["README.md"]);
    assert_eq!(resolve(none.path()).unwrap(), none.path());
    assert_error!(Checkpoint::open(none.path()), WeightsError::NoModel { .. }, "a GGUF file");
}

#[test]
fn a_model_is_opened_by_what_resolves() {
    let dir = TempDir::new().unwrap();
    let file = tests_dir().join("goldens/gguf/qwen3.gguf");
    fs::copy(&file, dir.path().join("qwen3.gguf")).unwrap();
    assert_eq!(Model::open(dir.path()).unwrap().config(), Model::open(&file).unwrap().config());
    let unknown = Model::open("no-such-model").unwrap_err();
    assert!(matches!(unknown, OpenError::Resolve(ResolveError::NotFound { .. })), "{unknown}");
}

#[test]
fn a_tokenizer_of_another_form_is_named() {
    for name in ["tokenizer.model", "tekken.json"] {
        let dir = TempDir::new().unwrap();
        for entry in fs::read_dir(tests_dir().join("goldens/llama-gqa")).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
        }
        assert_eq!(Model::open(dir.path()).unwrap().no_text(), "this model has no tokenizer");
        fs::write(dir.path().join(name), "x").unwrap();
        let model = Model::open(dir.path()).unwrap();
        assert!(model.text().is_none());
        assert!(model.no_text().contains(&format!("no tokenizer.json, only {name}")));
    }
}

#[test]
fn a_directory_with_several_gguf_files_names_them() {
    let two = dir_of(&["b.gguf", "a.gguf"]);
    assert_error!(
        resolve(two.path()),
        ResolveError::Several { .. },
        "2 .gguf",
        "`a.gguf`, `b.gguf`"
    );
    let names: Vec<_> = (10..30).map(|number| format!("{number}.gguf")).collect();
    let many = dir_of(&names.iter().map(|name| &name[..]).collect::<Vec<_>>());
    assert_error!(
        resolve(many.path()),
        ResolveError::Several { .. },
        "20 .gguf",
        "`10.gguf`",
        ", .."
    );
}

#[test]
fn what_is_not_there_is_said_with_the_names_that_could_be_meant() {
    for name in ["no-such-model", "/nowhere/at/all", ""] {
        let smollm2 = "smollm2-135m-instruct";
        assert_error!(resolve(name), ResolveError::NotFound { .. }, "no such file", name, smollm2);
    }
}

#[test]
#[cfg(unix)]
fn the_systems_own_error_is_passed_on() {
    use std::os::unix::fs::symlink;

    let dir = dir_of(&["file"]);
    let path = |name: &str| dir.path().join(name);
    symlink(path("loop"), path("loop")).unwrap();
    symlink(path("gone"), path("dangling")).unwrap();
    let inside_a_file = resolve(path("file/model.gguf"));
    assert_error!(inside_a_file, ResolveError::Io { .. }, "Not a directory");
    let inside_a_loop = resolve(path("loop/model.gguf"));
    assert_error!(inside_a_loop, ResolveError::Io { .. }, "symbolic link", "loop/model.gguf");
    assert_error!(resolve(path("loop")), ResolveError::Io { .. }, "symbolic link");
    assert_error!(resolve(path("dangling")), ResolveError::Io { .. }, "link to", "gone", "No such");
    assert_error!(resolve("x".repeat(300)), ResolveError::Io { .. }, "name too long");

    symlink(path("model.safetensors"), path("model.safetensors")).unwrap();
    assert_error!(Checkpoint::open(dir.path()), WeightsError::Io { .. }, "symbolic link");
}

#[test]
fn a_git_lfs_pointer_is_recognised() {
    let pointer = || POINTER.as_bytes().to_vec();
    let advice = "git lfs pull";
    let weights = open_dir(&[("model.safetensors", pointer())]);
    assert_error!(weights, WeightsError::LfsPointer { .. }, "model.safetensors", advice);
    let index = open_dir(&[("model.safetensors.index.json", pointer())]);
    assert_error!(index, WeightsError::Io { .. }, "index.json", advice);
    let shards = open_dir(&[
        ("model.safetensors.index.json", br#"{"weight_map":{"a":"1.safetensors"}}"#.to_vec()),
        ("1.safetensors", pointer()),
    ]);
    assert_error!(shards, WeightsError::LfsPointer { .. }, "1.safetensors", advice);

    let dir = TempDir::new().unwrap();
    let write = |name: &str| {
        let path = dir.path().join(name);
        fs::write(&path, POINTER).unwrap();
        path
    };
    let gguf = Checkpoint::open(write("model.gguf"));
    assert_error!(gguf, WeightsError::LfsPointer { .. }, "model.gguf", advice);
    write("tokenizer.json");
    let tokenizer = Text::from_dir(Path::new(dir.path()));
    assert_error!(tokenizer, TextError::Read { .. }, "tokenizer.json", advice);
}
