//! Output: the result on stdout; progress, speed and errors on stderr.

use super::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use std::{
    fmt,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

/// How long a prompt is computed before its progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// A progress bar for the weights, called with bytes done and bytes in total. Nothing is drawn
/// where stderr is not a terminal.
pub fn loading_bar() -> impl Fn(usize, usize) + Sync {
    called("loading {wide_bar} {bytes}/{total_bytes}")
}

/// A progress bar for quantising, called with elements done and in total. Nothing is drawn where
/// stderr is not a terminal.
pub fn quantizing_bar() -> impl Fn(usize, usize) {
    called("quantizing {wide_bar} {percent} %")
}

/// A bar that is called with what is done and all there is, and gone at the end.
fn called(template: &str) -> impl Fn(usize, usize) + Sync {
    let bar = bar(template);
    move |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
        if done >= total {
            bar.finish_and_clear();
        }
    }
}

/// A progress bar for a file that is fetched, of which `received` bytes are there. Nothing is drawn
/// where stderr is not a terminal.
pub fn fetching_bar(bytes: Option<u64>, received: u64) -> ProgressBar {
    let bar = bar("{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    if let Some(bytes) = bytes {
        bar.set_length(bytes);
    }
    let bar = bar.with_position(received);
    // What was there before has no part in the speed.
    bar.reset_eta();
    bar
}

/// A progress bar over kernels. Nothing is drawn where stderr is not a terminal.
pub fn kernels_bar(num_kernels: usize) -> ProgressBar {
    let bar = bar("kernels {wide_bar} {pos}/{len}");
    bar.set_length(num_kernels as u64);
    bar
}

/// A progress bar for the tokens of a prompt, shown after a second where stderr is a terminal.
pub struct PromptBar {
    start: Instant,
    bar: Option<ProgressBar>,
}

impl PromptBar {
    /// A bar that is not drawn yet.
    pub fn new() -> Self {
        PromptBar { start: Instant::now(), bar: None }
    }

    /// Shows `done` of `total` tokens.
    pub fn update(&mut self, done: usize, total: usize) {
        if done >= total {
            return self.clear();
        }
        if self.start.elapsed() >= PATIENCE {
            let bar = self.bar.get_or_insert_with(|| bar("prompt {wide_bar} {pos}/{len} tokens"));
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
    }

    /// Removes the bar from the screen, before text is written there.
    pub fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// A bar that a failure or Ctrl-C removes from the screen too.
fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the template is well-formed");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style)
        .with_finish(ProgressFinish::AndClear)
}

/// Writes `line` to stderr. A failed write is ignored: the result on stdout does not depend on it.
pub fn note(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Shows what a model thinks, dimmed, on stderr: the answer alone is on stdout.
pub struct Thoughts {
    is_dim: bool,
    is_open: bool,
}

impl Thoughts {
    /// Nothing has been thought yet.
    pub fn new() -> Self {
        Thoughts { is_dim: io::stderr().is_terminal(), is_open: false }
    }

    /// Shows `text`.
    pub fn show(&mut self, text: &str) {
        self.is_open = true;
        let (begin, end) = if self.is_dim { ("\x1b[2m", "\x1b[22m") } else { ("", "") };
        let mut stderr = io::stderr().lock();
        let _ = write!(stderr, "{begin}{text}{end}").and_then(|()| stderr.flush());
    }

    /// Ends what was shown, if anything was: the answer comes.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            note("\n");
        }
    }
}

/// Tells the user why a command failed, and returns the exit code.
pub fn report(failure: &Failure) -> ExitCode {
    if let Some(message) = failure.message() {
        note(format_args!("error: {message}"));
    }
    failure.exit_code()
}

/// Writes `text` to stdout at once.
///
/// # Errors
/// [`Failure::OutputClosed`] if its reader has gone, [`Failure::Environment`].
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::output("stdout", &error))
}
