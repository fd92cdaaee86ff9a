//! `cargo xtask ptxas`: NVIDIA's assembler on every kernel that the binary holds, for every target.
//!
//! A kernel must use no stack, spill no register and draw none of the assembler's performance warnings (C75xx, such
//! as a serialised `wgmma`). No GPU is needed.

use crate::{
    process,
    setup::{Cache, wheel},
};
use anyhow::{Context, Result, bail, ensure};
use cuda_builder::Arch;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const PACKAGE: &str = "nvidia-cuda-nvcc";
const VERSION: &str = "13.0.88";
const TARGETS: [Arch; 2] = [Arch::Sm80, Arch::Sm90a];

/// Assembles every kernel for every target and reports every fault.
pub fn run() -> Result<()> {
    let cache = Cache::open()?;
    let ptxas = provide(&cache).context("ptxas")?;
    let work = cache.work_dir()?;
    let list = process::capture(halfwarp()?.arg("list"))?.stdout;
    let kernels = kernels(&list);
    ensure!(!kernels.is_empty(), "halfwarp ptx list names no kernel:\n{list}");
    let mut faults = Vec::new();
    for target in TARGETS.map(Arch::target) {
        for kernel in &kernels {
            let show = ["show", kernel, "--target", target];
            let text = process::capture(halfwarp()?.args(show))?.stdout;
            let path = work.path().join(format!("{kernel}.{target}.ptx"));
            fs::write(&path, text)?;
            let report = assemble(&ptxas, &path, target)?;
            let found = check(&report);
            eprintln!("{kernel} {target}: {}", if found.is_empty() { "ok" } else { "FAULTS" });
            faults.extend(found.into_iter().map(|fault| format!("{kernel} {target}: {fault}")));
        }
    }
    if !faults.is_empty() {
        bail!("ptxas finds faults in the kernels:\n  {}", faults.join("\n  "));
    }
    Ok(())
}

/// The assembler in the cache, fetched when it isn't there.
fn provide(cache: &Cache) -> Result<PathBuf> {
    let path = cache.dir().join("ptxas").join(VERSION).join("ptxas");
    if !path.exists() {
        eprintln!("ptxas: fetching {PACKAGE} {VERSION}");
        let work = cache.work_dir()?;
        let unpacked = wheel::fetch(&format!("{PACKAGE}=={VERSION}"), work.path())?;
        let ptxas = wheel::find(&unpacked, "bin/ptxas")?;
        make_executable(&ptxas)?;
        work.keep(&ptxas, &path)?;
    }
    Ok(path)
}

/// Python's zipfile drops the mode.
fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// `halfwarp ptx`, built when it has to be.
fn halfwarp() -> Result<Command> {
    let mut cargo = process::cargo()?;
    cargo.args(["run", "--quiet", "--package", "halfwarp", "--bin", "halfwarp", "--", "ptx"]);
    Ok(cargo)
}

/// The kernels in the output of `halfwarp ptx list`: its first column, after the line of titles.
fn kernels(list: &str) -> Vec<&str> {
    list.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect()
}

fn assemble(ptxas: &Path, ptx: &Path, target: &str) -> Result<String> {
    let cubin = ptx.with_extension("cubin");
    let mut command = Command::new(ptxas);
    command.args(["-v", "-arch", target]).arg(ptx).arg("-o").arg(cubin);
    Ok(process::capture(&mut command)?.stderr)
}

/// What is wrong in the assembler's report, kernel by kernel.
fn check(report: &str) -> Vec<String> {
    const NO_STACK: &str = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
    let mut faults = Vec::new();
    let mut function = "";
    for line in report.lines().map(str::trim) {
        if let Some((_, name)) = line.split_once("Function properties for ") {
            function = name;
        } else if line.contains("bytes stack frame") && line != NO_STACK {
            faults.push(format!("{function}: {line}"));
        } else if line.contains("(C75") {
            faults.push(line.to_owned());
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_report_has_no_faults() {
        let report = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'argmax_f32' for 'sm_90a'\n\
            ptxas info    : Function properties for argmax_f32\n    \
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 26 registers, used 1 barriers, 256 bytes smem\n";
        assert!(check(report).is_empty());
    }

    #[test]
    fn spills_stack_and_warnings_are_faults() {
        let report = "ptxas info    : Function properties for gemm_f16\n    \
            16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n\
            ptxas info    : (C7518) Potential Performance Loss: wgmma.mma_async instructions are \
            serialized due to warpgroup-arrive not uniform in the function 'gemm_f16'\n";
        let faults = check(report);
        assert_eq!(faults.len(), 2);
        assert!(faults[0].starts_with("gemm_f16: 16 bytes stack frame"));
        assert!(faults[1].contains("(C7518)"));
    }

    #[test]
    fn kernels_are_the_first_column() {
        let list = "KERNEL  FAMILY  THREADS\ngemm_f32_a  gemm  256\nargmax_f32  sampling  256\n";
        assert_eq!(kernels(list), ["gemm_f32_a", "argmax_f32"]);
    }
}
