//! Kernels with planted faults: each rule must find its own.

use crate::{ToolError, Tools, faults};

/// Why the rules cannot be relied on.
#[derive(Debug, thiserror::Error)]
pub enum PlantedError {
    /// A tool made nothing of a planted kernel.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A fault was missed, or one was reported that was not planted.
    #[error(
        "the checks of machine code do not work: planted in {symbol} were {planted:?}, found {found:?}"
    )]
    Missed {
        /// The planted kernel.
        symbol: &'static str,
        /// A part of each fault's text.
        planted: &'static [&'static str],
        /// The faults that were reported.
        found: Vec<String>,
    },
}

/// A kernel and its faults.
struct Planted {
    /// Symbol of the kernel, by which the table of expected instructions finds it.
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

/// Assembles the planted kernels.
///
/// # Errors
/// [`PlantedError::Missed`] if a fault is not found, or one that was not planted is;
/// [`PlantedError::Tool`].
pub fn check(tools: &Tools) -> Result<(), PlantedError> {
    for Planted { symbol, ptx, faults: planted } in PLANTED {
        let found = faults(symbol, ptx, Some(&tools.assemble(ptx, "sm_90a")?));
        let pairs = || found.iter().zip(planted);
        if found.len() != planted.len() || !pairs().all(|(found, part)| found.contains(part)) {
            return Err(PlantedError::Missed { symbol, planted, found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_on_ptx_need_no_tools() {
        let of_ptx =
            |fault: &&&str| ["local memory", "bar.sync"].iter().any(|of| fault.contains(of));
        let mut num_found = 0;
        for Planted { symbol, ptx, faults: planted } in PLANTED {
            let planted: Vec<_> = planted.iter().filter(of_ptx).collect();
            let found = faults(symbol, ptx, None);
            assert_eq!(found.len(), planted.len(), "{symbol}: {found:?}");
            assert!(found.iter().zip(&planted).all(|(found, part)| found.contains(**part)));
            num_found += found.len();
        }
        assert_eq!(num_found, 4);
    }
}
