//! What NVIDIA's assembler makes of a kernel: rules that it must keep, registers and spills, the
//! mix of instructions, and how many blocks fit on a multiprocessor.
//!
//! The rules on PTX and the mix of its instructions need no tools. [`Tools`] runs ptxas and
//! nvdisasm where they are; no GPU is needed. `cargo xtask ptxas` and `halfwarp ptx` share this
//! crate.
//!
//! ```
//! let ptx = ".visible .entry k() {\n .local .b8 array[8];\n st.local.u32 [array], 1;\n ret;\n}";
//! let faults = machine_code::faults("k", ptx, None);
//! assert_eq!(faults, ["local memory in the PTX: .local .b8 array[8];"]);
//! ```

mod convergence;
mod expected;
mod find;
mod local_memory;
mod mix;
mod occupancy;
pub mod planted;
mod ptx;
mod report;
mod shared_memory;
mod tools;

pub use expected::{expected_instructions, expected_mnemonics, stale_entries};
pub use find::FindError;
pub use mix::{Class, Mix};
pub use occupancy::{BlockResources, Limit, Multiprocessor, Occupancy};
pub use report::Resources;
pub use shared_memory::static_shared_bytes;
pub use tools::{Assembled, ToolError, Tools};

/// The rules that a kernel's PTX must keep, in the words of a list.
pub const PTX_RULES: &str = "no local memory, convergent instructions reached by all threads";

/// The rules on the assembler's report.
pub const REPORT_RULES: &str = "no spills, no stack, no performance warnings";

/// The rules on machine code.
pub const MACHINE_CODE_RULES: &str = "the instructions that a kernel was written for";

/// The rules that the kernel `symbol` breaks: those on its PTX, and with `assembled` those on what
/// was made of it.
pub fn faults(symbol: &str, ptx: &str, assembled: Option<&Assembled>) -> Vec<String> {
    let report = assembled.map(|assembled| &*assembled.report);
    let code = assembled.and_then(|assembled| assembled.code.as_deref());
    let mut faults = report.map(report::faults).unwrap_or_default();
    faults.extend(local_memory::fault(ptx));
    faults.extend(convergence::faults(ptx));
    faults.extend(code.map(|code| expected::faults(symbol, code)).unwrap_or_default());
    faults
}
