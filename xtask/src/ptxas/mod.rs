//! `cargo xtask ptxas`: runs NVIDIA's assembler on every kernel of the repository, for each of its targets.
//!
//! A kernel must use no local memory and no stack, spill no registers and cause none of the assembler's performance
//! warnings (C75xx, such as a serialised `wgmma`), its threads must reach convergent instructions together, and its
//! machine code must have the instructions that it was written for. No GPU is needed. Each check must first detect a planted fault.

mod built;
mod convergence;
mod local_memory;
mod machine_code;
mod planted;
mod report;
pub mod tools;

use crate::{process, setup};
use anyhow::{Result, bail};
use built::Kernel;
use std::{collections::BTreeSet, fs, path::Path, process::Command};
use tools::Tools;

/// Assembles every kernel for every target and reports every fault.
pub fn run() -> Result<()> {
    let cache = setup::open_cache()?;
    let tools = Tools::provide(&cache)?;
    let work = cache.work_dir()?;
    planted::check(&tools, work.path())?;
    let kernels = built::kernels()?;
    let mut all = Vec::new();
    for kernel in &kernels {
        let Kernel { symbol, target, .. } = kernel;
        let found = faults(&tools, kernel, work.path())?;
        eprintln!("{symbol} {target}: {}", if found.is_empty() { "ok" } else { "FAULTS" });
        all.extend(found.into_iter().map(|fault| format!("{symbol} {target}: {fault}")));
    }
    let symbols: BTreeSet<&str> = kernels.iter().map(|kernel| &*kernel.symbol).collect();
    all.extend(machine_code::stale_entries(&symbols));
    if !all.is_empty() {
        bail!("faults in the kernels' code:\n  {}", all.join("\n  "));
    }
    Ok(())
}

/// The faults of a kernel's PTX and of its machine code, which is written to the directory `work`.
fn faults(tools: &Tools, kernel: &Kernel, work: &Path) -> Result<Vec<String>> {
    let Kernel { symbol, target, path } = kernel;
    let cubin = work.join(format!("{symbol}.{target}.cubin"));
    let mut assemble = Command::new(&tools.ptxas);
    assemble.args(["-v", "-arch", target]).arg(path).arg("-o").arg(&cubin);
    let mut faults = report::faults(&process::capture(&mut assemble)?.stderr);
    let ptx = fs::read_to_string(path)?;
    faults.extend(local_memory::fault(&ptx));
    faults.extend(convergence::faults(&ptx));
    let code = process::capture(Command::new(&tools.nvdisasm).arg(&cubin))?.stdout;
    faults.extend(machine_code::faults(symbol, &code));
    Ok(faults)
}
