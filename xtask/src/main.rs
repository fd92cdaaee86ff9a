//! `cargo xtask`: everything that is done to this repository besides `cargo build`.

#[cfg(test)]
mod imports;
#[cfg_attr(not(feature = "tools"), allow(dead_code))]
mod process;
mod setup;
#[cfg(feature = "tools")]
mod tools;
#[cfg(test)]
mod words;

use anyhow::Result;
use std::{env, ffi::OsString, process::ExitCode};

const USAGE: &str = "\
usage: cargo xtask COMMAND
  setup                   fetch what is missing: Rust's library source and the default model
  demo                    set up, build, and let the default model answer
  test [ARGS]             set up and run all tests; ARGS go to `cargo test`
  clients                 run openai-python, anthropic's client, langchain-openai and lm-eval against `halfwarp serve` on
                          the CPU, and let openai-agents, Codex and Claude Code edit a file
  browser [ARGS]          test the page of `halfwarp serve` in headless Chromium, on the CPU; ARGS go to Python's unittest:
                          -k stop, test_keyboard
  deny                    hold dependencies to deny.toml: their sources and licences
  dynamo-demo [--device DEVICE]
                          two workers, on the CPU (cpu) or a GPU each (cuda), behind NVIDIA Dynamo's frontend: prompts go where
                          their beginning is, and a stream goes on when its worker is killed
  dist                    pack the binary with its licences and SHA256SUMS: target/archives
  embed                   build and run examples/embed outside of the repository, as a program that depends on halfwarp
  emulate --seeds N       run the emulator's tests under N seeds each
  fuzz                    check the fuzz targets with clippy, without building them
  json-schema [--requests N] [--seed S]
                          answers of JSON schemas by `halfwarp serve` on the CPU: each has to parse and validate
  kernel-crate            build and test the kernel crate of docs/kernel-crate.md outside of the repository
  mission [--dtype TYPE]  verify attention of 1 x 8 x 512 x 64 in f16 or fp8, and time it beside its peers
  ptxas [--bless] [--all] assemble the kernels that differ from kernels.lock, or all; spills, stack, warnings and lost
                          instructions fail, and so does a difference, unless --bless records it
  picture                 make the pictures of a terminal: docs/images/terminal.svg, ptx.svg
  soak [--requests N] [--seed S]
                          send `halfwarp serve` thousands of requests, good and bad; then it has to be as it was";

fn main() -> ExitCode {
    process::note_interrupts();
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    match dispatch(&args) {
        Ok(code) => code,
        Err(_) if process::interrupted() => {
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Cargo's tests. Of the product, too, with the emulator, which its own builds leave out.
const TEST: [&str; 4] = ["test", "--workspace", "--features", "halfwarp/emulator"];

fn dispatch(args: &[OsString]) -> Result<ExitCode> {
    let words: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap_or_default()).collect();
    match words[..] {
        ["setup"] => setup::run()?,
        ["demo"] => demo()?,
        ["test"] => {
            setup::run()?;
            // All but examples, which clippy compiles: linked, each is as large as the library.
            let parts = [&["--lib", "--bins", "--tests"][..], &["--doc"]];
            for part in parts {
                process::show(process::cargo()?.args(TEST).args(part))?;
            }
        }
        ["test", ..] => {
            setup::run()?;
            process::show(process::cargo()?.args(TEST).args(&args[1..]))?;
        }
        [] => return Ok(usage()),
        [..] => return others(args),
    }
    Ok(ExitCode::SUCCESS)
}

/// The commands of the feature `tools`.
#[cfg(feature = "tools")]
fn others(args: &[OsString]) -> Result<ExitCode> {
    tools::dispatch(args)
}

/// The same in this package with its default features, which a first build goes without.
#[cfg(not(feature = "tools"))]
fn others(args: &[OsString]) -> Result<ExitCode> {
    let run = ["run", "--quiet", "--package", "xtask", "--"];
    let status = process::cargo()?.args(run).args(args).status()?;
    process::check_interrupt()?;
    Ok(ExitCode::from(status.code().map_or(1, |code| code as u8)))
}

/// What is possible, for what is not.
fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

/// From a fresh clone to text, on whatever device is there.
fn demo() -> Result<()> {
    const GENERATE: [&str; 6] =
        ["generate", "--chat", "-n", "200", "-p", "In two sentences: why is the sky blue?"];
    setup::run()?;
    let mut halfwarp = process::halfwarp(&["--release"])?;
    eprintln!("\n$ {}", process::shell_line("halfwarp", &GENERATE));
    process::show(halfwarp.args(GENERATE))
}
