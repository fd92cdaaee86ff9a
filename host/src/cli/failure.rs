//! Why a command failed: what the user is told, and the exit code.

use halfwarp::{EngineError, ExecError, OpenError, TextError, models::ResolveError};
use std::{fmt, process::ExitCode};

/// Why a command ended before it was done.
#[derive(Debug)]
pub enum Failure {
    /// What the user gave is wrong: exit code 2.
    Input(String),
    /// The machine cannot do it (no such device, no memory, disk full): exit code 1.
    Environment(String),
    /// The emulator found a fault of a kernel: exit code 1, with the whole report.
    Kernel(String),
    /// Ctrl-C: exit code 130.
    Interrupted,
    /// The reader of the output has gone, as in `halfwarp ... | head -1`: exit code 0.
    OutputClosed,
}

/// The shell's code for a process ended by SIGINT.
pub const INTERRUPTED: u8 = 130;

impl Failure {
    /// What the user is told; nothing where the user knows, or nobody reads.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::Input(message) | Failure::Environment(message) => Some(two_lines(message)),
            Failure::Kernel(report) => Some(lines(report)),
            Failure::Interrupted | Failure::OutputClosed => None,
        }
    }

    /// The exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Input(_) => ExitCode::from(2),
            Failure::Environment(_) | Failure::Kernel(_) => ExitCode::FAILURE,
            Failure::Interrupted => ExitCode::from(INTERRUPTED),
            Failure::OutputClosed => ExitCode::SUCCESS,
        }
    }

    /// A failed write to `what`: its reader has gone, or the machine is at fault.
    pub fn output(what: impl fmt::Display, error: &std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Environment(format!("cannot write to {what}: {error}")),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        Failure::Input(error.to_string())
    }
}

impl From<ResolveError> for Failure {
    fn from(error: ResolveError) -> Self {
        Failure::Input(error.to_string())
    }
}

impl From<TextError> for Failure {
    fn from(error: TextError) -> Self {
        Failure::Input(error.to_string())
    }
}

impl From<ExecError> for Failure {
    fn from(error: ExecError) -> Self {
        EngineError::from(error).into()
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Memory(_)
            | EngineError::Exec(
                ExecError::Budget(_)
                | ExecError::OutOfMemory { .. }
                | ExecError::Driver { .. }
                | ExecError::NoDevice(_),
            ) => Failure::Environment(error.to_string()),
            EngineError::Exec(ExecError::Fault(fault)) => Failure::Kernel(fault.to_string()),
            _ => Failure::Input(error.to_string()),
        }
    }
}

/// Characters of a line at most: room for the longest path that a system has.
const MAX_CHARS: usize = 5000;

/// At most two lines of bounded length, and no control characters: parts of a message may come from a hostile file.
fn two_lines(message: &str) -> String {
    match message.trim().split_once('\n') {
        Some((first, rest)) => format!("{}\n{}", printable(first), printable(rest)),
        None => printable(message.trim()),
    }
}

/// As many lines as `report` has, with no other control characters.
fn lines(report: &str) -> String {
    report.lines().map(printable).collect::<Vec<_>>().join("\n")
}

/// A line of bounded length with no control characters.
fn printable(text: &str) -> String {
    let visible = |char: char| if char.is_control() { ' ' } else { char };
    text.chars().take(MAX_CHARS).map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_lacks_is_no_mistake_of_the_user() {
        let driver = ExecError::Driver { call: "cuInit".to_owned(), error: "999".to_owned() };
        assert!(matches!(EngineError::from(driver).into(), Failure::Environment(_)));
        let device = ExecError::NoDevice("there is no cuda:9".to_owned());
        assert!(matches!(EngineError::from(device).into(), Failure::Environment(_)));
    }

    #[test]
    fn a_kernels_fault_is_reported_whole() {
        let kind = simt::FaultKind::Deadlock(Vec::new());
        let fault = simt::Fault { kernel: "rope".to_owned(), by: None, kind };
        let failure = EngineError::from(ExecError::from(fault)).into();
        assert!(matches!(failure, Failure::Kernel(report) if report == "deadlock in `rope`"));
        assert_eq!(lines("race\n  a\x1b[2J\n  b\n  c"), "race\n  a [2J\n  b\n  c");
    }

    #[test]
    fn a_message_has_two_lines_at_most_and_no_escape_sequences() {
        assert_eq!(two_lines("what\nwhat to do\n"), "what\nwhat to do");
        assert_eq!(two_lines(&"é".repeat(1 << 20)), "é".repeat(MAX_CHARS));
        assert_eq!(two_lines("tensor \x1b[2J\r is bad\na\nb"), "tensor  [2J  is bad\na b");
    }
}
