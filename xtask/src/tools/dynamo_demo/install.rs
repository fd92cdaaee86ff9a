//! What the demo needs: tools, Dynamo's frontend, the worker.

use crate::process;
use crate::tools::programs;
use anyhow::Result;
use std::{
    env, fmt,
    path::{PathBuf, absolute},
    process::{Command, Stdio},
};

/// The frontend, of the same version as the crates of `crates/dynamo`. Its own list of dependencies names a simulator
/// that is no more than a name in the registry: it is installed without its dependencies.
const FRONTEND: &str = "ai-dynamo==1.6.1";
/// What the frontend imports, and pyzmq for the broker of events.
const NEEDED: [&str; 6] =
    ["ai-dynamo-runtime==1.6.1", "msgspec", "packaging", "pyyaml", "typing-extensions", "pyzmq"];

/// What the demo cannot do without.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// Dynamo's crates compile protocol buffers.
    Protoc,
    /// Dynamo's frontend is a Python package, and cannot be installed for this reason.
    Frontend(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Protoc => f.write_str(
                "protoc is missing, which Dynamo's crates are built with\n  \
                 on Debian: apt install protobuf-compiler libprotobuf-dev libclang-dev clang g++",
            ),
            Missing::Frontend(why) => write!(
                f,
                "Dynamo's frontend ({FRONTEND}) cannot be installed: {why}\n  \
                 it needs Python 3.10 to 3.13 with venv, and access to a package index"
            ),
        }
    }
}

impl std::error::Error for Missing {}

/// An error unless the tools for the build are there.
///
/// # Errors
/// [`Missing::Protoc`].
pub fn check_tools() -> Result<(), Missing> {
    // prost takes this one first.
    let protoc = env::var_os("PROTOC").unwrap_or_else(|| "protoc".into());
    let version = Command::new(protoc).arg("--version").stdout(Stdio::null()).status();
    if version.is_ok_and(|status| status.success()) { Ok(()) } else { Err(Missing::Protoc) }
}

/// Python with Dynamo's frontend, in a virtual environment in the cache.
///
/// # Errors
/// [`Missing::Frontend`].
pub fn frontend() -> Result<PathBuf, Missing> {
    let wanted = format!("{FRONTEND}\n{}\n", NEEDED.join("\n"));
    programs::python("dynamo", &wanted, &[&["--no-deps", FRONTEND], &NEEDED])
        .map_err(|error| Missing::Frontend(format!("{error:#}")))
}

/// The worker's program, built if it has to be.
///
/// # Errors
/// If it cannot be built.
pub fn worker() -> Result<PathBuf> {
    let dir = process::repository().join("crates/dynamo");
    let target = match env::var_os("CARGO_TARGET_DIR") {
        Some(target) => absolute(target)?,
        None => dir.join("target"),
    };
    eprintln!("building crates/dynamo: 750 crates, the first time");
    let mut cargo = process::cargo()?;
    process::show(cargo.current_dir(&dir).env("CARGO_TARGET_DIR", &target).arg("build"))?;
    Ok(target.join("debug").join(format!("halfwarp-dynamo{}", env::consts::EXE_SUFFIX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_frontend_and_the_crates_are_of_one_version() {
        let manifest = process::repository().join("crates/dynamo/Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let version = FRONTEND.split_once("==").unwrap().1;
        assert!(manifest.contains(&format!("dynamo-backend-common = \"={version}\"")));
        assert!(NEEDED[0].ends_with(version));
    }

    #[test]
    fn what_is_missing_is_said_with_what_to_do() {
        assert!(Missing::Protoc.to_string().contains("apt install protobuf-compiler"));
        let message = Missing::Frontend("no network".to_owned()).to_string();
        assert!(message.contains("no network\n") && message.lines().count() == 2, "{message}");
    }
}
