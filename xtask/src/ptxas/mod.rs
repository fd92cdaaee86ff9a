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
use std::{
    collections::BTreeSet,
    fs,
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Assembles every kernel for every target and reports every fault.
pub fn run() -> Result<()> {
    let tools = tools::provide(&setup::open_cache()?)?;
    let checked = planted::check(&tools);
    process::check_interrupt()?;
    checked?;
    let kernels = built::kernels()?;
    let mut all = faults_of_all(&tools, &kernels)?;
    let symbols: BTreeSet<&str> = kernels.iter().map(|kernel| &*kernel.symbol).collect();
    all.extend(machine_code::stale_entries(&symbols));
    if !all.is_empty() {
        bail!("faults in the kernels' code:\n  {}", all.join("\n  "));
    }
    Ok(())
}

/// The faults of `kernels`, in their order; a thread a processor assembles them.
fn faults_of_all(tools: &Tools, kernels: &[Kernel]) -> Result<Vec<String>> {
    let next = AtomicUsize::new(0);
    let assemble = || -> Result<Vec<(usize, Vec<String>)>> {
        let mut all = Vec::new();
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            let Some(kernel) = kernels.get(idx) else { return Ok(all) };
            let Kernel { symbol, target, .. } = kernel;
            // After an error the other threads take no more kernels.
            let end = |_: &_| next.store(kernels.len(), Ordering::Relaxed);
            let found = faults(tools, kernel).inspect_err(end)?;
            eprintln!("{symbol} {target}: {}", if found.is_empty() { "ok" } else { "FAULTS" });
            let named = found.into_iter().map(|fault| format!("{symbol} {target}: {fault}"));
            all.push((idx, named.collect()));
        }
    };
    let num_threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut all = thread::scope(|scope| {
        let threads: Vec<_> = (0..num_threads).map(|_| scope.spawn(assemble)).collect();
        let results = threads.into_iter().map(|thread| thread.join().expect("a thread panicked"));
        results.collect::<Result<Vec<_>>>()
    })?
    .concat();
    all.sort_by_key(|(idx, _)| *idx);
    Ok(all.into_iter().flat_map(|(_, faults)| faults).collect())
}

/// The faults of a kernel's PTX and of its machine code.
fn faults(tools: &Tools, Kernel { symbol, target, path }: &Kernel) -> Result<Vec<String>> {
    let ptx = fs::read_to_string(path)?;
    let assembled = tools.assemble(&ptx, target);
    process::check_interrupt()?;
    Ok(machine_code::faults(symbol, &ptx, Some(&assembled?)))
}
