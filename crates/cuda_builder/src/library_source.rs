//! Finds the source of `core`, which the device build compiles for the GPU.
//!
//! It has to be of the same release as rustc. It is looked for in this order:
//! 1. the variable [`VARIABLE`], alone if it is set;
//! 2. rustup's component `rust-src`: `<sysroot>/lib/rustlib/src/rust/library`;
//! 3. Debian's package `rust-src`: `/usr/src/rustc-<release>/library`;
//! 4. the same package unpacked without root by `cargo xtask setup`, below [`unpack_dir`].

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the directory `library` of a Rust source tree; if set, no other place is searched.
pub const VARIABLE: &str = "HALFWARP_RUST_SRC";

/// Why the source of `core` was not found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibrarySourceError {
    /// It is in none of the directories.
    #[error(
        "the source of Rust's core library {release} is not on this machine; GPU kernels need it\n\
         to get it: rustup component add rust-src, or in halfwarp's repository: cargo xtask setup"
    )]
    Missing {
        /// Release of the rustc in use, such as `1.95.0`.
        release: String,
    },
    /// The variable names a directory without the right source.
    #[error(
        "{VARIABLE}={path}: {why}\n\
         set it to the directory `library` of the release's source, or unset it"
    )]
    Variable {
        /// Value of the variable.
        path: String,
        /// What is wrong there.
        why: String,
    },
    /// rustc did not report its release or sysroot.
    #[error("`rustc {question}` failed: {why}")]
    Rustc {
        /// The arguments.
        question: String,
        /// What went wrong.
        why: String,
    },
}

/// The directory `library` of the source tree of the rustc in use.
///
/// # Errors
/// - [`LibrarySourceError::Missing`] if it is in none of the places;
/// - [`LibrarySourceError::Variable`] if [`VARIABLE`] names a directory without it;
/// - [`LibrarySourceError::Rustc`] if rustc does not run.
pub fn find() -> Result<PathBuf, LibrarySourceError> {
    let release = rustc_release()?;
    if let Some(path) = env::var_os(VARIABLE) {
        let path = PathBuf::from(path);
        return match check(&path, &release) {
            Ok(()) => Ok(path),
            Err(why) => Err(LibrarySourceError::Variable { path: path.display().to_string(), why }),
        };
    }
    let in_sysroot = sysroot()?.join("lib/rustlib/src/rust/library");
    if has_core(&in_sysroot) {
        return Ok(in_sysroot);
    }
    [Some(debian_library(Path::new("/"), &release)), unpacked_library(&release)]
        .into_iter()
        .flatten()
        .find(|path| check(path, &release).is_ok())
        .ok_or(LibrarySourceError::Missing { release })
}

/// Where `cargo xtask setup` unpacks Debian's package `rust-src` of `release`; `None` if there is
/// no cache directory.
pub fn unpack_dir(release: &str) -> Option<PathBuf> {
    Some(model_cache::cache_dir().ok()?.join(format!("rust-src-{release}")))
}

/// Release of the rustc in use, such as `1.95.0`: in a build script that of cargo, else the one in
/// `PATH`.
///
/// # Errors
/// [`LibrarySourceError::Rustc`] if it does not run.
pub fn rustc_release() -> Result<String, LibrarySourceError> {
    let text = rustc_version()?;
    match text.lines().find_map(|line| line.strip_prefix("release: ")) {
        Some(release) => Ok(release.to_owned()),
        None => Err(LibrarySourceError::Rustc {
            question: VERSION.join(" "),
            why: "no release in the answer".to_owned(),
        }),
    }
}

/// What that rustc says of its version: release, commit, LLVM.
pub(crate) fn rustc_version() -> Result<String, LibrarySourceError> {
    ask_rustc(&VERSION)
}

const VERSION: [&str; 2] = ["--version", "--verbose"];

fn sysroot() -> Result<PathBuf, LibrarySourceError> {
    Ok(PathBuf::from(ask_rustc(&["--print", "sysroot"])?.trim_end()))
}

fn ask_rustc(args: &[&str]) -> Result<String, LibrarySourceError> {
    let failed = |why: String| LibrarySourceError::Rustc { question: args.join(" "), why };
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output =
        Command::new(rustc).args(args).output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where Debian's package puts the source, below `root`.
fn debian_library(root: &Path, release: &str) -> PathBuf {
    root.join(format!("usr/src/rustc-{release}/library"))
}

fn unpacked_library(release: &str) -> Option<PathBuf> {
    Some(debian_library(&unpack_dir(release)?, release))
}

fn has_core(library: &Path) -> bool {
    library.join("core/src/lib.rs").is_file()
}

/// Whether `library` is the library source of `release`; else what is wrong with it.
fn check(library: &Path, release: &str) -> Result<(), String> {
    if !has_core(library) {
        return Err("no core/src/lib.rs there".to_owned());
    }
    let version_file = library.with_file_name("src").join("version");
    let found = std::fs::read_to_string(&version_file)
        .map_err(|error| format!("its release is unknown: {}: {error}", version_file.display()))?;
    match found.trim() {
        found if found == release => Ok(()),
        found => Err(format!("it is the source of Rust {found}, rustc is {release}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source_tree(version: Option<&str>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("library/core/src")).unwrap();
        std::fs::write(dir.path().join("library/core/src/lib.rs"), "").unwrap();
        if let Some(version) = version {
            std::fs::create_dir_all(dir.path().join("src")).unwrap();
            std::fs::write(dir.path().join("src/version"), format!("{version}\n")).unwrap();
        }
        dir
    }

    #[test]
    fn accepts_the_same_release() {
        let tree = source_tree(Some("1.95.0"));
        assert_eq!(check(&tree.path().join("library"), "1.95.0"), Ok(()));
    }

    #[test]
    fn rejects_another_release() {
        let tree = source_tree(Some("1.94.1"));
        let why = check(&tree.path().join("library"), "1.95.0").unwrap_err();
        assert_eq!(why, "it is the source of Rust 1.94.1, rustc is 1.95.0");
    }

    #[test]
    fn rejects_an_unknown_release() {
        let tree = source_tree(None);
        let why = check(&tree.path().join("library"), "1.95.0").unwrap_err();
        assert!(why.starts_with("its release is unknown"), "{why}");
    }

    #[test]
    fn rejects_an_empty_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(check(dir.path(), "1.95.0"), Err("no core/src/lib.rs there".to_owned()));
    }

    #[test]
    fn a_missing_source_names_the_command() {
        let error = LibrarySourceError::Missing { release: "1.95.0".to_owned() }.to_string();
        assert_eq!(error.lines().count(), 2, "{error}");
        assert!(error.ends_with("cargo xtask setup"), "{error}");
    }

    #[test]
    fn rustc_reports_its_release() {
        let release = rustc_release().unwrap();
        assert_eq!(release.split('.').count(), 3, "{release}");
    }
}
