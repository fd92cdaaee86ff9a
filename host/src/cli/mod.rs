//! The command line: a command a file.

mod bench;
mod chat;
mod doctor;
mod failure;
mod generate;
mod interrupt;
mod logits;
mod model;
mod perplexity;
mod prompt;
mod ptx;
mod sampling;
mod session;
mod terminal;
mod tokenize;

use clap::{Parser, Subcommand, error::ErrorKind};
use failure::Failure;
use std::process::ExitCode;

/// Runs large language models, with every GPU kernel written in Rust.
#[derive(Parser)]
#[command(name = "halfwarp", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a prompt, or answer it with --chat.
    Generate(generate::Args),
    /// Talk with a model; Ctrl-C stops an answer, Ctrl-D ends.
    Chat(chat::Args),
    /// Write the logits of every position of a text.
    Logits(logits::Args),
    /// Measure how well a model predicts a text.
    Perplexity(perplexity::Args),
    /// Turn a text into token ids.
    Tokenize(tokenize::Args),
    /// Time the GPU kernels.
    #[command(subcommand)]
    Bench(bench::Command),
    /// Look at the GPU kernels.
    #[command(subcommand)]
    Ptx(ptx::Command),
    /// Say what was found on this machine, and what to do about what is missing.
    Doctor,
}

/// Parses the arguments, runs the command, and tells the user how it failed, if it did.
pub fn main() -> ExitCode {
    interrupt::install();
    let result = parse().and_then(|cli| match cli.command {
        Command::Generate(args) => generate::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Bench(command) => bench::run(&command),
        Command::Ptx(command) => ptx::run(&command),
        Command::Doctor => doctor::run(),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Help and version are printed as clap has them, a mistake in the arguments in two lines.
fn parse() -> Result<Cli, Failure> {
    Cli::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => Failure::Input(mistake(&error.to_string())),
    })
}

/// clap's message up to its usage, on one line, and where help is.
fn mistake(message: &str) -> String {
    let end = ["\n\nUsage:", "\n\nFor more"].iter().filter_map(|next| message.find(next)).min();
    let what = message[..end.unwrap_or(message.len())].trim_start_matches("error: ");
    let words: Vec<&str> = what.split_whitespace().collect();
    format!("{}\nhalfwarp COMMAND --help lists the arguments", words.join(" "))
}
