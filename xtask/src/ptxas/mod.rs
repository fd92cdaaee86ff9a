//! `cargo xtask ptxas`: runs NVIDIA's assembler on every kernel of the repository, for each of its targets.
//!
//! The rules are those of the crate `machine_code`: no local memory, no stack, no spilled registers, none of the
//! assembler's performance warnings (C75xx, such as a serialised `wgmma`), convergent instructions that the threads reach
//! together, and the instructions that a kernel was written for. No GPU is needed. Each rule must first detect a planted fault.

mod built;
pub mod tools;

use crate::{process, setup};
use anyhow::{Result, bail};
use built::Kernel;
use machine_code::{Tools, planted};
use std::{collections::BTreeSet, fs};

/// Assembles every kernel for every target and reports every fault.
pub fn run() -> Result<()> {
    let tools = tools::provide(&setup::open_cache()?)?;
    let checked = planted::check(&tools);
    process::check_interrupt()?;
    checked?;
    let kernels = built::kernels()?;
    let mut all = Vec::new();
    for kernel in &kernels {
        let Kernel { symbol, target, .. } = kernel;
        let found = faults(&tools, kernel)?;
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

/// The faults of a kernel's PTX and of its machine code.
fn faults(tools: &Tools, Kernel { symbol, target, path }: &Kernel) -> Result<Vec<String>> {
    let ptx = fs::read_to_string(path)?;
    let assembled = tools.assemble(&ptx, target);
    process::check_interrupt()?;
    Ok(machine_code::faults(symbol, &ptx, Some(&assembled?)))
}
