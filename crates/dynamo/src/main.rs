//! `halfwarp-dynamo`: a worker of NVIDIA Dynamo.

use clap::Parser;
use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use halfwarp_dynamo::{Args, Backend};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let (backend, config) = match Args::parse().open() {
        Ok((options, config)) => (Arc::new(Backend::new(options)), config),
        Err(error) => return failed(&error.to_string(), 2),
    };
    match dynamo_backend_common::run(Arc::clone(&backend) as _, config) {
        Ok(()) => backend.failure().map_or(ExitCode::SUCCESS, |why| failed(why, 1)),
        Err(error) => match error.downcast_ref::<DynamoError>() {
            Some(error) => failed(error.message(), exit_code(error.error_type())),
            None => failed(&format!("{error:#}"), 1),
        },
    }
}

/// 2 for what the user gave, 1 for what the machine lacks.
fn exit_code(kind: ErrorType) -> u8 {
    if kind == ErrorType::Backend(BackendError::InvalidArgument) { 2 } else { 1 }
}

/// Says why in two lines at most.
fn failed(message: &str, code: u8) -> ExitCode {
    let lines: Vec<&str> = message.trim().lines().take(2).collect();
    eprintln!("error: {}", lines.join("\n"));
    ExitCode::from(code)
}
