//! The source of Rust's library, which `core` for the GPU is built from.
//!
//! It is the rustup component `rust-src`, or Debian's package of that name and the same version, unpacked to the
//! cache: no root, and nothing of the system is changed.

mod apt_sources;

use crate::process;
use anyhow::{Context, Result};
use apt_sources::Source;
use cuda_builder::library_source::{find, rustc_release, unpack_dir};
use model_cache::Cache;
use std::{env, fs, path::Path, process::Command};

/// Finds the library source or fetches it.
pub fn provide(cache: &Cache) -> Result<()> {
    if find().is_err() {
        fetch(cache)?;
    }
    eprintln!("library source: {}", find()?.display());
    Ok(())
}

fn fetch(cache: &Cache) -> Result<()> {
    let may_download = env::var_os("RUSTUP_AUTO_INSTALL").is_none_or(|value| value != "0");
    if may_download && add_component().is_ok() {
        return Ok(());
    }
    fetch_debian(cache)
}

fn add_component() -> Result<()> {
    process::progress(
        Command::new("rustup")
            .args(["component", "add", "rust-src"])
            .current_dir(process::repository()),
    )
}

/// Unpacks the library from Debian's package of rustc's release to the place where [`find`] looks.
fn fetch_debian(cache: &Cache) -> Result<()> {
    let release = rustc_release()?;
    let source = Source::from_this_machine().context(
        "this machine's apt, if it has one, knows no Debian\n  \
         the other way: rustup component add rust-src",
    )?;
    eprintln!("library source: fetching Debian's rust-src {release} (45 MB)");
    let work = cache.work_dir()?;
    let dir = work.path();
    for name in ["lists/partial", "cache/archives/partial", "package"] {
        fs::create_dir_all(dir.join(name))?;
    }
    fs::write(dir.join("apt.sources"), source.with_suite("trixie-backports"))?;
    process::progress(apt_get(dir).arg("update"))?;
    let package = dir.join("package");
    let download = format!("rust-src={release}*");
    process::progress(apt_get(dir).arg("download").arg(download).current_dir(&package))?;
    let deb = fs::read_dir(&package)?.next().context("apt-get downloaded nothing")??.path();
    process::progress(Command::new("dpkg-deb").arg("-x").arg(deb).arg(dir.join("all")))?;

    // The compiler's own source is nine tenths of the package; the library and its release are all that is read.
    let tree = format!("usr/src/rustc-{release}");
    for part in ["library", "src/version"] {
        work.keep(
            &dir.join("all").join(&tree).join(part),
            &dir.join("kept").join(&tree).join(part),
        )?;
    }
    let target = unpack_dir(&release).context("there is no cache")?;
    Ok(work.keep(&dir.join("kept"), &target)?)
}

/// apt-get with its own source, lists and cache, all under `dir`.
fn apt_get(dir: &Path) -> Command {
    let mut apt = Command::new("apt-get");
    apt.env("LC_ALL", "C");
    for (name, value) in [
        ("Dir::Etc::SourceList", dir.join("apt.sources")),
        ("Dir::Etc::SourceParts", "/dev/null".into()),
        ("Dir::State::Lists", dir.join("lists")),
        ("Dir::Cache", dir.join("cache")),
        // As root, apt would download as a user who cannot write here.
        ("APT::Sandbox::User", "root".into()),
        ("Acquire::Languages", "none".into()),
    ] {
        apt.arg("-o").arg(format!("{name}={}", value.display()));
    }
    apt
}
