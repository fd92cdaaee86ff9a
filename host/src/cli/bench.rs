//! `halfwarp bench`.

use super::{
    failure::Failure,
    model::{AccumulateArg, EngineArgs, GemmArg, TargetArg},
    terminal,
};
use clap::{Subcommand, ValueEnum};
use halfwarp::exec::{cuda, default_cubin_dir};
use halfwarp::plan::Precision;
use halfwarp::profile::decode::{self, Workload};
use halfwarp::profile::gemm::{BenchError, Row, Shape, Subject, measure, shapes};
use halfwarp::{EngineError, Gemm, Target};
use std::{num::NonZeroUsize, str::FromStr};

/// The commands of `halfwarp bench`.
#[derive(Subcommand)]
pub enum Command {
    /// Time a kernel at the shapes of real models; each is verified first.
    Kernels(KernelsArgs),
    /// Time the decode steps of a model with one or more sequences.
    Decode(DecodeArgs),
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

/// Arguments of `halfwarp bench kernels`.
#[derive(clap::Args)]
pub struct KernelsArgs {
    /// The operation
    #[arg(long, value_enum)]
    op: Op,
    /// Type of the operands
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Type,
    /// Which GEMM kernels to time
    #[arg(long, value_enum, default_value_t = GemmArg::Halfwarp)]
    gemm: GemmArg,
    /// Accumulators of f16 GEMMs with more than 16 rows
    #[arg(long, value_enum, default_value_t = AccumulateArg::F32)]
    accumulate: AccumulateArg,
    /// Target of the kernels [default: the newest that the GPU runs]
    #[arg(long, value_enum)]
    target: Option<TargetArg>,
    /// Only this shape: C[M, N] = A[M, K] * B[N, K]^T; repeat it for more [default: shapes of real models]
    #[arg(long = "shape", value_name = "M,N,K")]
    shapes: Vec<ShapeArg>,
    /// Number of the GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: usize,
    /// Print one JSON object per line
    #[arg(long)]
    jsonl: bool,
}

/// Operations that can be timed.
#[derive(Clone, Copy, ValueEnum)]
enum Op {
    /// Linear layers
    Gemm,
}

/// Types of operands.
#[derive(Clone, Copy, ValueEnum)]
enum Type {
    F32,
    F16,
    Bf16,
}

#[derive(Clone, Copy)]
struct ShapeArg(Shape);

impl FromStr for ShapeArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sizes: Option<Vec<usize>> = text.split(',').map(|size| size.parse().ok()).collect();
        match sizes.as_deref() {
            Some(&[m, n, k]) if m > 0 && n > 0 && k > 0 => Ok(ShapeArg(Shape { m, n, k })),
            _ => Err("expected three numbers above 0, such as 512,9728,896".to_owned()),
        }
    }
}

/// Runs a benchmark and prints its figures.
pub fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Kernels(args) => kernels(args),
        Command::Decode(args) => decode(args),
    }
}

/// Most tokens of a step, on every device: it decides how many steps the prompts need.
const MAX_TOKENS: usize = 512;

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

fn kernels(args: &KernelsArgs) -> Result<(), Failure> {
    let Op::Gemm = args.op;
    let gemm = Gemm::from(args.gemm);
    let precision = match args.dtype {
        Type::F32 => Precision::F32,
        Type::F16 => Precision::F16,
        Type::Bf16 => Precision::BF16,
    };
    let subject = Subject {
        gpu: args.gpu,
        gemm,
        accumulate: args.accumulate.into(),
        target: args.target.map(Target::from),
        precision,
        cubin_dir: default_cubin_dir(),
    };
    subject.check().map_err(failure)?;
    cuda::free_memory(args.gpu)?;
    let given: Vec<Shape> = args.shapes.iter().map(|shape| shape.0).collect();
    if !args.jsonl {
        terminal::print(&format!(
            "{:>6} {:>7} {:>6} {:>10} {:>8} {:>7} {:>9}\n",
            "M", "N", "K", "us", "TFLOP/s", "GB/s", "error"
        ))?;
    }
    for shape in if given.is_empty() { shapes() } else { given } {
        let row = measure(&subject, shape).map_err(failure)?;
        let line = if args.jsonl {
            serde_json::json!(row).to_string()
        } else {
            let Row { m, n, k, us, tflops, gbs, error, .. } = row;
            format!("{m:>6} {n:>7} {k:>6} {us:>10.2} {tflops:>8.1} {gbs:>7.0} {error:>9.1e}")
        };
        terminal::print(&(line + "\n"))?;
    }
    Ok(())
}

fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Exec(error) => error.into(),
        BenchError::Plan(error) => EngineError::Model(error.into()).into(),
        wrong => Failure::Environment(wrong.to_string()),
    }
}
