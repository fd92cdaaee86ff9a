//! Running the binary, and models made for a test.

use safetensors::SafeTensors;
use serde_json::Value;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};
use tempfile::TempDir;

/// With no tokenizer, as every golden.
pub const LLAMA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");

/// Nothing about this one is rounded: its logits are held to 1e-4.
pub const QWEN3: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/qwen3");

/// A mixture of eight experts, of which a token goes to three.
pub const EXPERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/qwen3-moe");

/// The binary.
pub fn halfwarp(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_halfwarp"));
    command.args(args);
    command
}

/// Runs the binary to its end.
pub fn run(args: &[&str]) -> Output {
    halfwarp(args).output().unwrap()
}

/// Runs the binary to its end, with `input` piped in.
pub fn with_stdin(args: &[&str], input: &str) -> Output {
    let mut command = halfwarp(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // One that ends before it has read all of it closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// Runs the binary, which must succeed, and returns its stdout.
pub fn stdout(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// `generate --output-format json` on the CPU.
pub fn generate_json(args: &[&str]) -> Value {
    let all = [&["generate", "--device", "cpu", "--output-format", "json"], args].concat();
    serde_json::from_str(&stdout(&all)).unwrap()
}

pub fn join(ids: &[i64]) -> String {
    ids.iter().map(i64::to_string).collect::<Vec<_>>().join(",")
}

/// A tensor of token ids in a golden's `expected.safetensors`.
pub fn golden_ids(golden: &str, name: &str) -> Vec<i64> {
    let file = fs::read(Path::new(golden).join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    i32s(tensors.tensor(name).unwrap().data()).map(i64::from).collect()
}

pub fn i32s(bytes: &[u8]) -> impl Iterator<Item = i32> {
    bytes.as_chunks().0.iter().map(|&four| i32::from_le_bytes(four))
}

pub fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect()
}

/// A copy of the golden model, to be spoilt.
pub struct Copy(TempDir);

impl Copy {
    pub fn new() -> Copy {
        let dir = tempfile::tempdir().unwrap();
        for name in ["config.json", "generation_config.json", "model.safetensors"] {
            fs::copy(Path::new(LLAMA).join(name), dir.path().join(name)).unwrap();
        }
        Copy(dir)
    }

    pub fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Changes `config.json`.
    pub fn config(self, change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Copy {
        let path = self.file("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(config.as_object_mut().unwrap());
        fs::write(path, config.to_string()).unwrap();
        self
    }

    /// Changes the bytes of `model.safetensors`.
    pub fn weights(self, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Copy {
        let path = self.file("model.safetensors");
        fs::write(&path, change(fs::read(&path).unwrap())).unwrap();
        self
    }

    /// Changes the header of `model.safetensors`, whose data stays.
    pub fn header(self, change: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Copy {
        self.weights(|bytes| {
            let (len, rest) = bytes.split_first_chunk::<8>().unwrap();
            let (json, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
            let mut header: Value = serde_json::from_slice(json).unwrap();
            change(header.as_object_mut().unwrap());
            let json = header.to_string().into_bytes();
            [&(json.len() as u64).to_le_bytes()[..], &json, data].concat()
        })
    }
}
