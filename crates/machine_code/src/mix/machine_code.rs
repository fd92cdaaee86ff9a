//! The class of a machine instruction.
//!
//! The names are those of NVIDIA's list, for Ampere and Hopper:
//! <https://docs.nvidia.com/cuda/cuda-binary-utilities/#instruction-set-reference>.

use super::Class;

const TENSOR: &[&str] = &["HMMA", "HGMMA", "QGMMA", "IMMA", "IGMMA", "BMMA", "BGMMA", "DMMA"];

const ASYNC_COPY: &[&str] =
    &["LDGSTS", "STAS", "UBLKCP", "UBLKPF", "UBLKRED", "UTMALDG", "UTMAPF", "UTMAREDG", "UTMASTG"];

const F32: &[&str] = &[
    "FADD", "FADD32I", "FCHK", "FFMA", "FFMA32I", "FMNMX", "FMUL", "FMUL32I", "FSEL", "FSET",
    "FSETP", "FSWZADD", "MUFU",
];

const F16: &[&str] = &["HADD2", "HFMA2", "HMNMX2", "HMUL2", "HSET2", "HSETP2"];

/// With the prefix `U` they work on registers of the warp.
const INTEGER: &[&str] = &[
    "BMSK",
    "BREV",
    "FLO",
    "IABS",
    "IADD",
    "IADD3",
    "IDP",
    "IMAD",
    "IMNMX",
    "IMUL",
    "ISCADD",
    "ISETP",
    "LEA",
    "LOP",
    "LOP3",
    "POPC",
    "SHF",
    "SHL",
    "SHR",
    "VABSDIFF",
    "VABSDIFF4",
    "VHMNMX",
    "VIADD",
    "VIADDMNMX",
    "VIMNMX",
    "VIMNMX3",
];

const CONTROL: &[&str] = &[
    "ACQBULK",
    "BMOV",
    "BPT",
    "BRA",
    "BREAK",
    "BRX",
    "BRXU",
    "BSSY",
    "BSYNC",
    "CALL",
    "ENDCOLLECTIVE",
    "EXIT",
    "JMP",
    "JMX",
    "JMXU",
    "KILL",
    "NANOSLEEP",
    "PREEXIT",
    "RET",
    "RPCMOV",
    "USETMAXREG",
    "YIELD",
];

const BARRIER: &[&str] = &[
    "ARRIVES",
    "BAR",
    "CGAERRBAR",
    "DEPBAR",
    "ERRBAR",
    "FENCE",
    "LDGDEPBAR",
    "MEMBAR",
    "SYNCS",
    "UCGABAR_ARV",
    "UCGABAR_WAIT",
    "UTMACMDFLUSH",
    "WARPGROUP",
    "WARPSYNC",
];

/// The class of a mnemonic, modifiers included: `LDG.E.128`.
pub fn class(mnemonic: &str) -> Class {
    let (name, modifiers) = mnemonic.split_once('.').unwrap_or((mnemonic, ""));
    let is_f16 = || modifiers.split('.').any(|part| part == "F16");
    let is_one_of = |names: &[&str]| names.contains(&name);
    match name {
        "LDG" | "LD" => Class::GlobalLoad,
        "STG" | "ST" | "ATOM" | "ATOMG" | "RED" | "REDG" => Class::GlobalStore,
        "LDS" | "LDSM" => Class::SharedLoad,
        "STS" | "STSM" | "ATOMS" => Class::SharedStore,
        "LDL" => Class::LocalLoad,
        "STL" => Class::LocalStore,
        "MUFU" if is_f16() => Class::F16,
        _ if is_one_of(TENSOR) => Class::Tensor,
        _ if is_one_of(ASYNC_COPY) => Class::AsyncCopy,
        _ if is_one_of(F32) => Class::F32,
        _ if is_one_of(F16) => Class::F16,
        _ if is_one_of(CONTROL) => Class::Control,
        _ if is_one_of(BARRIER) => Class::Barrier,
        _ if is_one_of(INTEGER) => Class::Integer,
        _ if name.strip_prefix('U').is_some_and(|name| INTEGER.contains(&name)) => Class::Integer,
        _ => Class::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mnemonics_have_the_class_of_what_they_do() {
        for (mnemonic, want) in [
            ("HGMMA.64x128x16.F32", Class::Tensor),
            ("LDGSTS.E.BYPASS.128", Class::AsyncCopy),
            ("UTMALDG.2D", Class::AsyncCopy),
            ("LDG.E.NA.128", Class::GlobalLoad),
            ("LDSM.16.M88.4", Class::SharedLoad),
            ("STL.64", Class::LocalStore),
            ("MUFU.EX2", Class::F32),
            ("MUFU.EX2.F16", Class::F16),
            ("HADD2.F32", Class::F16),
            ("IMAD.MOV.U32", Class::Integer),
            ("UIADD3", Class::Integer),
            ("ULOP3.LUT", Class::Integer),
            ("BRA", Class::Control),
            ("SYNCS.PHASECHK.TRANS64.TRYWAIT", Class::Barrier),
            ("LDC", Class::Other),
            ("SHFL.BFLY", Class::Other),
            ("F2FP.BF16.F32.PACK_AB", Class::Other),
        ] {
            assert_eq!(class(mnemonic), want, "{mnemonic}");
        }
    }
}
