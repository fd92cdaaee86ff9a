//! `halfwarp ptx`.

use super::{failure::Failure, terminal};
use clap::Subcommand;
use halfwarp::ptx::{Kernel, TARGETS};
use std::collections::BTreeMap;

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
}

/// Lists the kernels, or prints one.
pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::List => terminal::print(&list()),
        Command::Show { kernel, target } => show(kernel, target),
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

fn show(symbol: &str, target_name: &str) -> Result<(), Failure> {
    let Some(target) = halfwarp::ptx::target(target_name) else {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        let known = known.join(", ");
        return Err(Failure::Input(format!("no target {target_name}\nthe targets are: {known}")));
    };
    match target.kernel(symbol) {
        Some(kernel) => terminal::print(kernel.text),
        None => {
            let why = format!("no kernel {symbol} for {target_name}");
            Err(Failure::Input(format!("{why}\nhalfwarp ptx list names them all")))
        }
    }
}
