//! Kernels with planted faults, assembled before all others: each check must detect its fault.

use super::{built::Kernel, faults, tools::Tools};
use anyhow::{Result, ensure};
use std::{fs, path::Path};

/// A kernel and its faults.
struct Planted {
    /// Its symbol, by which the table of expected instructions finds it.
    symbol: &'static str,
    ptx: &'static str,
    /// A part of each fault's text.
    faults: &'static [&'static str],
}

const PLANTED: [Planted; 9] = [
    Planted {
        symbol: "planted_stack",
        ptx: include_str!("planted/stack.ptx"),
        faults: &[
            "planted_stack: 64 bytes stack frame, 0 bytes spill stores",
            "local memory in the PTX: .local .align 4 .b8 array[64];",
        ],
    },
    Planted {
        symbol: "planted_local",
        ptx: include_str!("planted/local.ptx"),
        faults: &["local memory in the PTX: .local .align 4 .b8 array[8];"],
    },
    Planted {
        symbol: "planted_spill",
        ptx: include_str!("planted/spill.ptx"),
        faults: &["156 bytes spill stores, 156 bytes spill loads"],
    },
    Planted {
        symbol: "planted_serialised",
        ptx: include_str!("planted/serialised.ptx"),
        faults: &["(C7517)"],
    },
    Planted {
        symbol: "planted_divergent",
        ptx: include_str!("planted/divergent.ptx"),
        faults: &[
            "`bar.sync 0` (line 13), as the condition of",
            "`bar.sync 0` (line 17), as the condition of",
        ],
    },
    Planted {
        symbol: "gemv_planted",
        ptx: include_str!("planted/late_load.ptx"),
        faults: &["LDG.E.NA after ACQBULK"],
    },
    Planted {
        symbol: "gemv_planted_input",
        ptx: include_str!("planted/waiting_input.ptx"),
        faults: &["LDG.E.128 after HADD2.F32"],
    },
    // The same PTX, for a symbol whose expected instructions it has, and for one whose are missing.
    Planted {
        symbol: "wgmma_f16_planted",
        ptx: include_str!("planted/serialised.ptx"),
        faults: &["(C7517)"],
    },
    Planted {
        symbol: "gemm_sm80_planted",
        ptx: include_str!("planted/serialised.ptx"),
        faults: &["(C7517)", "no LDGSTS", "no LDSM", "no HMMA"],
    },
];

/// Fails if a fault is not detected, or if one is reported that was not planted.
pub fn check(tools: &Tools, work: &Path) -> Result<()> {
    for Planted { symbol, ptx, faults: planted } in PLANTED {
        let path = work.join(format!("{symbol}.ptx"));
        fs::write(&path, ptx)?;
        let kernel = Kernel { symbol: symbol.to_owned(), target: "sm_90a", path };
        let found = faults(tools, &kernel, work)?;
        let pairs = || found.iter().zip(planted);
        ensure!(
            found.len() == planted.len() && pairs().all(|(found, part)| found.contains(part)),
            "the checks of machine code do not work: planted in {symbol} were {planted:?}, found {found:?}"
        );
    }
    Ok(())
}
