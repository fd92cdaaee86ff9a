//! What a first build goes without: checks, demonstrations and releases.

mod browser;
mod clients;
mod deny;
mod dist;
mod dynamo_demo;
mod embed;
mod emulate;
mod http;
mod kernel_crate;
mod licenses;
mod mission;
mod options;
mod picture;
mod programs;
mod ptxas;
mod random;
mod server;
mod soak;

use crate::{process, usage};
use anyhow::Result;
use dynamo_demo::Device;
use options::Options;
use std::{ffi::OsString, process::ExitCode};

/// Runs a command.
///
/// # Errors
/// Errors of the command.
pub fn dispatch(args: &[OsString]) -> Result<ExitCode> {
    let words: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap_or_default()).collect();
    match words[..] {
        ["clients"] => clients::run()?,
        ["browser", ..] => browser::run(&args[1..])?,
        ["deny"] => deny::run()?,
        ["dist"] => dist::run()?,
        ["dynamo-demo"] | ["dynamo-demo", "--device", "cpu"] => dynamo_demo::run(Device::Cpu)?,
        ["dynamo-demo", "--device", "cuda"] => dynamo_demo::run(Device::Cuda)?,
        ["embed"] => embed::run()?,
        ["emulate", "--seeds", seeds] => emulate::run(seeds)?,
        ["fuzz"] => fuzz()?,
        ["picture"] => picture::run()?,
        ["kernel-crate"] => kernel_crate::run()?,
        ["mission"] => mission::run("f16")?,
        ["mission", "--dtype", dtype @ ("f16" | "fp8")] => mission::run(dtype)?,
        ["mission", "--dtype", dtype] => {
            eprintln!("error: invalid value '{dtype}' for '--dtype <TYPE>': f16 or fp8");
            return Ok(ExitCode::from(2));
        }
        ["ptxas", ref rest @ ..] => match ptxas::Options::parse(rest) {
            Some(options) => ptxas::run(options)?,
            None => return Ok(usage()),
        },
        ["json-schema", ..] => clients::json_schema(&args[1..])?,
        ["soak", ref rest @ ..] => match Options::parse(rest, 10_000) {
            Some(options) => soak::run(options)?,
            None => return Ok(usage()),
        },
        _ => return Ok(usage()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Fuzz targets, and with them the library without its other features, under clippy.
fn fuzz() -> Result<()> {
    let mut clippy = process::guest_cargo(&process::repository().join("fuzz"), "clippy")?;
    process::show(clippy.args(["--bins", "--", "-D", "warnings"]))
}
