//! `cargo xtask mission`: attention of 1 x 8 x 512 x 64 in f16 or fp8, built, verified, and timed on the GPU at hand
//! beside its peers: PyTorch's in f16, our own in f16 for fp8.
//!
//! The program `halfwarp` verifies and times; with cargo it is built first, and without it the one beside this program
//! runs, as on a GPU machine without Rust.

use crate::process;
use anyhow::{Context, Result};
use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

/// The kernels of the mission, and their target.
const F16_KERNELS: &[&str] = &["attention_prefill_cluster_f16_d64"];
const FP8_KERNELS: &[&str] = &[
    "attention_prefill_cluster_e4m3_strict_d64",
    "attention_prefill_cluster_e4m3_fast_d64",
    "attention_prefill_cluster_f16_d64",
];
const TARGET: &str = "sm_90a";

/// Times PyTorch's backends.
const PEERS: &str = include_str!("mission/peers.py");

/// Builds, verifies, times, and prints what `halfwarp ptx stats` and the peers say, where they are. `dtype` is f16 or fp8.
pub fn run(dtype: &str) -> Result<()> {
    let halfwarp = halfwarp()?;
    process::show(Command::new(&halfwarp).args(["bench", "mission", "--dtype", dtype]))?;
    let kernels = if dtype == "fp8" { FP8_KERNELS } else { F16_KERNELS };
    // Registers, spills and instructions, by NVIDIA's assembler if it is there.
    process::show(
        Command::new(&halfwarp).args(["ptx", "stats", "--target", TARGET]).args(kernels),
    )?;
    if dtype == "f16" {
        // Its own words say why there are none.
        let _ = Command::new("python3").args(["-c", PEERS]).stdin(Stdio::null()).status();
    }
    process::check_interrupt()
}

/// The program `halfwarp`: built where cargo started this program, else the one beside it.
fn halfwarp() -> Result<PathBuf> {
    if env::var_os("CARGO").is_none() {
        let name = format!("halfwarp{}", env::consts::EXE_SUFFIX);
        let own = env::current_exe()?;
        let places = [own.with_file_name(&name), own.with_file_name("../release").join(&name)];
        let found = places.into_iter().find(|path| path.exists());
        return found
            .with_context(|| format!("no {name} beside {}: use `cargo xtask`", own.display()));
    }
    // Where there is no GPU, the emulator verifies.
    Ok(process::halfwarp(&["--release", "--features", "emulator"])?.get_program().into())
}
