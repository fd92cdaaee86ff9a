//! `halfwarp ptx check`.

use super::{select, tools};
use crate::cli::{failure::Failure, terminal};
use halfwarp::ptx::{KernelSet, TARGETS};
use machine_code::{MACHINE_CODE_RULES, PTX_RULES, REPORT_RULES, Tools};
use std::fmt::Write;

/// Arguments of `halfwarp ptx check`.
#[derive(clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    selection: select::Selection,
    /// The device target [default: all]
    #[arg(long)]
    target: Option<String>,
}

/// Prints the faults of the kernels, and which rules were checked.
///
/// # Errors
/// [`Failure::Found`] if there are faults, and those of the tools.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let targets: Vec<&KernelSet> = match &args.target {
        Some(name) => vec![select::target(name)?],
        None => TARGETS.iter().collect(),
    };
    let kernels = args.selection.of(&targets)?;
    let tools = tools::find()?;
    let faults = tools::for_each(&kernels, |(target, kernel)| {
        let text = kernel.text();
        let assembled = match &tools {
            Some(tools) => Some(tools.assemble(&text, target.name)?),
            None => None,
        };
        Ok(machine_code::faults(kernel.symbol, &text, assembled.as_ref()))
    })?;
    let mut report = String::new();
    for ((target, kernel), faults) in kernels.iter().zip(&faults) {
        for fault in faults {
            writeln!(report, "{} {}: {fault}", kernel.symbol, target.name).expect("a String");
        }
    }
    report += &rules(tools.as_ref());
    let num_broken = faults.iter().filter(|faults| !faults.is_empty()).count();
    let names: Vec<_> = targets.iter().map(|target| target.name).collect();
    let (num_kernels, names) = (kernels.len(), names.join(" and "));
    writeln!(report, "{num_broken} of {num_kernels} kernels for {names} break a rule")
        .expect("a String");
    terminal::print(&report)?;
    if num_broken == 0 { Ok(()) } else { Err(Failure::Found) }
}

/// Which rules were checked, and which not.
fn rules(tools: Option<&Tools>) -> String {
    let rules = [
        ("PTX", PTX_RULES, true),
        ("assembler", REPORT_RULES, tools.is_some()),
        ("machine code", MACHINE_CODE_RULES, tools.is_some_and(|tools| tools.nvdisasm.is_some())),
    ];
    let line = |(of, rules, is_checked): (&str, &str, bool)| {
        let is_checked = if is_checked { "checked    " } else { "not checked" };
        format!("{is_checked} {of}: {rules}\n")
    };
    let mut lines: String = rules.map(line).concat();
    if rules.iter().any(|(_, _, is_checked)| !is_checked) {
        lines += &format!("to check all: {}\n", tools::ADVICE);
    }
    lines
}
