//! Whether machine code holds the instructions that a kernel was written for.
//!
//! The compiler may turn an instruction that is meant into others that give the same result and lose what it was meant
//! for: an asynchronous copy, a fused multiply-add, an approximate function.

use std::collections::BTreeSet;

/// The mnemonics that must be in the machine code of all kernels whose symbols start so.
const EXPECTED: &[(&str, &[&str])] = &[
    ("attention_decode_f32", &["LDGSTS", "FFMA", "MUFU.EX2"]),
    ("attention_prefill_f32", &["LDGSTS", "FFMA", "MUFU.EX2"]),
    ("gemm_bf16_small", &["HMMA", "LDG.E.NA"]),
    ("gemm_f16_small", &["HMMA", "LDG.E.NA"]),
    ("gemm_f32_128x", &["LDGSTS", "FFMA"]),
    ("gemm_f32_64x", &["LDGSTS", "FFMA"]),
    ("gemm_f32_small", &["FFMA"]),
    ("rms_norm_f32", &["FFMA", "MUFU.RSQ"]),
    ("silu_mul_f32", &["MUFU.EX2", "MUFU.RCP"]),
    // The kernels of `crates/conformance`.
    ("barrier_", &["BAR"]),
    ("cp_async_", &["LDGSTS"]),
    ("math_approx_f32", &["MUFU.EX2", "MUFU.RCP", "MUFU.RSQ"]),
    ("math_rounded_f32", &["FFMA", "FMNMX"]),
    ("shuffle_b32", &["SHFL"]),
];

/// What `code`, a disassembly of the kernel `symbol`, lacks.
pub fn faults(symbol: &str, code: &str) -> Vec<String> {
    let present: BTreeSet<&str> = code.lines().filter_map(instruction).collect();
    let is_there = |mnemonic: &str| {
        present.iter().any(|instruction| {
            let modifiers = instruction.strip_prefix(mnemonic);
            modifiers.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let expected = EXPECTED.iter().filter(|(prefix, _)| symbol.starts_with(prefix));
    expected
        .flat_map(|(_, mnemonics)| *mnemonics)
        .filter(|mnemonic| !is_there(mnemonic))
        .map(|mnemonic| format!("no {mnemonic} in the machine code"))
        .collect()
}

/// What the table expects of kernels that there are none of.
pub fn stale_entries(symbols: &BTreeSet<&str>) -> Vec<String> {
    let is_stale = |prefix: &str| !symbols.iter().any(|symbol| symbol.starts_with(prefix));
    let stale = EXPECTED.iter().filter(|(prefix, _)| is_stale(prefix));
    stale
        .map(|(prefix, _)| format!("{prefix}: machine code expected, but no such kernel"))
        .collect()
}

/// The mnemonic, modifiers included, in a line such as `/*0070*/  @P0 LDG.E R2, desc[UR4][R2.64] ;`.
fn instruction(line: &str) -> Option<&str> {
    let (_, text) = line.trim().strip_prefix("/*")?.split_once("*/")?;
    text.split_whitespace().find(|word| !word.starts_with('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\t.headerflags\t@\"EF_CUDA_SM90\"\n.text.cp_async_f32:\n\
        \x20       /*0000*/                   LDC R1, c[0x0][0x28] ;   /* 0x00000a00ff017b82 */\n\
        \x20       /*0010*/             @!P0  LDGSTS.E.BYPASS.128 [R9], desc[UR4][R2.64] ;\n";

    #[test]
    fn instructions_are_found_behind_predicates_and_with_modifiers() {
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
    fn an_entry_without_a_kernel_is_stale() {
        let mut symbols: BTreeSet<&str> = EXPECTED.iter().map(|(prefix, _)| *prefix).collect();
        assert!(stale_entries(&symbols).is_empty());
        symbols.remove("shuffle_b32");
        assert_eq!(stale_entries(&symbols).len(), 1);
    }
}
