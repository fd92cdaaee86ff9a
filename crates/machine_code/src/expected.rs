//! Whether the machine code has the instructions that a kernel was written for.
//!
//! The compiler may replace an instruction by others with the same result but without its purpose: an asynchronous copy,
//! a fused multiply-add, an approximate function. It may also move weight loads, which are to overlap the wait for the
//! previous launch, after that wait; or move instructions that need weights between the loads of inputs, which then wait
//! for the weights.

mod table;

use std::collections::BTreeSet;
use table::EXPECTED;

/// `griddepcontrol.wait` and `griddepcontrol.launch_dependents`, in this order in the kernels.
const WAIT: &str = "ACQBULK";
const START_NEXT: &str = "PREEXIT";

/// A load without L1 allocation: of weights, which no launch writes.
const WEIGHT_LOAD: &str = "LDG.E.NA";

/// Kernels that issue all loads of inputs before the first weight is converted, and the mnemonics of both.
const EARLY_INPUTS: &[&str] = &["gemv_f16", "gemv_planted_input"];
const INPUT_LOAD: &str = "LDG.E.128";
const CONVERSION: &str = "HADD2.F32";

/// Missing and misplaced instructions in `code`, a disassembly of the kernel `symbol`.
pub fn faults(symbol: &str, code: &str) -> Vec<String> {
    let counts = expected_instructions(symbol, code).into_iter();
    let missing = counts.filter(|(_, count)| *count == 0);
    let mut faults: Vec<_> =
        missing.map(|(mnemonic, _)| format!("no {mnemonic} in the machine code")).collect();
    if has_late_weights(code) {
        faults.push(format!("{WEIGHT_LOAD} after {WAIT} in the machine code"));
    }
    if EARLY_INPUTS.contains(&symbol) && has_waiting_inputs(code) {
        faults.push(format!("{INPUT_LOAD} after {CONVERSION} in the machine code"));
    }
    faults
}

/// Whether weights are loaded between the wait for the previous launch and the trigger of the next.
fn has_late_weights(code: &str) -> bool {
    let instructions = code.lines().filter_map(instruction);
    let after_wait = instructions.skip_while(|instruction| !instruction.starts_with(WAIT));
    let mut after_wait = after_wait.take_while(|instruction| !instruction.starts_with(START_NEXT));
    after_wait.any(|instruction| instruction.starts_with(WEIGHT_LOAD))
}

/// Whether a conversion precedes the last load of inputs in the basic block after the wait for the previous launch.
fn has_waiting_inputs(code: &str) -> bool {
    let instructions = code.lines().filter_map(instruction);
    let after_wait = instructions.skip_while(|instruction| !instruction.starts_with(WAIT));
    let block = after_wait.take_while(|instruction| !instruction.starts_with('B'));
    let mut after_conversion = block.skip_while(|instruction| *instruction != CONVERSION);
    after_conversion.any(|instruction| instruction == INPUT_LOAD)
}

/// The mnemonics that the kernel `symbol` must have, in the order of the table.
pub fn expected_mnemonics(symbol: &str) -> Vec<&'static str> {
    let rows = EXPECTED.iter().filter(|(prefix, _)| symbol.starts_with(prefix));
    rows.flat_map(|(_, mnemonics)| *mnemonics).copied().collect()
}

/// Likewise, each with the number of such instructions in `code`, a disassembly of the kernel.
pub fn expected_instructions(symbol: &str, code: &str) -> Vec<(&'static str, u32)> {
    let mut counts: Vec<_> = expected_mnemonics(symbol).into_iter().map(|name| (name, 0)).collect();
    for instruction in code.lines().filter_map(instruction) {
        for (mnemonic, count) in &mut counts {
            let modifiers = instruction.strip_prefix(*mnemonic);
            *count += u32::from(modifiers.is_some_and(|m| m.is_empty() || m.starts_with('.')));
        }
    }
    counts
}

/// Rows of the table that match no kernel.
pub fn stale_entries(symbols: &BTreeSet<&str>) -> Vec<String> {
    let is_stale = |prefix: &str| !symbols.iter().any(|symbol| symbol.starts_with(prefix));
    let stale = EXPECTED.iter().filter(|(prefix, _)| is_stale(prefix));
    stale
        .map(|(prefix, _)| format!("{prefix}: machine code expected, but no such kernel"))
        .collect()
}

/// The mnemonic, modifiers included, in a line such as `/*0070*/  @P0 LDG.E R2, desc[UR4][R2.64] ;`.
pub fn instruction(line: &str) -> Option<&str> {
    let (_, text) = line.trim().strip_prefix("/*")?.split_once("*/")?;
    let word = text.split_whitespace().find(|word| !word.starts_with('@'))?;
    // Without operands: `NOP;`.
    Some(word.trim_end_matches(';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\t.headerflags\t@\"EF_CUDA_SM90\"\n.text.cp_async_f32:\n\
        \x20       /*0000*/                   LDC R1, c[0x0][0x28] ;   /* 0x00000a00ff017b82 */\n\
        \x20       /*0010*/             @!P0  LDGSTS.E.BYPASS.128 [R9], desc[UR4][R2.64] ;\n";

    #[test]
    fn instructions_are_found_after_predicates_and_with_modifiers() {
        let found: Vec<_> = CODE.lines().filter_map(instruction).collect();
        assert_eq!(found, ["LDC", "LDGSTS.E.BYPASS.128"]);
        assert!(faults("cp_async_f32", CODE).is_empty());
        assert!(faults("kernel_without_an_entry", "").is_empty());
    }

    #[test]
    fn a_mnemonic_that_is_missing_is_a_fault() {
        let without = CODE.replace("LDGSTS.E", "LDGSTSX.E");
        assert_eq!(faults("cp_async_f32", &without), ["no LDGSTS in the machine code"]);
    }

    #[test]
    fn expected_instructions_are_counted_with_their_modifiers() {
        let mnemonics = ["LDGSTS.E.128", "LDGSTS", "LDGSTSX", "ARRIVES.LDGSTSBAR.64", "LDSM"];
        let code = mnemonics.map(|m| format!("/*0000*/ {m} R1 ;\n")).concat();
        let counts = expected_instructions("cp_async_mbarrier_u32", &code);
        assert_eq!(counts, [("LDGSTS", 2), ("ARRIVES.LDGSTSBAR", 1)]);
        assert!(expected_mnemonics("kernel_without_an_entry").is_empty());
    }

    #[test]
    fn layers_of_8_bit_floats_have_their_own_mma() {
        let code = |mma: &str| {
            let mnemonics = ["UTMALDG.2D", "SYNCS.PHASECHK.TRANS64.TRYWAIT", mma];
            mnemonics.map(|m| format!("/*0000*/ {m} R1 ;\n")).concat()
        };
        let symbol = "gemm_e4m3_sm90_64x64";
        assert!(faults(symbol, &code("QGMMA.64x64x32.F32.E4M3.E4M3")).is_empty());
        let wrong = faults(symbol, &code("HGMMA.64x64x16.F32"));
        assert_eq!(wrong, ["no QGMMA in the machine code"]);
    }

    #[test]
    fn a_weight_load_after_the_wait_is_a_fault() {
        let code =
            |mnemonics: [&str; 3]| mnemonics.map(|m| format!("/*0000*/ {m} R1 ;\n")).concat();
        let late = code(["ACQBULK", "LDG.E.NA.128", "PREEXIT"]);
        assert_eq!(faults("gemv_f16", &late), ["LDG.E.NA after ACQBULK in the machine code"]);
        for right in
            [["LDG.E.NA.128", "ACQBULK", "PREEXIT"], ["ACQBULK", "PREEXIT", "LDG.E.NA.128"]]
        {
            assert!(faults("gemv_f16", &code(right)).is_empty());
        }
    }

    #[test]
    fn an_input_that_waits_for_a_weight_is_a_fault() {
        let code = |mnemonics: [&str; 4]| {
            let lines = ["LDG.E.NA.128", "ACQBULK"].into_iter().chain(mnemonics);
            lines.map(|m| format!("/*0000*/ {m} R1 ;\n")).collect::<String>()
        };
        let late = code(["LDG.E.128", "HADD2.F32", "LDG.E.128", "BRA"]);
        assert_eq!(faults("gemv_f16", &late), ["LDG.E.128 after HADD2.F32 in the machine code"]);
        for right in [
            ["LDG.E.128", "LDG.E.128", "HADD2.F32", "BRA"],
            // The next iteration.
            ["LDG.E.128", "HADD2.F32", "BRA", "LDG.E.128"],
        ] {
            assert!(faults("gemv_f16", &code(right)).is_empty());
        }
        // A fused norm has conversions of its own.
        assert!(faults("gemv_f16_norm", &late).is_empty());
    }

    #[test]
    fn an_entry_without_a_kernel_is_stale() {
        let mut symbols: BTreeSet<&str> = EXPECTED.iter().map(|(prefix, _)| *prefix).collect();
        assert!(stale_entries(&symbols).is_empty());
        symbols.remove("shuffle_b32");
        assert_eq!(stale_entries(&symbols).len(), 1);
    }
}
