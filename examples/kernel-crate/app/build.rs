//! Compiles the kernels to PTX: `$OUT_DIR/<symbol>.ptx`.

use std::env;
use std::process::ExitCode;

use cuda_builder::{Arch, BuildError, CudaBuilder};

fn main() -> ExitCode {
    cuda_builder::finish(build())
}

fn build() -> Result<(), BuildError> {
    println!("cargo::rerun-if-changed=build.rs");
    let out_dir = env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    // sm_80 runs on every GPU from Ampere on.
    CudaBuilder::new("../kernels").arch(Arch::Sm80).copy_to(out_dir).build()?;
    Ok(())
}
