//! Compiles the kernels to PTX for every target, and writes the table that `src/ptx.rs` includes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use cuda_builder::ptx::Kernel;
use cuda_builder::{BuildError, Ptx};

fn main() -> ExitCode {
    cuda_builder::finish(build())
}

fn build() -> Result<(), BuildError> {
    println!("cargo::rerun-if-changed=build.rs");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = cuda_builder::build_all("../kernels", &out_dir)?;
    let path = out_dir.join("ptx_table.rs");
    fs::write(&path, table(&out_dir, &built))
        .map_err(|error| BuildError::Io { what: path.display().to_string(), error })
}

/// The targets as an expression of type `[Target; 2]`.
fn table(out_dir: &Path, built: &[Ptx]) -> String {
    let mut rust = String::from("[\n");
    for ptx in built {
        let _ = writeln!(rust, "Target {{ name: {:?}, kernels: &[", ptx.arch.target());
        for Kernel { symbol, family, max_threads, min_blocks, cluster, .. } in &ptx.kernels {
            let path = ptx.arch.text_path(out_dir, symbol);
            let _ = writeln!(
                rust,
                "    Kernel {{ symbol: {symbol:?}, family: {family:?}, max_threads: {max_threads}, \
                 min_blocks: {min_blocks}, cluster: {cluster:?}, text: include_str!({path:?}) }},"
            );
        }
        rust.push_str("] },\n");
    }
    rust.push_str("]\n");
    rust
}
