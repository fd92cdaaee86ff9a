//! `halfwarp ptx`.

mod check;
mod diff;
mod driver;
mod dump;
mod select;
mod stats;
mod tools;

use super::{failure::Failure, terminal};
use clap::Subcommand;
use halfwarp::ptx::{Kernel, TARGETS};
use std::{collections::BTreeMap, path::PathBuf};

/// The commands of `halfwarp ptx`.
#[derive(Subcommand)]
pub enum Command {
    /// List the kernels with their launch bounds.
    List,
    /// Print the PTX of a kernel.
    Show {
        /// A kernel, as `halfwarp ptx list` names it
        kernel: String,
        /// The device target
        #[arg(long, default_value = "sm_90a")]
        target: String,
    },
    /// Registers, shared memory, spills, occupancy and instruction mix of kernels.
    Stats(stats::StatsArgs),
    /// Write the PTX of every kernel into DIR/TARGET/KERNEL.ptx.
    Dump {
        /// A directory without kernels
        #[arg(value_hint = clap::ValueHint::DirPath)]
        dir: PathBuf,
    },
    /// Compare the kernels of two builds; the exit code is 1 if they differ.
    Diff {
        /// The older build: a directory that `halfwarp ptx dump` wrote
        #[arg(value_hint = clap::ValueHint::DirPath)]
        old: PathBuf,
        /// The newer build [default: this program]
        #[arg(value_hint = clap::ValueHint::DirPath)]
        new: Option<PathBuf>,
    },
    /// Check the rules for PTX and machine code; the exit code is 1 if a kernel breaks one.
    Check(check::CheckArgs),
}

/// Runs a command on the kernels inside this program.
pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::List => terminal::print(&list()),
        Command::Show { kernel, target } => show(kernel, target),
        Command::Stats(args) => stats::run(args),
        Command::Dump { dir } => dump::run(dir),
        Command::Diff { old, new } => diff::run(old, new.as_deref()),
        Command::Check(args) => check::run(args),
    }
}

/// One kernel per line.
fn list() -> String {
    let kernels: BTreeMap<&str, &Kernel> = TARGETS
        .iter()
        .flat_map(|target| target.kernels)
        .map(|kernel| (kernel.symbol, kernel))
        .collect();
    let mut table = row(["KERNEL", "FAMILY", "THREADS", "BLOCKS/SM", "CLUSTER", "TARGETS"]);
    for (symbol, kernel) in kernels {
        let cluster = kernel.cluster.map_or("-".to_owned(), |[x, y, z]| format!("{x}x{y}x{z}"));
        let targets: Vec<_> = TARGETS
            .iter()
            .filter(|target| target.kernel(symbol).is_some())
            .map(|target| target.name)
            .collect();
        table += &row([
            symbol,
            kernel.family,
            &kernel.max_threads.to_string(),
            &kernel.min_blocks.to_string(),
            &cluster,
            &targets.join(","),
        ]);
    }
    table
}

fn row([kernel, family, threads, blocks, cluster, targets]: [&str; 6]) -> String {
    format!("{kernel:<32} {family:<12} {threads:>7} {blocks:>9} {cluster:>7} {targets}\n")
}

fn show(symbol: &str, target: &str) -> Result<(), Failure> {
    let target = select::target(target)?;
    match target.kernel(symbol) {
        Some(kernel) => terminal::print(&kernel.text()),
        None => {
            let why = format!("no kernel {symbol} for {}", target.name);
            Err(Failure::Input(format!("{why}\nhalfwarp ptx list names them all")))
        }
    }
}
