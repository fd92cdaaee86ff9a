//! Builders of valid and invalid files.

use std::path::{Path, PathBuf};

use halfwarp::weights::{Checkpoint, WeightsError};
use tempfile::TempDir;

/// The repository's `tests` directory.
pub fn tests_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

/// The parts of a GGUF file, written unchecked.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub num_tensors: u64,
    pub num_pairs: u64,
    pub pairs: Vec<u8>,
    pub tensors: Vec<u8>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

impl Gguf {
    pub fn new() -> Self {
        Gguf {
            version: 3,
            num_tensors: 0,
            num_pairs: 0,
            pairs: Vec::new(),
            tensors: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }

    /// Adds a pair of metadata; `value` as encoded in the file.
    pub fn pair(mut self, key: &str, type_id: u32, value: &[u8]) -> Self {
        self.num_pairs += 1;
        self.pairs.extend([&string(key), &type_id.to_le_bytes()[..], value].concat());
        self
    }

    /// Adds a description of a tensor; `dims` innermost first, as in the file.
    pub fn describe(mut self, name: &str, dims: &[u64], type_id: u32, offset: u64) -> Self {
        self.num_tensors += 1;
        self.tensors.extend(string(name));
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        self.tensors.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        self.tensors.extend(type_id.to_le_bytes());
        self.tensors.extend(offset.to_le_bytes());
        self
    }

    /// Adds a tensor with its data.
    pub fn tensor(mut self, name: &str, dims: &[u64], type_id: u32, data: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend(data);
        self.describe(name, dims, type_id, offset)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.num_tensors.to_le_bytes());
        bytes.extend(self.num_pairs.to_le_bytes());
        bytes.extend(&self.pairs);
        bytes.extend(&self.tensors);
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(&self.data);
        bytes
    }

    pub fn open(&self) -> Checkpoint {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("model.gguf");
        std::fs::write(&path, self.bytes()).unwrap();
        Checkpoint::open(path).unwrap()
    }
}

/// A string as GGUF encodes it.
pub fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A safetensors file with this header, whatever it says.
pub fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// Opens a directory of these files and an empty `config.json`.
pub fn open_dir(files: &[(&str, Vec<u8>)]) -> Result<Checkpoint, WeightsError> {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("config.json"), "{}").unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    Checkpoint::open(dir.path())
}

/// The bytes of these values.
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Asserts that a result is this error, and that its message is at most two lines with these words
/// in it.
macro_rules! assert_error {
    ($result:expr, $pattern:pat, $($word:expr),+) => {
        match $result {
            Err(error @ $pattern) => {
                let message = error.to_string();
                assert!(message.lines().count() <= 2 && message.len() < 400, "{message}");
                $(assert!(message.contains($word), "no {:?} in: {message}", $word);)+
            }
            other => panic!("should be {}, is {other:?}", stringify!($pattern)),
        }
    };
}
pub(crate) use assert_error;
