//! The kernel crate of `docs/kernel-crate.md`, built and tested outside of the repository, as its
//! reader would.

use anyhow::{Context, Result};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::process;

/// The workspace of the page, below the repository's root.
const FIXTURE: &str = "examples/kernel-crate";

/// How its manifests name the repository.
const GIT: &str = "git = \"https://github.com/halfwarp/halfwarp\"";

/// Copies the fixture to a temporary directory, tests its kernels on the emulator, compiles them to
/// PTX, and runs its program: on a GPU if there is one.
///
/// # Errors
/// If the copy cannot be made, a test fails, or the program does not build or run.
pub fn run() -> Result<()> {
    let copy = tempfile::tempdir().context("cannot make a temporary directory")?;
    copy_crate(&fixture(), copy.path())?;
    // The versions that this repository was tested with, without a look at the registry.
    let lock = process::repository().join("Cargo.lock");
    fs::copy(&lock, copy.path().join("Cargo.lock")).with_context(|| lock.display().to_string())?;
    for command in [&["test", "--workspace"][..], &["run", "--package", "my_app"]] {
        let mut cargo = process::cargo()?;
        cargo.current_dir(copy.path()).args(command);
        // Shared, so that `core` and most dependencies are compiled already.
        if std::env::var_os("CARGO_TARGET_DIR").is_none() {
            cargo.env("CARGO_TARGET_DIR", process::repository().join("target"));
        }
        process::show(&mut cargo)?;
    }
    Ok(())
}

fn fixture() -> PathBuf {
    process::repository().join(FIXTURE)
}

/// Copies the files in `from`; manifests depend on this repository by path.
fn copy_crate(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("cannot copy {}", from.display());
    for entry in fs::read_dir(from).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            if entry.file_name() == "target" {
                continue; // of somebody who builds in place
            }
            fs::create_dir(&to).with_context(failed)?;
            copy_crate(&path, &to)?;
        } else {
            copy_file(&path, &to).with_context(|| format!("cannot copy {}", path.display()))?;
        }
    }
    Ok(())
}

fn copy_file(path: &Path, to: &Path) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let is_manifest = path.file_name().is_some_and(|name| name == "Cargo.toml");
    fs::write(to, if is_manifest { by_path(&text, process::repository()) } else { text })
}

/// A manifest whose dependencies on the repository are paths below `repository`.
fn by_path(manifest: &str, repository: &Path) -> String {
    let line = |line: &str| match line.split_once(" = ") {
        Some((name, value)) if value.contains(GIT) => {
            let path = repository.join("crates").join(name);
            format!("{name} = {}\n", value.replace(GIT, &format!("path = {path:?}")))
        }
        _ => format!("{line}\n"),
    };
    manifest.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_on_the_repository_become_paths() {
        let manifest = format!("serde = \"1\"\nsimt = {{ {GIT} }}\n");
        let want = "serde = \"1\"\nsimt = { path = \"/halfwarp/crates/simt\" }\n";
        assert_eq!(by_path(&manifest, Path::new("/halfwarp")), want);
    }

    #[test]
    fn the_page_shows_the_files_as_they_are() {
        let page = process::repository().join("docs/kernel-crate.md");
        let page = fs::read_to_string(page).unwrap();
        for file in [
            "Cargo.toml",
            "rust-toolchain.toml",
            "kernels/Cargo.toml",
            "kernels/src/lib.rs",
            "kernels/src/saxpy.rs",
            "app/Cargo.toml",
            "app/build.rs",
        ] {
            let text = fs::read_to_string(fixture().join(file)).unwrap();
            let language = if file.ends_with(".rs") { "rust" } else { "toml" };
            let block = format!("`{file}`:\n\n```{language}\n{text}```\n");
            assert!(page.contains(&block), "docs/kernel-crate.md does not show {file} as it is");
        }
    }
}
