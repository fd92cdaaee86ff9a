//! The command line: one file per command.

mod bench;
mod chart;
mod chat;
mod choices;
mod completions;
mod doctor;
mod failure;
mod fetch;
mod generate;
mod grammar;
mod imatrix;
mod interrupt;
mod list;
mod logits;
mod mission;
mod model;
mod output_file;
mod pasted;
mod perplexity;
mod plot;
mod profile;
mod prompt;
mod ptx;
mod pull;
mod quantize;
mod random_model;
mod rm;
mod sampling;
#[cfg(feature = "server")]
mod serve;
mod session;
mod terminal;
mod tokenize;
mod validate;

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use failure::Failure;
use std::{env, process::ExitCode};

const FIRST_STEPS: &str = "\
First steps:
  halfwarp fetch                                  fetch the default model, once
  halfwarp pull Qwen/Qwen2.5-0.5B-Instruct        or one of the Hugging Face Hub
  halfwarp generate -p \"Once upon a time\" -n 50
  halfwarp chat

halfwarp COMMAND --help explains a command and its options.";

/// Runs large language models on NVIDIA GPUs and on the CPU, with every GPU kernel written in Rust.
#[derive(Parser)]
#[command(name = "halfwarp", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = FIRST_STEPS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a prompt, or answer it with --chat.
    Generate(generate::GenerateArgs),
    /// Talk with a model.
    #[command(alias = "cli")]
    Chat(chat::ChatArgs),
    /// Serve a model over HTTP, as the OpenAI API has it.
    #[cfg(feature = "server")]
    Serve(serve::ServeArgs),
    /// Fetch the default model into the cache.
    Fetch(fetch::FetchArgs),
    /// Pull a model from the Hugging Face Hub into the cache that Python's tools share.
    Pull(pull::PullArgs),
    /// List the models that are in the caches.
    List,
    /// Delete a model from its cache.
    Rm(rm::RmArgs),
    /// Write the logits of every position of a text to a file.
    Logits(logits::LogitsArgs),
    /// Measure how well a model predicts a text.
    Perplexity(perplexity::Args),
    /// Compare f16 with f32 on a device: speed, memory, logits, every layer, a haiku; the exit code
    /// is 1 beyond a bound.
    Validate(validate::ValidateArgs),
    /// Write a model as GGUF, with its weights in fewer bits.
    Quantize(quantize::Args),
    /// Write how much each column of a model's weights matters on a text, for quantize --imatrix.
    Imatrix(imatrix::Args),
    /// Turn a text into token ids, or token ids into a text.
    Tokenize(tokenize::TokenizeArgs),
    /// Time a model's prompts and generated tokens, or the GPU kernels.
    Bench(bench::BenchArgs),
    /// Time each operation of a model's steps, beside what the device can do.
    Profile(profile::ProfileArgs),
    /// List, print, measure, compare and check the GPU kernels.
    #[command(subcommand)]
    Ptx(ptx::Command),
    /// Write a model of random weights in the shapes of a real one.
    #[command(hide = true)]
    RandomModel(random_model::RandomModelArgs),
    /// Draw the plots of docs/performance.md from the rows of a directory of benches/record.
    #[command(hide = true)]
    Plot(plot::PlotArgs),
    /// Report GPU, CPU and models of this machine; the exit code is 1 if no model can run.
    Doctor,
    /// Print the completions of a shell.
    Completions(completions::CompletionsArgs),
    /// Print the manual page.
    Man(completions::ManArgs),
}

/// Parses the arguments, runs the command, and tells the user how it failed, if it did.
pub fn main() -> ExitCode {
    interrupt::install();
    output_file::install();
    let result = parse().and_then(|cli| match cli.command {
        Command::Generate(args) => generate::run(&args),
        Command::Chat(args) => chat::run(&args),
        #[cfg(feature = "server")]
        Command::Serve(args) => serve::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Imatrix(args) => imatrix::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::RandomModel(args) => random_model::run(&args),
        Command::Plot(args) => plot::run(&args),
        Command::Ptx(command) => ptx::run(&command),
        Command::Doctor => doctor::run(),
        Command::Fetch(args) => fetch::run(&args),
        Command::Pull(args) => pull::run(&args),
        Command::List => list::run(),
        Command::Rm(args) => rm::run(&args),
        Command::Completions(args) => completions::completions(&args, Cli::command()),
        Command::Man(args) => completions::man(&args, Cli::command()),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => terminal::report(&failure),
    }
}

/// Help and version are printed as clap has them, a mistake in the arguments in two lines.
fn parse() -> Result<Cli, Failure> {
    let pasted::Expanded { args, without_effect } =
        pasted::expand(env::args_os().collect(), &Cli::command())?;
    for note in without_effect {
        terminal::note(format_args!("note: {note}"));
    }
    Cli::try_parse_from(args).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => Failure::Input(mistake(&error.to_string())),
    })
}

/// clap's message up to its usage, on one line, and where to find help.
fn mistake(message: &str) -> String {
    let end = ["\n\nUsage:", "\n\nFor more"].iter().filter_map(|next| message.find(next)).min();
    let what = message[..end.unwrap_or(message.len())].trim_start_matches("error: ");
    let words: Vec<&str> = what.split_whitespace().collect();
    format!("{}\nhalfwarp COMMAND --help lists the options", words.join(" "))
}
