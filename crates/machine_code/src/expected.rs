//! Whether the machine code has the instructions that a kernel was written for.
//!
//! The compiler may replace an instruction by others with the same result but without its purpose: an asynchronous copy,
//! a fused multiply-add, an approximate function. It may also move weight loads, which are to overlap the wait for the
//! previous launch, after that wait; or move instructions that need weights between the loads of inputs, which then wait
//! for the weights.

use std::collections::BTreeSet;

/// Of warp-specialised attention.
const ATTENTION_SM90: &[&str] =
    &["HGMMA", "UTMALDG.2D", "UTMALDG.3D", "SYNCS.PHASECHK", "USETMAXREG", "MUFU.EX2"];

/// Likewise in FP8.
const ATTENTION_FP8: &[&str] =
    &["QGMMA", "UTMALDG.2D", "UTMALDG.3D", "SYNCS.PHASECHK", "USETMAXREG", "MUFU.EX2"];

/// Of lines that hold their flag: one instruction for 16 bytes, visible to all devices.
const FLAGGED: &[&str] = &["LDG.E.128.STRONG.SYS", "STG.E.128.STRONG.SYS"];

/// Prefixes of kernels' symbols, and the mnemonics that their machine code must have.
const EXPECTED: &[(&str, &[&str])] = &[
    ("all_reduce_norm_", FLAGGED),
    ("all_reduce_norm_", &["MUFU.RSQ"]),
    ("all_reduce_one_shot_", FLAGGED),
    (
        "all_reduce_two_shot_",
        &["LDG.E.128", "STG.E.128", "LDG.E.STRONG.SYS", "STG.E.STRONG.SYS", "MEMBAR.ALL.SYS"],
    ),
    ("attention_decode_bf16", &["LDGSTS", "LDSM", "HMMA", "MUFU.EX2"]),
    ("attention_decode_f16", &["LDGSTS", "LDSM", "HMMA", "MUFU.EX2"]),
    ("attention_decode_f32", &["LDGSTS", "FFMA", "MUFU.EX2"]),
    ("attention_decode_fp8", &["LDGSTS", "LDSM", "HMMA", "MUFU.EX2"]),
    ("attention_decode_q4_0", &["LDGSTS", "LDSM", "HMMA", "MUFU.EX2"]),
    ("attention_decode_q8_0", &["LDGSTS", "LDSM", "HMMA", "MUFU.EX2"]),
    ("attention_prefill_bf16_d", &["LDGSTS", "LDSM", "HMMA", "MUFU.EX2"]),
    ("attention_prefill_bf16_sm90", ATTENTION_SM90),
    ("attention_prefill_cluster_", &["LDGSTS", "MUFU.EX2", "STAS.128", "UCGABAR_WAIT"]),
    ("attention_prefill_cluster_bf16", &["HGMMA"]),
    ("attention_prefill_cluster_e4m3", &["QGMMA.64x128x32.F32.E4M3.E4M3"]),
    (
        "attention_prefill_cluster_e4m3_fast",
        &["QGMMA.64x64x32.F32.E4M3.E4M3", "F2FP.SATFINITE.E4M3"],
    ),
    ("attention_prefill_cluster_e4m3_strict", &["HGMMA.64x64x16.F32", "F2FP.F16.E4M3"]),
    ("attention_prefill_cluster_f16", &["HGMMA"]),
    ("attention_prefill_e4m3_fast", ATTENTION_FP8),
    ("attention_prefill_e4m3_fast", &["F2FP.SATFINITE.E4M3"]),
    ("attention_prefill_e4m3_strict", ATTENTION_FP8),
    ("attention_prefill_e4m3_strict", &["HGMMA", "F2FP.F16.E4M3"]),
    ("attention_prefill_f16_d", &["LDGSTS", "LDSM", "HMMA", "MUFU.EX2"]),
    ("attention_prefill_f16_sm90", ATTENTION_SM90),
    ("attention_prefill_f32", &["LDGSTS", "FFMA", "MUFU.EX2"]),
    ("gemm_bf16_sm90", &["HGMMA", "UTMALDG"]),
    ("gemm_bf16_small", &["HMMA", "LDG.E.NA"]),
    ("gemm_bf16_streamed", &["HMMA", "UTMALDG.2D", "LDGSTS", "SYNCS.PHASECHK"]),
    ("gemm_bf16_swapped", &["HGMMA", "UTMALDG.2D", "LDGSTS", "SYNCS.PHASECHK"]),
    ("gemm_e4m3_sm90", &["QGMMA", "UTMALDG", "SYNCS.PHASECHK"]),
    ("gemm_f16_q", &["HMMA", "LDG.E.NA"]),
    ("gemm_f16_ring", &["HMMA", "LDGSTS"]),
    ("gemm_f16_sm90", &["HGMMA", "UTMALDG"]),
    ("gemm_f16_sm90_128x128_in_f16", &["HGMMA.64x128x16.F16"]),
    ("gemm_f16_sm90_128x128_split", &["UBLKCP.S.S", "UCGABAR_ARV", "UCGABAR_WAIT"]),
    ("gemm_f16_small", &["HMMA", "LDG.E.NA"]),
    ("gemm_f16_streamed", &["HMMA", "SYNCS.PHASECHK"]),
    ("gemm_f16_streamed_m", &["UTMALDG.2D", "LDGSTS"]),
    ("gemm_f16_streamed_q", &["UBLKCP.S.G"]),
    ("gemm_f16_swapped", &["HGMMA", "UTMALDG.2D", "LDGSTS", "SYNCS.PHASECHK"]),
    ("gemm_f32_128x", &["LDGSTS", "FFMA"]),
    ("gemm_f32_64x", &["LDGSTS", "FFMA"]),
    ("gemm_f32_small", &["FFMA"]),
    ("gemm_sm80_", &["LDGSTS", "LDSM", "HMMA"]),
    ("gemm_sm80_f16_f16_128x128_in_f16", &["HMMA.16816.F16"]),
    ("gemv_", &["LDG.E.NA"]),
    ("rms_norm_f32", &["FFMA", "MUFU.RSQ"]),
    ("silu_mul_f32", &["MUFU.EX2", "MUFU.RCP"]),
    // The kernels of `crates/conformance`.
    ("atomic_add_", &["ATOMS"]),
    ("atomic_global_", &["ATOMG"]),
    ("atomic_shared_", &["ATOMS"]),
    ("barrier_", &["BAR"]),
    ("bf16x2_rounded", &["HMNMX2.BF16_V2"]),
    ("bulk_", &["UBLKCP.S.G", "UBLKCP.G.S", "SYNCS", "FENCE.VIEW.ASYNC"]),
    ("cluster_arrive", &["SYNCS.ARRIVE.TRANS64.RED", "UCGABAR_ARV", "UCGABAR_WAIT"]),
    ("cluster_copies", &["UBLKCP.S.G.MULTICAST", "UBLKCP.S.S"]),
    ("cluster_peers", &["LD.E.128", "ST.E", "UCGABAR_WAIT"]),
    ("cluster_stores", &["STAS", "STAS.128"]),
    ("cluster_tensor", &["UTMALDG.2D.MULTICAST"]),
    ("convert_f16_to_f32", &["HADD2.F32"]),
    ("convert_f32_to_16_bits", &["F2FP"]),
    ("convert_f32_to_fp8", &["F2FP.SATFINITE.E4M3", "F2FP.SATFINITE.E5M2"]),
    ("convert_f32_to_integers", &["F2I", "F2I.TRUNC", "F2I.U32", "F2I.U32.TRUNC"]),
    ("convert_fp8_to_f16", &["F2FP.F16.E4M3", "F2FP.F16.E5M2"]),
    ("cp_async_", &["LDGSTS"]),
    ("cp_async_mbarrier", &["ARRIVES.LDGSTSBAR"]),
    ("f16x2_approx", &["MUFU.EX2.F16", "MUFU.TANH.F16"]),
    ("f16x2_rounded", &["HFMA2", "HADD2", "HMUL2", "HMNMX2"]),
    ("griddepcontrol_", &["ACQBULK", "PREEXIT"]),
    ("math_approx_f32", &["MUFU.EX2", "MUFU.RCP", "MUFU.RSQ"]),
    ("math_bits_u32", &["PRMT", "LOP3"]),
    ("math_rounded_f32", &["FFMA", "FMNMX"]),
    ("math_transcendental_f32", &["MUFU.SQRT", "MUFU.LG2", "MUFU.TANH", "MUFU.SIN", "MUFU.COS"]),
    ("matrix_load", &["LDSM.16.M88.4", "LDSM.16.MT88.4"]),
    ("matrix_store", &["STSM.16.M88.4", "STSM.16.MT88.4"]),
    ("mbarrier_", &["SYNCS.PHASECHK"]),
    ("mma_f16", &["HMMA.16816.F16"]),
    ("mma_f32_bf16", &["HMMA.16816.F32.BF16"]),
    ("mma_f32_f16", &["HMMA.16816.F32"]),
    ("mma_fp8_e4m3", &["F2FP.F16.E4M3", "HMMA.16816.F32"]),
    ("mma_fp8_e5m2", &["F2FP.F16.E5M2", "HMMA.16816.F32"]),
    ("named_barrier_", &["BAR.ARV", "BAR.SYNC"]),
    ("ordering_", &["MEMBAR", "CCTL"]),
    ("peer_flags", &["LDG.E.STRONG.SYS", "STG.E.STRONG.SYS"]),
    ("peer_lines", FLAGGED),
    ("reduce_b32", &["REDUX", "SHFL.BFLY", "FMNMX"]),
    ("setmaxnreg_", &["USETMAXREG.TRY_ALLOC", "USETMAXREG.DEALLOC"]),
    ("shuffle_b32", &["SHFL.BFLY", "SHFL.IDX"]),
    ("shuffle_up_down_b32", &["SHFL.UP", "SHFL.DOWN"]),
    ("tensor_add_", &["UTMAREDG"]),
    ("tensor_load_", &["UTMALDG"]),
    ("tensor_store_", &["UTMASTG"]),
    ("vote_b32", &["VOTE", "MATCH.ANY", "MATCH.ALL", "REDUX"]),
    ("vote_elect", &["ELECT"]),
    ("wgmma_bf16", &["HGMMA"]),
    ("wgmma_e", &["QGMMA"]),
    ("wgmma_f16", &["HGMMA"]),
    ("wgmma_f16_in_f16_n128", &["HGMMA.64x128x16.F16"]),
    ("wgmma_registers", &["WARPGROUP.ARRIVE"]),
];

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
    let present: BTreeSet<&str> = code.lines().filter_map(instruction).collect();
    let is_there = |mnemonic: &str| {
        present.iter().any(|instruction| {
            let modifiers = instruction.strip_prefix(mnemonic);
            modifiers.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let expected = EXPECTED.iter().filter(|(prefix, _)| symbol.starts_with(prefix));
    let mut faults: Vec<_> = expected
        .flat_map(|(_, mnemonics)| *mnemonics)
        .filter(|mnemonic| !is_there(mnemonic))
        .map(|mnemonic| format!("no {mnemonic} in the machine code"))
        .collect();
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

/// Entries of the table that match no kernel.
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
