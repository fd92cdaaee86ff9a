//! The kernels of the repository, as the packages that embed them build them.

use super::lock::Key;
use crate::process;
use crate::tools::programs::sha256;
use anyhow::{Result, bail, ensure};
use cuda_builder::{Arch, CudaBuilder, Ptx};
use std::{path::Path, thread};

/// The device crates, each in its directory.
const CRATES: [&str; 2] = ["kernels", "crates/conformance/kernels"];

/// A kernel for a target.
pub struct Kernel {
    /// The target and the PTX entry.
    pub key: Key,
    /// SHA-256 of its PTX, in hex.
    pub hash: String,
    /// PTX of the kernel.
    pub ptx: String,
}

impl Kernel {
    /// The kernel `symbol` for `target`.
    pub fn new(target: &str, symbol: &str, ptx: String) -> Self {
        let key = Key { target: target.to_owned(), symbol: symbol.to_owned() };
        Kernel { key, hash: sha256(ptx.as_bytes()), ptx }
    }
}

/// Builds the device crates; returns their kernels for every target, sorted by target and symbol.
pub fn kernels() -> Result<Vec<Kernel>> {
    let mut kernels = Vec::new();
    for dir in CRATES {
        eprintln!("PTX of {dir}");
        let built = build(&process::repository().join(dir))?;
        process::check_interrupt()?;
        for Ptx { arch, kernels: found } in built {
            let target = arch.name();
            ensure!(!found.is_empty(), "no kernel for {target} in {dir}");
            let found = found.into_iter();
            kernels.extend(found.map(|kernel| Kernel::new(target, &kernel.symbol, kernel.text)));
        }
    }
    kernels.sort_by(|a, b| a.key.cmp(&b.key));
    if let Some(pair) = kernels.windows(2).find(|pair| pair[0].key == pair[1].key) {
        bail!("two device crates have a kernel {}", pair[0].key);
    }
    Ok(kernels)
}

/// The crate in `dir` for every target, compiled where the build scripts of the host's crates compile it: after a build of
/// those, nothing is left to do.
fn build(dir: &Path) -> Result<Vec<Ptx>> {
    let target_dir = &process::target_dir()?;
    let build = |arch| CudaBuilder::new(dir).arch(arch).target_dir(target_dir).build();
    thread::scope(|scope| {
        let builds = Arch::ALL.map(|arch| scope.spawn(move || build(arch)));
        builds.into_iter().map(|build| Ok(build.join().expect("a build does not panic")?)).collect()
    })
}
