//! `halfwarp bench`.

mod kernels;

use super::{failure::Failure, mission, model::EngineArgs, terminal};
use clap::Subcommand;
use halfwarp::EngineOptions;
use halfwarp::bench::decode::{self, Workload};
use kernels::KernelsArgs;
use std::num::NonZeroUsize;

/// The commands of `halfwarp bench`.
#[derive(Subcommand)]
pub enum Command {
    /// Time kernels at the shapes of real models; each is verified first.
    Kernels(KernelsArgs),
    /// Time the decode steps of a model with one or more sequences.
    Decode(DecodeArgs),
    /// Verify and time attention of 1 x 8 x 512 x 64 in f16; without a GPU, verify it on the emulator.
    Mission(mission::Args),
}

/// Arguments of `halfwarp bench decode`.
#[derive(clap::Args)]
pub struct DecodeArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// Sequences in the batch
    #[arg(long, value_name = "N", default_value = "1")]
    sequences: NonZeroUsize,
    /// Tokens of each prompt
    #[arg(long, value_name = "N", default_value = "512")]
    prompt_tokens: NonZeroUsize,
    /// Decode steps to time
    #[arg(short, long = "n-predict", value_name = "N", default_value = "128")]
    n: NonZeroUsize,
    /// Print a JSON object
    #[arg(long)]
    jsonl: bool,
}

/// Runs a benchmark and prints its figures.
pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Kernels(args) => kernels::run(args),
        Command::Decode(args) => decode(args),
        Command::Mission(args) => mission::run(args),
    }
}

/// Most tokens of a step, on every device: it decides how many steps the prompts need.
const MAX_TOKENS: usize = EngineOptions::GPU_MAX_TOKENS;

fn decode(args: &DecodeArgs) -> Result<(), Failure> {
    let [num_seqs, prompt_len, num_steps] =
        [args.sequences, args.prompt_tokens, args.n].map(NonZeroUsize::get);
    let workload = Workload { num_seqs, prompt_len, num_steps };
    let needed = workload.context(MAX_TOKENS);
    let model = args.engine.open_model()?;
    if let Some(context) = args.engine.context.filter(|&context| (1..needed).contains(&context)) {
        return Err(Failure::Input(format!(
            "--ctx-size {context}: these prompts and steps need {needed} positions\n\
             leave it out, or use fewer --prompt-tokens or a smaller -n"
        )));
    }
    let mut engine = args.engine.engine_of(&model, needed, num_seqs, MAX_TOKENS)?;
    let row = decode::measure(&mut engine, &workload)?;
    let line = if args.jsonl {
        serde_json::json!(row).to_string()
    } else {
        format!(
            "{}\n{num_seqs} sequences after a prompt of {prompt_len} tokens each: {:.1} tok/s in total, \
             {:.0} us per step (median of {})",
            row.gpu, row.tok_per_s, row.us, row.steps
        )
    };
    terminal::print(&(line + "\n"))
}
