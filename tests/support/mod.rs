//! What integration tests and benches share: where the data is, and what there is to run on.

#![allow(dead_code)] // each of them uses its part

use halfwarp::exec::Device;
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};

/// The folder `tests`, also where the binary has been carried to another machine: `$HALFWARP_TEST_DATA`, else the
/// repository's, else that of the current directory.
pub fn data_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("HALFWARP_TEST_DATA") {
        return dir.into();
    }
    let in_repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests");
    if in_repository.is_dir() { in_repository } else { "tests".into() }
}

/// SmolLM2-135M-Instruct in the model cache, if it was fetched.
pub fn smollm2() -> Option<PathBuf> {
    let file = model_cache::DEFAULT.path(&model_cache::cache_dir().ok()?);
    file.is_file().then_some(file)
}

/// Every executor, by name, and whether this machine has it.
pub fn devices() -> [(&'static str, Device, bool); 3] {
    [("cpu", Device::Cpu), ("cuda", Device::Cuda(0)), ("emulated", Device::Emulated)]
        .map(|(name, device)| (name, device, device.free_memory().is_ok()))
}

/// Whether what shows no kernel that others do not runs too: as `cargo xtask emulate` asks by
/// `HALFWARP_EMULATE_ALL`.
pub fn runs_all() -> bool {
    std::env::var_os("HALFWARP_EMULATE_ALL").is_some()
}

/// Tensor `name` of a golden's `expected.safetensors`.
pub fn expected<T>(dir: &Path, name: &str, from_le_bytes: impl Fn([u8; 4]) -> T) -> Vec<T> {
    let bytes = std::fs::read(dir.join("expected.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let data = tensors.tensor(name).unwrap().data();
    data.as_chunks().0.iter().map(|&bytes| from_le_bytes(bytes)).collect()
}
