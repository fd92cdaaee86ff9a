//! Ctrl-C.
//!
//! While a command [polls](polled), Ctrl-C asks it to stop; a second one, or one at any other time, ends the process
//! at once, without the file that is being written.

use super::{failure::Failure, terminal};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// The shell's code for a process ended by SIGINT.
pub const EXIT_CODE: u8 = 130;

static POLLED: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);
/// The file that is being written.
static PARTIAL: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Takes Ctrl-C over.
pub fn install() {
    let installed = ctrlc::set_handler(|| {
        if POLLED.load(Ordering::SeqCst) && !REQUESTED.swap(true, Ordering::SeqCst) {
            return;
        }
        remove_partial();
        process::exit(EXIT_CODE.into());
    });
    installed.expect("no other handler is set");
}

/// Runs `body`, which calls [`requested`] often.
pub fn polled<T>(body: impl FnOnce() -> T) -> T {
    REQUESTED.store(false, Ordering::SeqCst);
    POLLED.store(true, Ordering::SeqCst);
    let result = body();
    POLLED.store(false, Ordering::SeqCst);
    result
}

/// Whether Ctrl-C was pressed since [`polled`] began.
pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// Writes the file `path` by `write`, which gets the path of a temporary file beside it: `path` is whole or untouched.
///
/// # Errors
/// [`Failure::Environment`] if `write` fails or the file cannot be moved to `path`.
pub fn write_whole<E: std::fmt::Display>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), Failure> {
    let fault = |error: &dyn std::fmt::Display| format!("cannot write {}: {error}", path.display());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".partial-{}", process::id()));
    let partial = path.with_file_name(name);
    *lock() = Some(partial.clone());
    let written = write(&partial).map_err(|error| fault(&error));
    let moved = written.and_then(|()| fs::rename(&partial, path).map_err(|error| fault(&error)));
    remove_partial();
    moved.map_err(Failure::Environment)
}

/// Removes the temporary file, unless it has been moved to its place.
fn remove_partial() {
    let Some(path) = lock().take() else { return };
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let path = path.display();
            terminal::note(format_args!("warning: cannot remove {path}: {error}"));
        }
        _ => {}
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<PathBuf>> {
    PARTIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_or_untouched() {
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
