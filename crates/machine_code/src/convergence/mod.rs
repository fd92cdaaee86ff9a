//! Whether all threads of a warp reach a convergent instruction together.
//!
//! `bar.sync`, `mma`, `wgmma` and their kind must be executed by all threads of a warp at once, `wgmma` and `setmaxnreg` by
//! all of a warpgroup. rustc does not tell LLVM so of `asm!`, and its pass JumpThreading ignores it: between two branches on
//! the same condition the compiler may copy the instruction into both sides. If the condition differs between the threads,
//! each half then executes another copy, and the kernel hangs or computes nonsense.
//!
//! So the criterion is that of a divergence analysis, on the PTX: **no convergent instruction is control dependent on a
//! branch whose condition may differ between the threads of a warp** (of a warpgroup), nor predicated by such a condition.
//! Copies under conditions that are uniform, and unrolled ones, are right. `uniform` says which registers may differ,
//! `flow` which instructions depend on a branch. It assumes one-dimensional blocks, as `cuda_builder` declares them, and
//! that a load gives all threads the same value if they pass the same address.

mod flow;
mod reaching;
mod uniform;
mod value;

use crate::ptx::{Code, Instruction};
use flow::Flow;
use reaching::Reaching;
use std::collections::BTreeMap;
use uniform::Group;

/// The convergent instructions of `ptx`, one kernel, that not all threads may reach together.
pub fn faults(ptx: &str) -> Vec<String> {
    let code = Code::parse(ptx);
    let (flow, reaching) = (Flow::of(&code), Reaching::of(&code));
    // By instruction, the branch nearest to it; none for its own predicate.
    let mut found: BTreeMap<usize, Option<usize>> = BTreeMap::new();
    for group in [Group::Warp, Group::Warpgroup] {
        let values = uniform::values(&code, &flow, &reaching, group);
        let convergent = |at: &usize| needs(&code.instructions[*at]) == Some(group);
        let all = (0..code.instructions.len()).filter(convergent);
        found.extend(all.filter(|&at| values.has_divergent_guard(&code, at)).map(|at| (at, None)));
        for branch in values.divergent_branches(&code) {
            for at in flow.dependent_instructions(&code, branch).filter(convergent) {
                let nearest = found.entry(at).or_default();
                *nearest = (*nearest).max(Some(branch));
            }
        }
    }
    let lost = code.lost_branches.iter().map(|branch| format!("a label is missing: `{branch}`"));
    lost.chain(found.into_iter().map(|(at, branch)| text(&code, at, branch))).collect()
}

fn text(code: &Code, at: usize, branch: Option<usize>) -> String {
    let Instruction { line, text, .. } = &code.instructions[at];
    let of = match needs(&code.instructions[at]) {
        Some(Group::Warpgroup) => "a warpgroup",
        _ => "a warp",
    };
    let why = branch.map_or_else(
        || "its predicate".to_owned(),
        |branch| {
            let Instruction { line, text, .. } = &code.instructions[branch];
            format!("the condition of `{text}` (line {line})")
        },
    );
    format!("not reached by all threads of {of}: `{text}` (line {line}), as {why} may differ")
}

/// Which threads must execute an instruction together; `None` if any may by itself.
fn needs(instruction: &Instruction) -> Option<Group> {
    const WITH_A_MASK: [&str; 6] =
        ["shfl.sync", "vote.sync", "match.", "redux.sync", "elect.sync", "bar.warp.sync"];
    let opcode = &*instruction.opcode;
    let has_prefix = |prefix: &&str| opcode.starts_with(*prefix);
    if ["wgmma.", "setmaxnreg."].iter().any(|prefix| opcode.starts_with(prefix)) {
        return Some(Group::Warpgroup);
    }
    if WITH_A_MASK.iter().any(has_prefix) {
        // A mask of some lanes, or in a register, may be that of a branch.
        let mask = instruction.operands.last().map(String::as_str);
        return matches!(mask, Some("-1" | "0xffffffff" | "4294967295")).then_some(Group::Warp);
    }
    (opcode.starts_with("bar.") || opcode.contains(".aligned")).then_some(Group::Warp)
}

#[cfg(test)]
mod tests;
