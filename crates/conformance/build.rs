//! Compiles the kernels to PTX for every target, and writes the table that `src/ptx.rs` includes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use cuda_builder::{BuildError, Ptx};

fn main() -> ExitCode {
    cuda_builder::finish(build())
}

fn build() -> Result<(), BuildError> {
    println!("cargo::rerun-if-changed=build.rs");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = cuda_builder::build_all("kernels", &out_dir)?;
    let path = out_dir.join("ptx_table.rs");
    fs::write(&path, table(&out_dir, &built))
        .map_err(|error| BuildError::Io { what: path.display().to_string(), error })
}

/// Target, symbol and text of every kernel, as an expression of type `[(&str, &str, &str); N]`.
fn table(out_dir: &Path, built: &[Ptx]) -> String {
    let mut rust = String::from("[\n");
    for ptx in built {
        for kernel in &ptx.kernels {
            let (target, symbol) = (ptx.arch.name(), &kernel.symbol);
            let path = ptx.text_path(out_dir, symbol);
            let _ = writeln!(rust, "    ({target:?}, {symbol:?}, include_str!({path:?})),");
        }
    }
    rust.push_str("]\n");
    rust
}
