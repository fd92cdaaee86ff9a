//! The assembler's report on a kernel.

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
