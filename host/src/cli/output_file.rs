//! Files that are complete or absent: written under a temporary name beside the final one, then renamed.
//!
//! Whatever ends the process early removes the temporary file: a failed write, Ctrl-C (through [`remove_partial`]), and
//! the limit on file sizes, whose signal [`install`] turns into a failed write.

use super::{failure::Failure, terminal};
use std::{
    fmt::Display,
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::{Mutex, PoisonError, atomic::AtomicBool},
};

/// The temporary files that are being written.
static PARTIAL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Makes a write beyond the limit on file sizes fail with EFBIG. Without a handler SIGXFSZ ends the process.
pub fn install() {
    #[cfg(unix)]
    {
        static FLAG: AtomicBool = AtomicBool::new(false);
        // Where no handler can be set, the signal ends the process as before.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, &FLAG);
    }
}

/// Whether the file `path` can be written: checked before the work, not after it.
///
/// # Errors
/// [`Failure::Input`] for a directory that is not there, or something that is no file.
pub fn check(path: &Path) -> Result<(), Failure> {
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(missing) = directory.filter(|dir| !dir.is_dir()) {
        return Err(Failure::Input(format!("{}: no such directory", missing.display())));
    }
    // A pipe or a device would be replaced by the file.
    if path.metadata().is_ok_and(|existing| !existing.is_file()) {
        return Err(Failure::Input(format!("{}: not a regular file", path.display())));
    }
    Ok(())
}

/// Writes the file `path` by `write`, which gets the path of the temporary file.
///
/// # Errors
/// [`Failure::Environment`] if `write` fails or the file cannot be renamed; `path` is unchanged then.
pub fn write_whole<E: Display>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), Failure> {
    write_all(&[path.to_owned()], |partial| write(&partial[0]))
}

/// Writes the files `paths` by `write`, which gets the paths of the temporary files: all or none.
///
/// # Errors
/// [`Failure::Environment`] if `write` fails or a file cannot be renamed.
pub fn write_all<E: Display>(
    paths: &[PathBuf],
    write: impl FnOnce(&[PathBuf]) -> Result<(), E>,
) -> Result<(), Failure> {
    let fault = |path: &Path, error: &dyn Display| {
        Failure::Environment(format!("cannot write {}: {error}", path.display()))
    };
    let partial = |path: &PathBuf| {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".partial-{}", process::id()));
        path.with_file_name(name)
    };
    let partials: Vec<PathBuf> = paths.iter().map(partial).collect();
    lock().clone_from(&partials);
    let written = write(&partials).map_err(|error| fault(&paths[0], &error));
    let moved = written.and_then(|()| {
        let mut pairs = partials.iter().zip(paths);
        pairs.try_for_each(|(from, to)| fs::rename(from, to).map_err(|error| fault(to, &error)))
    });
    remove_partial();
    moved
}

/// Removes the temporary files, except those that have their final names already.
pub fn remove_partial() {
    for path in lock().drain(..) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let path = path.display();
                terminal::note(format_args!("warning: cannot remove {path}: {error}"));
            }
            _ => {}
        }
    }
}

fn lock() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    PARTIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_complete_or_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        write_whole(&path, |partial| fs::write(partial, "first")).unwrap();
        let failed = write_whole(&path, |partial| {
            fs::write(partial, "sec")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert!(matches!(failed, Err(Failure::Environment(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "the temporary file is gone");
    }
}
