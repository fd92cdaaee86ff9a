//! `cargo xtask ptxas`: NVIDIA's assembler on every kernel of the repository, for every target that it exists for.
//!
//! A kernel must use no stack, spill no register and draw none of the assembler's performance warnings (C75xx, such
//! as a serialised `wgmma`), and its machine code must hold the instructions that it was written for. No GPU is needed.

mod built;
mod machine_code;
mod report;
mod tools;

use crate::{process, setup::Cache};
use anyhow::{Result, bail};
use built::Kernel;
use std::{collections::BTreeSet, process::Command};
use tools::Tools;

/// Assembles every kernel for every target and reports every fault.
pub fn run() -> Result<()> {
    let cache = Cache::open()?;
    let tools = Tools::provide(&cache)?;
    let work = cache.work_dir()?;
    let kernels = built::kernels()?;
    let mut faults = Vec::new();
    for Kernel { symbol, target, path } in &kernels {
        let cubin = work.path().join(format!("{symbol}.{target}.cubin"));
        let mut assemble = Command::new(&tools.ptxas);
        assemble.args(["-v", "-arch", target]).arg(path).arg("-o").arg(&cubin);
        let mut found = report::faults(&process::capture(&mut assemble)?.stderr);
        let code = process::capture(Command::new(&tools.nvdisasm).arg(&cubin))?.stdout;
        found.extend(machine_code::faults(symbol, &code));
        eprintln!("{symbol} {target}: {}", if found.is_empty() { "ok" } else { "FAULTS" });
        faults.extend(found.into_iter().map(|fault| format!("{symbol} {target}: {fault}")));
    }
    let symbols: BTreeSet<&str> = kernels.iter().map(|kernel| &*kernel.symbol).collect();
    faults.extend(machine_code::stale_entries(&symbols));
    if !faults.is_empty() {
        bail!("faults in the kernels' machine code:\n  {}", faults.join("\n  "));
    }
    Ok(())
}
