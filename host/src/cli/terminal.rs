//! What goes to the terminal beside the text: progress and speed, on stderr.

use super::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    fmt,
    io::{self, Write},
};

/// A bar for the weights, in bytes done and bytes in all; nothing is drawn where stderr is no terminal.
pub fn loading_bar() -> impl Fn(usize, usize) + Sync {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("loading {wide_bar} {bytes}/{total_bytes}");
    bar.set_style(style.expect("the template is well-formed"));
    move |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

/// Writes `line` to stderr; a command does not fail because nobody can read what it says beside its output.
pub fn note(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes `text` to stdout at once.
///
/// # Errors
/// [`Failure::OutputClosed`] if nobody reads it any more, [`Failure::Environment`].
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::output("stdout", &error))
}
