//! The assembler's report on a kernel.

/// What the assembler gives a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block.
    pub static_shared_bytes: u32,
    /// Stack of a thread.
    pub stack_bytes: u32,
    /// Registers of a thread that are spilled: bytes of the instructions that store them.
    pub spill_store_bytes: u32,
    /// Bytes of the instructions that load them.
    pub spill_load_bytes: u32,
}

/// What `report` says of a text with one kernel, whose functions add up.
pub fn resources(report: &str) -> Option<Resources> {
    let mut found = Resources::default();
    let mut has_registers = false;
    for line in report.lines() {
        let line = line.trim().trim_start_matches("ptxas info").trim_start_matches([' ', ':']);
        for part in line.split(", ") {
            let count = |unit: &str| part.strip_suffix(unit)?.parse::<u32>().ok();
            if let Some(used) = part.strip_prefix("Used ") {
                has_registers = true;
                let registers = used.strip_suffix(" registers").and_then(|n| n.parse().ok());
                found.registers = registers.unwrap_or(found.registers);
            } else if let Some(bytes) = count(" bytes stack frame") {
                found.stack_bytes += bytes;
            } else if let Some(bytes) = count(" bytes spill stores") {
                found.spill_store_bytes += bytes;
            } else if let Some(bytes) = count(" bytes spill loads") {
                found.spill_load_bytes += bytes;
            } else if let Some(bytes) = count(" bytes smem") {
                found.static_shared_bytes += bytes;
            }
        }
    }
    has_registers.then_some(found)
}

/// The faults in the assembler's report.
pub fn faults(report: &str) -> Vec<String> {
    const NO_STACK: &str = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
    let mut faults = Vec::new();
    let mut function = "";
    for line in report.lines().map(str::trim) {
        if let Some((_, name)) = line.split_once("Function properties for ") {
            function = name;
        } else if line.contains("bytes stack frame") && line != NO_STACK {
            faults.push(format!("{function}: {line}"));
        } else if line.contains("(C75") {
            faults.push(line.to_owned());
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_report_has_no_faults() {
        let report = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'argmax_f32' for 'sm_90a'\n\
            ptxas info    : Function properties for argmax_f32\n    \
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 26 registers, used 1 barriers, 256 bytes smem\n";
        assert!(faults(report).is_empty());
    }

    #[test]
    fn resources_are_read_from_recorded_reports() {
        let of = |report| resources(report).unwrap();
        let clean = include_str!("../tests/fixtures/argmax.ptxas.txt");
        let want = Resources { registers: 25, static_shared_bytes: 260, ..Resources::default() };
        assert_eq!(of(clean), want);
        let spills = include_str!("../tests/fixtures/spill.ptxas.txt");
        let want = Resources {
            registers: 24,
            stack_bytes: 160,
            spill_store_bytes: 156,
            spill_load_bytes: 156,
            ..Resources::default()
        };
        assert_eq!(of(spills), want);
        assert_eq!(resources("ptxas info    : 0 bytes gmem\n"), None);
    }

    #[test]
    fn spills_stack_and_warnings_are_faults() {
        let report = "ptxas info    : Function properties for gemm_f16\n    \
            16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\n\
            ptxas info    : (C7518) Potential Performance Loss: wgmma.mma_async instructions are \
            serialized due to warpgroup-arrive not uniform in the function 'gemm_f16'\n";
        let faults = faults(report);
        assert_eq!(faults.len(), 2);
        assert!(faults[0].starts_with("gemm_f16: 16 bytes stack frame"));
        assert!(faults[1].contains("(C7518)"));
    }
}
