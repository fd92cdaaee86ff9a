//! `cargo xtask embed`: `examples/embed` as a program of somebody else, in a directory outside of the repository.

use crate::process;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{fs, path::Path, process::Command};

/// The tiny model that it runs, with what `transformers` makes of it.
const GOLDEN: &str = "tests/goldens/llama-gqa";

/// Tokens that the example generates.
const NUM_TOKENS: usize = 8;

/// Copies the example out of the repository, builds it, and compares what it prints with the golden.
pub fn run() -> Result<()> {
    let dir = tempfile::Builder::new().prefix("halfwarp-embed").tempdir()?;
    copy(dir.path())?;
    check(dir.path())
}

/// Writes the example to `dir`, with paths into the repository, its toolchain, and the versions that it has locked.
fn copy(dir: &Path) -> Result<()> {
    let repository = process::repository();
    let example = repository.join("examples/embed");
    fs::create_dir_all(dir.join("src"))?;
    let manifest = fs::read_to_string(example.join("Cargo.toml"))?;
    let root = repository.display();
    // Without its profile, which comes last: it is built in that of the repository.
    let (manifest, _) = manifest.split_once("[profile").context("no profile in the manifest")?;
    fs::write(dir.join("Cargo.toml"), manifest.replace("\"../../", &format!("\"{root}/")))?;
    fs::copy(example.join("src/main.rs"), dir.join("src/main.rs"))?;
    for name in ["Cargo.lock", "rust-toolchain.toml"] {
        fs::copy(repository.join(name), dir.join(name))?;
    }
    Ok(())
}

fn check(dir: &Path) -> Result<()> {
    let golden = Golden::read(&process::repository().join(GOLDEN))?;
    let target_dir = process::target_dir()?;
    process::show(&mut process::guest_cargo(dir, "build")?)?;
    let mut example = Command::new(target_dir.join("debug/embed"));
    example.arg(process::repository().join(GOLDEN));
    example.args(golden.prompt.iter().map(i32::to_string));
    let printed = process::capture(&mut example)?.stdout;
    let tokens = &golden.tokens[..NUM_TOKENS];
    let expected =
        format!("generated {tokens:?}\nmost likely {}\nbeside another {tokens:?}\n", tokens[0]);
    ensure!(
        printed == expected,
        "the example printed\n{printed}and should have printed\n{expected}"
    );
    eprintln!("{printed}as it should be");
    Ok(())
}

/// A greedy continuation by `transformers`.
struct Golden {
    prompt: Vec<i32>,
    tokens: Vec<i32>,
}

impl Golden {
    fn read(dir: &Path) -> Result<Golden> {
        let path = dir.join("expected.safetensors");
        let file = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let tensor = |name| i32_tensor(&file, name).with_context(|| format!("no {name}"));
        Ok(Golden { prompt: tensor("greedy_prompt")?, tokens: tensor("greedy_tokens")? })
    }
}

/// The elements of a tensor of a safetensors file: the header's length in 8 bytes, the header, the data.
fn i32_tensor(file: &[u8], name: &str) -> Option<Vec<i32>> {
    let (len, rest) = file.split_first_chunk()?;
    let (header, data) = rest.split_at_checked(u64::from_le_bytes(*len) as usize)?;
    let header: Value = serde_json::from_slice(header).ok()?;
    let offset = |i: usize| Some(header.get(name)?["data_offsets"][i].as_u64()? as usize);
    let (elems, _) = data.get(offset(0)?..offset(1)?)?.as_chunks();
    Some(elems.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect())
}
