//! Compiles the kernels to PTX for every target, and writes the table that `src/ptx.rs` includes.
//! Names the commit.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

use cuda_builder::ptx::Kernel;
use cuda_builder::{BuildError, Ptx};

fn main() -> ExitCode {
    cuda_builder::finish(build())
}

fn build() -> Result<(), BuildError> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=HALFWARP_COMMIT={}", commit());
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let built = cuda_builder::build_all("../kernels", &out_dir)?;
    let path = out_dir.join("ptx_table.rs");
    fs::write(&path, table(&out_dir, &built))
        .map_err(|error| BuildError::Io { what: path.display().to_string(), error })
}

/// The commit that this is built from: `$HALFWARP_COMMIT`, else, with optimisation for release,
/// git's. A debug build is not built again for every commit.
fn commit() -> String {
    println!("cargo::rerun-if-env-changed=HALFWARP_COMMIT");
    let named = env::var("HALFWARP_COMMIT").ok().filter(|name| !name.is_empty());
    let is_release = env::var_os("PROFILE").is_some_and(|profile| profile == "release");
    let found = || if is_release { git_commit() } else { None };
    named.or_else(found).unwrap_or_else(|| "unknown".to_owned())
}

/// The checked-out commit of the repository that this file is tracked in.
fn git_commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // Changes with every commit and checkout.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    if Path::new(&log).is_file() {
        println!("cargo::rerun-if-changed={log}");
    }
    Some(git(&["rev-parse", "HEAD"])?.chars().take(7).collect())
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
