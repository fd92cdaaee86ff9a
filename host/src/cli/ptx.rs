//! `halfwarp ptx`.

use super::{failure::Failure, terminal};
use clap::Subcommand;
use halfwarp::ptx::{Kernel, TARGETS};
use std::fmt::Write;

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

/// Prints what is asked for.
pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::List => terminal::print(&list()),
        Command::Show { kernel, target } => show(kernel, target),
    }
}

/// One kernel a line; every target holds the same ones.
fn list() -> String {
    let mut table =
        format!("{:<32} {:<12} {:>7} {:>9}\n", "KERNEL", "FAMILY", "THREADS", "BLOCKS/SM");
    for Kernel { symbol, family, max_threads, min_blocks, .. } in TARGETS[0].kernels {
        writeln!(table, "{symbol:<32} {family:<12} {max_threads:>7} {min_blocks:>9}")
            .expect("a String takes everything");
    }
    table
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
            Err(Failure::Input(format!("no kernel {symbol}\nhalfwarp ptx list names them all")))
        }
    }
}
