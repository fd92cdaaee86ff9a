//! halfwarp's errors as Dynamo's: which of them a request may try again on another worker.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use halfwarp::{EngineError, ExecError};

/// A request, or options, that cannot be served here or elsewhere.
pub fn invalid(message: impl Into<String>) -> DynamoError {
    of(ErrorType::Backend(BackendError::InvalidArgument), message)
}

/// The worker goes away, or has failed for good: the frontend sends the request to another one.
pub fn shut_down(message: impl Into<String>) -> DynamoError {
    of(ErrorType::Backend(BackendError::EngineShutdown), message)
}

/// A mistake of this program.
pub fn unknown(message: impl Into<String>) -> DynamoError {
    of(ErrorType::Backend(BackendError::Unknown), message)
}

fn of(kind: ErrorType, message: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(kind).message(message).build()
}

/// What an error of the engine means for a request, or for the start.
pub fn from_engine(error: &EngineError) -> DynamoError {
    let kind = match error {
        EngineError::Context { .. }
        | EngineError::TooMany { .. }
        | EngineError::Utilization { .. }
        | EngineError::EmptyPrompt
        | EngineError::PromptTooLong { .. }
        | EngineError::UnknownToken { .. }
        | EngineError::Sampling(_)
        | EngineError::Model(_)
        | EngineError::Exec(ExecError::Ranks(_)) => {
            ErrorType::Backend(BackendError::InvalidArgument)
        }
        // The frontend may have another worker with a shorter queue.
        EngineError::QueueFull { .. } => ErrorType::WorkerOverloaded,
        EngineError::ShuttingDown
        | EngineError::Stopped(_)
        | EngineError::Memory(_)
        | EngineError::Thread(_)
        | EngineError::Exec(
            ExecError::Driver { .. }
            | ExecError::OutOfMemory { .. }
            | ExecError::NoDevice(_)
            | ExecError::RankFailed(_),
        ) => ErrorType::Backend(BackendError::EngineShutdown),
        _ => ErrorType::Backend(BackendError::Unknown),
    };
    of(kind, error.to_string())
}
