//! The same kernels on the emulator and on a GPU.
//!
//! A [`Case`] is one kernel of `conformance_kernels`, its buffers, and what an oracle says that it
//! writes. The emulator runs it everywhere, a GPU where there is one; the emulator is held against
//! the oracle, the GPU against both. What passes on both sides is an instruction that the emulator
//! knows as the hardware does.
//!
//! To add an instruction group:
//! 1. a kernel in `kernels/src/<group>.rs`, under `target(sm_90a)` if `sm_80` lacks the
//!    instruction;
//! 2. its buffers, its launch and its oracle in `src/cases/<group>.rs`, by an oracle that shares
//!    nothing with the emulator;
//! 3. a line in [`cases::all`];
//! 4. the instruction's mnemonic in `xtask/src/ptxas/machine_code.rs`.
//!
//! The tests are one program, the PTX inside: `cargo test --release -p conformance --no-run` names
//! it, and it runs alone on a machine with a GPU and without Rust: `./conformance-<hash> cuda`.
//! Behind the results it prints how far off the GPU is where the ISA does not fix the bits.

mod case;
pub mod cases;
mod emulator;
mod gpu;
mod inputs;
mod numbers;
mod operands;
mod products;
mod ptx;
mod want;

pub use case::{Buffer, Case, Pointers};
pub use emulator::emulate;
pub use gpu::{Gpu, GpuError};
pub use ptx::has_kernel;
pub use want::{Probe, Tolerance, Want};
