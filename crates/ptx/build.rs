//! Compiles the kernels to PTX for every target, and writes the compressed texts and the table of them that `src/lib.rs`
//! includes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use cuda_builder::ptx::Kernel;
use cuda_builder::{BuildError, Ptx};
use miniz_oxide::deflate::compress_to_vec;

/// Compression level of deflate, where 10 is the most.
const LEVEL: u8 = 7;

fn main() -> ExitCode {
    cuda_builder::finish(build())
}

fn build() -> Result<(), BuildError> {
    println!("cargo::rerun-if-changed=build.rs");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = cuda_builder::build_all("../../kernels", &out_dir)?;
    let (mut texts, mut table) = (Vec::new(), String::from("[\n"));
    for ptx in &built {
        write_target(&mut texts, &mut table, &out_dir, ptx)?;
    }
    table.push_str("]\n");
    write(&out_dir.join("texts.deflate"), &texts)?;
    write(&out_dir.join("table.rs"), table.as_bytes())
}

/// Appends the kernels of a target to the texts and, as an expression of type `KernelSet`, to the table.
fn write_target(
    texts: &mut Vec<u8>,
    table: &mut String,
    out_dir: &Path,
    ptx: &Ptx,
) -> Result<(), BuildError> {
    let _ = writeln!(table, "KernelSet {{ name: {:?}, kernels: &[", ptx.arch.name());
    for Kernel { symbol, family, max_threads, min_blocks, cluster, .. } in &ptx.kernels {
        let path = ptx.text_path(out_dir, symbol);
        let text = fs::read(&path).map_err(|error| io(&path, error))?;
        let start = texts.len();
        texts.extend(compress_to_vec(&text, LEVEL));
        let (end, len) = (texts.len(), text.len());
        let _ = writeln!(
            table,
            "    Kernel {{ symbol: {symbol:?}, family: {family:?}, max_threads: {max_threads}, \
             min_blocks: {min_blocks}, cluster: {cluster:?}, place: ({start}, {end}), len: {len} }},"
        );
    }
    table.push_str("] },\n");
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), BuildError> {
    fs::write(path, bytes).map_err(|error| io(path, error))
}

fn io(path: &Path, error: std::io::Error) -> BuildError {
    BuildError::Io { what: path.display().to_string(), error }
}
