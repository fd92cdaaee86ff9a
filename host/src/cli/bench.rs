//! `halfwarp bench`.

mod all_reduce;
mod baseline;
mod end_to_end;
mod fusion;
mod kernels;
mod long_context;
mod output;
mod serve;

use super::{failure::Failure, mission};
use all_reduce::AllReduceArgs;
use clap::Subcommand;
use end_to_end::EndToEndArgs;
use fusion::FusionArgs;
use kernels::KernelsArgs;
use long_context::LongContextArgs;
use serve::BenchServeArgs;

const EXAMPLES: &str = "\
Every combination of the values is a row, named as by llama-bench: pp512 computes a prompt of 512
tokens, tg128 generates 128, pp512+tg128 does both, and \"@ d4096\" does so after 4096 tokens that are
in the cache already. Without -p, -n and --pg the tests are pp512 and tg128. Without -c a test has
the context that it needs.

Examples:
  halfwarp bench
  halfwarp bench -m model.gguf -p 512,2048 -n 128 -d 0,8192
  halfwarp bench -n 128 -d 512 --sequences 1,8,32 -o jsonl > before.jsonl
  halfwarp bench -n 128 -d 512 --sequences 1,8,32 --baseline before.jsonl
  halfwarp bench kernels --op gemm --dtype f16
  halfwarp bench serve --url http://127.0.0.1:8080 --num-prompts 500 --rate 20";

/// Arguments of `halfwarp bench`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    end_to_end: EndToEndArgs,
}

/// The commands of `halfwarp bench`.
#[derive(Subcommand)]
enum Command {
    /// Time kernels at the shapes of real models; each is verified first.
    Kernels(KernelsArgs),
    /// Compare fused with unfused operations: launches and bytes by the plan, times on a GPU.
    Fusion(FusionArgs),
    /// Time all-reduces between GPUs of this machine; each is verified first.
    AllReduce(AllReduceArgs),
    /// Fill a long context, decode at its half and its end, and count the memory by part ("GPU-015
    /// ultra-mega-long context").
    LongContext(LongContextArgs),
    /// Verify and time attention of 1 x 8 x 512 x 64; without a GPU, verify it on the emulator.
    Mission(mission::MissionArgs),
    /// Send requests to an OpenAI server, and time what its clients see.
    Serve(BenchServeArgs),
}

/// Runs a benchmark and prints its figures.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    match &args.command {
        None => end_to_end::run(&args.end_to_end),
        Some(Command::Kernels(args)) => kernels::run(args),
        Some(Command::Fusion(args)) => fusion::run(args),
        Some(Command::AllReduce(args)) => all_reduce::run(args),
        Some(Command::LongContext(args)) => long_context::run(args),
        Some(Command::Mission(args)) => mission::run(args),
        Some(Command::Serve(args)) => serve::run(args),
    }
}
