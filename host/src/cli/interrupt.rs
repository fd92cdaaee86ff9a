//! Ctrl-C.
//!
//! While a command [polls](polled), the first Ctrl-C asks it to stop. A second one, or one at any other time, ends the
//! process at once, and removes the file that is being written.

use super::{failure, output_file};
use std::{
    process,
    sync::atomic::{AtomicBool, Ordering},
};

static POLLED: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Installs the handler of SIGINT.
pub fn install() {
    let installed = ctrlc::set_handler(|| {
        if POLLED.load(Ordering::SeqCst) && !REQUESTED.swap(true, Ordering::SeqCst) {
            return;
        }
        output_file::remove_partial();
        process::exit(failure::INTERRUPTED.into());
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
