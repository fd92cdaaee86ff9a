//! Whether PTX uses local memory.
//!
//! The assembler may still put it into registers and report no stack. But LLVM miscompiles code with local memory: by
//! comparing its addresses with null it dropped an iteration of a loop over an array's elements.

/// The fault of `ptx`: its first line that uses local memory.
pub fn fault(ptx: &str) -> Option<String> {
    let is_local = |line: &&str| !line.starts_with("//") && line.contains(".local");
    let line = ptx.lines().map(str::trim).find(is_local)?;
    Some(format!("local memory in the PTX: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_accesses_and_addresses_are_faults() {
        for line in [
            ".local .align 8 .b8 \t__local_depot108[56];",
            "st.local.v2.b32 \t[%rd11+16], {%r31, %r33};",
            "cvta.to.local.u64 \t%rd1, %rd2;",
            "@%p1 ld.local.b32 \t%r1, [%rd1];",
        ] {
            let ptx = format!(".version 8.0\n// .local\n\t{line}\n\tret;\n");
            assert_eq!(fault(&ptx), Some(format!("local memory in the PTX: {line}")));
        }
    }

    #[test]
    fn other_memory_is_not_a_fault() {
        assert_eq!(fault("\tld.global.b32 \t%r1, [%rd1];\n\tst.shared.b32 \t[%r2], %r1;\n"), None);
    }
}
