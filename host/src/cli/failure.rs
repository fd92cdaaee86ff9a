//! Why a command failed: what the user is told, and the exit code.

use halfwarp::{
    EngineError, ExecError, ModelError, OpenError, PlanError, TextError, WeightsError,
    exec::GemmError,
    models::ResolveError,
    plan::{BudgetError, Dtype, Fits},
};
use hub::HubError;
use machine_code::{FindError, ToolError};
use model_cache::FetchError;
use std::{error::Error, fmt, io, iter, process::ExitCode};

/// Why a command ended before it was done.
#[derive(Debug)]
pub enum Failure {
    /// What the user gave is wrong: exit code 2.
    Input(String),
    /// The machine cannot do it (no such device, no memory, disk full): exit code 1.
    Environment(String),
    /// The emulator found a fault of a kernel: exit code 1, with the whole report.
    #[cfg(feature = "emulator")]
    Kernel(String),
    /// What the command looks for was found, and printed: exit code 1.
    Found,
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
            #[cfg(feature = "emulator")]
            Failure::Kernel(report) => Some(lines(report)),
            Failure::Found | Failure::Interrupted | Failure::OutputClosed => None,
        }
    }

    /// The exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Input(_) => ExitCode::from(2),
            Failure::Environment(_) | Failure::Found => ExitCode::FAILURE,
            #[cfg(feature = "emulator")]
            Failure::Kernel(_) => ExitCode::FAILURE,
            Failure::Interrupted => ExitCode::from(INTERRUPTED),
            Failure::OutputClosed => ExitCode::SUCCESS,
        }
    }

    /// A failed write to `what`: its reader has gone, or the machine is at fault.
    pub fn output(what: impl fmt::Display, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Environment(format!("cannot write to {what}: {error}")),
        }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let causes = iter::successors(Some(&error as &(dyn Error + 'static)), |&at| at.source());
        let mut systems = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
        if systems.any(|cause| cause.kind() == io::ErrorKind::OutOfMemory) {
            Failure::Environment(error.to_string())
        } else {
            Failure::Input(error.to_string())
        }
    }
}

/// Errors whose message is what the user is told.
macro_rules! told {
    ($($error:ty: $kind:ident),*) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Failure::$kind(error.to_string())
            }
        }
    )*};
}

told!(
    ResolveError: Input, FetchError: Environment, TextError: Input, FindError: Input,
    ToolError: Environment
);

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        let message = error.to_string();
        if error.is_mistake() { Failure::Input(message) } else { Failure::Environment(message) }
    }
}

impl From<ExecError> for Failure {
    fn from(error: ExecError) -> Self {
        EngineError::from(error).into()
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        // The library's advice names no options, ours does.
        let message = match hint(&error) {
            Some(hint) => format!("{}\n{hint}", message.lines().next().unwrap_or_default()),
            None => message,
        };
        match error {
            EngineError::Memory(_)
            | EngineError::Stopped(_)
            | EngineError::Thread(_)
            | EngineError::Exec(
                ExecError::OutOfMemory { .. }
                | ExecError::Driver { .. }
                | ExecError::NoDevice(_)
                | ExecError::RankFailed(_),
            ) => Failure::Environment(message),
            #[cfg(feature = "emulator")]
            EngineError::Exec(ExecError::Fault(_)) => Failure::Kernel(message),
            _ => Failure::Input(message),
        }
    }
}

/// The options that help against `error`.
fn hint(error: &EngineError) -> Option<String> {
    let hint = match error {
        EngineError::PromptTooLong { .. } => {
            "-c N makes the context longer, -c 0 as long as the model allows"
        }
        EngineError::Memory(BudgetError { fits: Fits::Context(len), .. }) => {
            return Some(format!("a context of {len} tokens would fit: -c {len}"));
        }
        EngineError::Model(ModelError::Unaligned { .. }) => "use --dtype f32",
        EngineError::Model(ModelError::Plan(PlanError::Accumulate { .. })) => {
            "use --dtype f16, or leave --accumulate out"
        }
        EngineError::Model(ModelError::Plan(PlanError::CacheBlocks { of, .. })) => {
            return Some(format!("use --cache-type-{of} fp8, or f16"));
        }
        EngineError::Exec(ExecError::TargetOnCpu(_)) => {
            "choose --device cuda or emulated, or leave --target out"
        }
        EngineError::Exec(ExecError::TargetTooNew { .. }) => {
            "choose --target sm_80, or leave --target out"
        }
        EngineError::Exec(ExecError::Gemm(error)) => match error {
            GemmError::CublasOperands { .. } => {
                "use --dtype f16, or --gemm cublas, which accumulates in f32"
            }
            GemmError::CublasAccumulate { .. } => {
                "use --gemm cublas-f16, or leave --accumulate out"
            }
            GemmError::AccumulateOnCpu => {
                "choose --device cuda or emulated, or leave --accumulate out"
            }
            GemmError::NoGpu { .. } => "choose a GPU with --device cuda, or leave --gemm out",
            GemmError::CublasTarget { .. } => "leave --target or --gemm out",
            _ => return None,
        },
        EngineError::Exec(ExecError::Weights(cause)) => match cause.downcast_ref()? {
            WeightsError::OutOfRange { storage: Dtype::F16, .. } => {
                "use --dtype bf16, which has the range of f32"
            }
            WeightsError::OutOfRange { .. } => "use --dtype f32",
            _ => return None,
        },
        _ => return None,
    };
    Some(hint.to_owned())
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
    fn what_the_machine_lacks_is_no_mistake_of_the_user() {
        let driver = ExecError::Driver { call: "cuInit".to_owned(), error: "999".to_owned() };
        assert!(matches!(EngineError::from(driver).into(), Failure::Environment(_)));
        let device = ExecError::NoDevice("there is no cuda:9".to_owned());
        assert!(matches!(EngineError::from(device).into(), Failure::Environment(_)));
        let rank = ExecError::RankFailed("one hangs".to_owned());
        assert!(matches!(EngineError::from(rank).into(), Failure::Environment(_)));
        let ranks = ExecError::Ranks("2 GPUs are named for 4 ranks".to_owned());
        assert!(matches!(EngineError::from(ranks).into(), Failure::Input(_)));
    }

    #[test]
    #[cfg(feature = "emulator")]
    fn a_kernels_fault_is_reported_whole() {
        let kind = simt::FaultKind::Deadlock(Vec::new());
        let fault = simt::Fault { kernel: "rope".to_owned(), by: None, pairing: None, kind };
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
