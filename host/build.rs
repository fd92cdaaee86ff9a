//! Compiles the kernels to PTX for every target, and writes the table that `src/ptx.rs` includes.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, thread};

use cuda_builder::ptx::Kernel;
use cuda_builder::{Arch, BuildError, CudaBuilder, Ptx};

const TARGETS: [Arch; 2] = [Arch::Sm80, Arch::Sm90a];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.to_string().lines().for_each(|line| println!("cargo::error={line}"));
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), BuildError> {
    println!("cargo::rerun-if-changed=build.rs");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let compile =
        |arch: Arch| CudaBuilder::new("../kernels").arch(arch).copy_to(dir(&out_dir, arch)).build();
    let built: Vec<Result<Ptx, BuildError>> = thread::scope(|scope| {
        let builds = TARGETS.map(|arch| scope.spawn(move || compile(arch)));
        builds.map(|build| build.join().expect("a build does not panic")).into()
    });
    let built = built.into_iter().collect::<Result<Vec<Ptx>, BuildError>>()?;
    let path = out_dir.join("ptx_table.rs");
    fs::write(&path, table(&out_dir, &built))
        .map_err(|error| BuildError::Io { what: path.display().to_string(), error })
}

/// Where the texts of a target lie.
fn dir(out_dir: &Path, arch: Arch) -> PathBuf {
    out_dir.join(arch.target())
}

/// The targets as an expression of type `[Target; 2]`.
fn table(out_dir: &Path, built: &[Ptx]) -> String {
    let mut rust = String::from("[\n");
    for ptx in built {
        let _ = writeln!(rust, "Target {{ name: {:?}, kernels: &[", ptx.arch.target());
        for Kernel { symbol, family, max_threads, min_blocks, cluster, .. } in &ptx.kernels {
            let path = dir(out_dir, ptx.arch).join(symbol).with_extension("ptx");
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
