//! `halfwarp ptx`.

use super::{failure::Failure, terminal};
use clap::Subcommand;
use halfwarp::ptx::{TARGETS, Target};
use std::fmt::Write;

/// The commands of `halfwarp ptx`.
#[derive(Subcommand)]
pub enum Command {
    /// List the kernels with their launch bounds.
    List,
    /// Print the PTX of a kernel, or of a whole module.
    Show {
        /// A kernel or a module, as `halfwarp ptx list` names them
        name: String,
        /// The device target
        #[arg(long, default_value = "sm_90a")]
        target: String,
    },
}

/// Prints what is asked for.
pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::List => terminal::print(&list()),
        Command::Show { name, target } => show(name, target),
    }
}

/// One kernel a line; every target holds the same ones.
fn list() -> String {
    let mut table =
        format!("{:<32} {:<12} {:>7} {:>9}\n", "KERNEL", "MODULE", "THREADS", "BLOCKS/SM");
    for (module, kernel) in TARGETS[0].kernels() {
        let (symbol, threads, blocks) = (kernel.symbol, kernel.max_threads, kernel.min_blocks);
        writeln!(table, "{symbol:<32} {:<12} {threads:>7} {blocks:>9}", module.name)
            .expect("a String takes everything");
    }
    table
}

fn show(name: &str, target_name: &str) -> Result<(), Failure> {
    let Some(target) = halfwarp::ptx::target(target_name) else {
        let known: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        let known = known.join(", ");
        return Err(Failure::Input(format!("no target {target_name}\nthe targets are: {known}")));
    };
    match find(target, name) {
        Some(ptx) => terminal::print(&format!("{}\n", ptx.trim_end())),
        None => Err(Failure::Input(format!(
            "no kernel or module {name}\nhalfwarp ptx list names them all"
        ))),
    }
}

fn find(target: &Target, name: &str) -> Option<&'static str> {
    let module = target.module(name).map(|module| module.text);
    module.or_else(|| target.modules.iter().find_map(|module| module.entry(name)))
}
