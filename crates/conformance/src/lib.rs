//! The same kernels on the emulator and on a GPU.
//!
//! A [`Case`] is one kernel of `conformance_kernels`, its buffers, and an oracle's expected
//! outputs. The emulator runs it everywhere and is compared with the oracle's results, rounded
//! once; a GPU, where there is one, is compared with both. An instruction that passes on both is
//! emulated as the hardware executes it.
//!
//! To add an instruction group:
//! 1. a kernel in `kernels/src/<group>.rs`, under `target(sm_90a)` if `sm_80` lacks the
//!    instruction;
//! 2. its buffers, its launch and its oracle in `src/cases/<group>.rs`; the oracle shares no code
//!    with the emulator;
//! 3. a line in [`cases::all`];
//! 4. the instruction's mnemonic in `crates/machine_code/src/expected/table.rs`.
//!
//! The tests are one program that embeds the PTX. `cargo test --release -p conformance --no-run`
//! prints its path; copied to a machine with a GPU it needs no Rust: `./conformance-<hash> cuda`.
//! After the results it prints the GPU's deviations where the ISA does not fix the bits.

mod case;
pub mod cases;
mod emulator;
mod gpu;
mod inputs;
mod mma_reference;
mod numbers;
mod operands;
mod ptx;
mod want;

pub use case::{Buffer, Case, Pointers};
pub use emulator::emulate;
pub use gpu::{Gpu, GpuError};
pub use ptx::has_kernel;
pub use want::{Probe, Tolerance, Want};
