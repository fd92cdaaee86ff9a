//! `cargo xtask ptxas`: runs NVIDIA's assembler on the kernels of the repository, for each of their targets, and compares with
//! what `kernels.lock` has of them.
//!
//! The rules are those of the crate `machine_code`: no local memory, no stack, no spilled registers, none of the
//! assembler's performance warnings (C75xx, such as a serialised `wgmma`), convergent instructions that the threads reach
//! together, and the instructions that a kernel was written for. No GPU is needed. Each rule must first detect a planted fault.
//!
//! A kernel whose PTX is that of the lock has passed the same checks before, and is not assembled again.

mod built;
mod lock;
mod rules;
pub mod tools;

use crate::{process, setup};
use anyhow::{Result, bail};
use built::Kernel;
use lock::{Entry, Lock};
use machine_code::{Tools, planted};
use std::{
    collections::BTreeSet,
    fs,
    num::NonZero,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// The lock, in the root of the repository.
const LOCK: &str = "kernels.lock";

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Assemble every kernel, not only those that differ from the lock.
    all: bool,
    /// Write the lock.
    bless: bool,
}

impl Options {
    /// `--all`, `--bless`; `None` if there is anything else.
    pub fn parse(words: &[&str]) -> Option<Self> {
        let mut options = Options::default();
        for word in words {
            match *word {
                "--all" => options.all = true,
                "--bless" => options.bless = true,
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Assembles the kernels that differ from the lock, and reports every fault and every difference.
pub fn run(options: Options) -> Result<()> {
    let path = process::repository().join(LOCK);
    let recorded = match Lock::read(&path) {
        // What cannot be read is of no use.
        Err(_) if options.all && options.bless => Lock::default(),
        read => read?,
    };
    let checks = rules::checks()?;
    let kernels = built::kernels()?;
    let Checked { lock, faults, num_assembled } =
        check(&recorded, &checks, &kernels, options.all, assemble)?;
    if !faults.is_empty() {
        bail!("faults in the kernels' code:\n  {}", faults.join("\n  "));
    }
    let differences = recorded.differences(&lock);
    if options.bless {
        fs::write(&path, lock.to_string())?;
        differences.iter().for_each(|line| eprintln!("{line}"));
    } else if !differences.is_empty() {
        bail!(
            "kernels differ from {LOCK}:\n  {}\n`cargo xtask ptxas --bless` records {} lines",
            differences.join("\n  "),
            differences.len()
        );
    }
    eprintln!("{} kernels as in {LOCK}, {num_assembled} of them assembled", kernels.len());
    let num_other = recorded.num_other_ptx(&lock);
    if num_other > 0 && !options.bless {
        eprintln!("{num_other} of other PTX, which gave as many instructions of each class");
    }
    Ok(())
}

/// What became of the kernels.
struct Checked {
    /// All of them, if none has a fault.
    lock: Lock,
    /// A line each.
    faults: Vec<String>,
    num_assembled: usize,
}

/// A kernel's entry, or its faults.
type Outcome = Result<Entry, Vec<String>>;

/// Lets `assemble` check what `recorded` does not hold, or `all`.
fn check(
    recorded: &Lock,
    checks: &str,
    kernels: &[Kernel],
    all: bool,
    assemble: impl FnOnce(&[&Kernel]) -> Result<Vec<Outcome>>,
) -> Result<Checked> {
    let (kept, changed): (Vec<_>, Vec<_>) =
        kernels.iter().partition(|kernel| !all && recorded.holds(kernel, checks));
    let mut lock = Lock { checks: checks.to_owned(), ..Lock::default() };
    let entries =
        kept.iter().map(|kernel| (kernel.key.clone(), recorded.entries[&kernel.key].clone()));
    lock.entries.extend(entries);
    let mut faults = Vec::new();
    // Without a change no tools are needed, and none are fetched.
    let outcomes = if changed.is_empty() { Vec::new() } else { assemble(&changed)? };
    for (kernel, outcome) in changed.iter().zip(outcomes) {
        match outcome {
            Ok(entry) => drop(lock.entries.insert(kernel.key.clone(), entry)),
            Err(found) => {
                faults.extend(found.iter().map(|fault| format!("{}: {fault}", kernel.key)))
            }
        }
    }
    let symbols: BTreeSet<&str> = kernels.iter().map(|kernel| &*kernel.key.symbol).collect();
    faults.extend(machine_code::stale_entries(&symbols));
    Ok(Checked { lock, faults, num_assembled: changed.len() })
}

/// Assembles `kernels`, after kernels with planted faults; a thread a processor.
fn assemble(kernels: &[&Kernel]) -> Result<Vec<Outcome>> {
    let tools = &tools::provide(&setup::open_cache()?)?;
    let planted = planted::check(tools);
    process::check_interrupt()?;
    planted?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<(usize, Outcome)>> {
        let mut all = Vec::new();
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            let Some(kernel) = kernels.get(idx) else { return Ok(all) };
            // After an error the other threads take no more kernels.
            let end = |_: &_| next.store(kernels.len(), Ordering::Relaxed);
            let outcome = outcome(tools, kernel).inspect_err(end)?;
            eprintln!("{}: {}", kernel.key, if outcome.is_ok() { "ok" } else { "FAULTS" });
            all.push((idx, outcome));
        }
    };
    let num_threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut all = thread::scope(|scope| {
        let threads: Vec<_> = (0..num_threads).map(|_| scope.spawn(work)).collect();
        let results = threads.into_iter().map(|thread| thread.join().expect("a thread panicked"));
        results.collect::<Result<Vec<_>>>()
    })?
    .concat();
    all.sort_by_key(|(idx, _)| *idx);
    Ok(all.into_iter().map(|(_, outcome)| outcome).collect())
}

/// The faults of a kernel's PTX and of its machine code, or else its entry.
fn outcome(tools: &Tools, kernel: &Kernel) -> Result<Outcome> {
    let assembled = tools.assemble(&kernel.ptx, &kernel.key.target);
    process::check_interrupt()?;
    let assembled = assembled?;
    let faults = machine_code::faults(&kernel.key.symbol, &kernel.ptx, Some(&assembled));
    Ok(if faults.is_empty() { Ok(Entry::new(kernel, &assembled)?) } else { Err(faults) })
}

#[cfg(test)]
mod tests;
