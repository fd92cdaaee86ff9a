//! How a command ends when it does not end well.

use super::terminal;
use halfwarp::{EngineError, ExecError, OpenError, TextError};
use std::{fmt, process::ExitCode};

/// Why a command ended before it was done.
#[derive(Debug)]
pub enum Failure {
    /// What the user gave is wrong: exit code 2.
    Input(String),
    /// The machine cannot do it: exit code 1.
    Environment(String),
    /// The emulator found a fault of a kernel: exit code 1, with the whole report.
    #[cfg(feature = "emulator")]
    Kernel(String),
    /// Ctrl-C: exit code 130.
    Interrupted,
    /// Nobody reads the output any more, as in `halfwarp ... | head -1`: no fault.
    OutputClosed,
}

impl Failure {
    /// Tells the user, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Failure::Input(message) => {
                terminal::note(format_args!("error: {}", two_lines(message)));
                ExitCode::from(2)
            }
            Failure::Environment(message) => {
                terminal::note(format_args!("error: {}", two_lines(message)));
                ExitCode::FAILURE
            }
            #[cfg(feature = "emulator")]
            Failure::Kernel(report) => {
                terminal::note(format_args!("error: {}", lines(report)));
                ExitCode::FAILURE
            }
            Failure::Interrupted => ExitCode::from(super::interrupt::EXIT_CODE),
            Failure::OutputClosed => ExitCode::SUCCESS,
        }
    }

    /// A failure to write to `what`: its reader has gone, or the machine is at fault.
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
                ExecError::Budget(_) | ExecError::OutOfMemory { .. } | ExecError::Driver { .. },
            ) => Failure::Environment(error.to_string()),
            #[cfg(feature = "emulator")]
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
#[cfg(feature = "emulator")]
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
    fn the_driver_is_no_fault_of_the_users() {
        let driver = ExecError::Driver { call: "cuInit".to_owned(), error: "999".to_owned() };
        assert!(matches!(EngineError::from(driver).into(), Failure::Environment(_)));
        let device = ExecError::NoDevice("there is no cuda:9".to_owned());
        assert!(matches!(EngineError::from(device).into(), Failure::Input(_)));
    }

    #[test]
    #[cfg(feature = "emulator")]
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
