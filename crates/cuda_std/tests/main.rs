//! What the emulator reports of broken kernels, the types of the host, and the source itself. The
//! results of the instructions are cases of the crate `conformance`.

mod emulator_faults;
mod host;
mod isa_links;
mod tensor_map;
mod views;
