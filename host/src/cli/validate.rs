//! `halfwarp validate`.

mod conditions;
mod plots;

use super::{
    failure::Failure,
    model::{ModelArgs, start_threads},
    output_file, terminal,
};
use halfwarp::validate::{Conditions, Limits, Options, Report, Settings, ValidateError, validate};
use halfwarp::{Device, EngineOptions};
use rand::RngExt;
use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Both settings run on one device, one after the other. Compared are the time to the first token, tokens a second and
memory; the logits on a text; the values of every operation, layer by layer, so that the place where f16 overflows or
loses precision shows; and a haiku about a random word. DIR gets validation.md, validation.csv and plots.

The exit code is 1 if the candidate has infinities or NaN where the reference has none, or differs by more than:
  logits on the text        relative error 1e-2, mean KL divergence 1e-3 nats
  next token, perplexity    the same most likely token at 99 % of the positions that have a clear one, perplexity
                            within 1 %
  residual stream           relative error 1e-2, after every layer
  haiku                     1e-2 in a token's probability, both reading the reference's text; its checks
Beside bf16, and a cache in 8 bits or fewer, these bounds are 8 times as wide.

Examples:
  halfwarp validate
  halfwarp validate -m model.gguf --candidate bf16 --out report
  halfwarp validate --reference f16+fusion=off --candidate f16
  halfwarp validate --reference f16 --candidate f16+kv=q8_0
  halfwarp validate --reference f32+attention=materialized --candidate f16+attention=materialized";

/// Arguments of `halfwarp validate`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ValidateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Where to run: auto, cpu, cuda, cuda:N, or emulated (the GPU kernels on the CPU, checked:
    /// slow; tiny models)
    #[arg(long, default_value = "auto", help_heading = "Device")]
    device: Device,
    /// Threads of the CPU [default: one for each core]
    #[arg(short, long, value_name = "N", help_heading = "Device")]
    threads: Option<NonZeroUsize>,
    /// What the candidate is held to: a type, and after a + each what else is not as usual
    #[arg(long, value_name = "SETTINGS", default_value = "f32")]
    reference: Settings,
    /// What is validated, likewise
    #[arg(long, value_name = "SETTINGS", default_value = "f16")]
    candidate: Settings,
    /// Draws the word of the haiku and its tokens [default: a new one each time]
    #[arg(short, long, value_name = "N")]
    seed: Option<u64>,
    /// Directory of the report, made if it is not there
    #[arg(
        short,
        long,
        value_name = "DIR",
        default_value = ".",
        help_heading = "Output",
        value_hint = clap::ValueHint::DirPath
    )]
    out: PathBuf,
}

/// Compares both settings, and writes the report.
///
/// # Errors
/// [`Failure::Found`] if a bound is broken; those of the engine; [`Failure::Input`] for a directory that cannot be made.
pub fn run(args: &ValidateArgs) -> Result<(), Failure> {
    if args.reference == args.candidate {
        return Err(Failure::Input(
            "--reference and --candidate are the same: there is nothing to compare".to_owned(),
        ));
    }
    start_threads(args.threads)?;
    let (model, name) = (args.model.open()?, args.model.name()?);
    make_dir(&args.out)?;
    let &ValidateArgs { reference, candidate, .. } = args;
    let options = Options {
        reference,
        candidate,
        engine: EngineOptions { device: args.device, ..EngineOptions::default() },
        seed: args.seed.unwrap_or_else(|| rand::rng().random::<u32>().into()),
        limits: Limits::of([reference, candidate]),
    };
    let report = validate(&model, &options, &mut |stage| terminal::note(stage))?;
    write(&report, &conditions::here(name, args.device), &args.out)?;
    terminal::print(&report.summary())?;
    let path = args.out.join("validation.md");
    terminal::print(&format!("report      {}\n", path.display()))?;
    if report.breaches().is_empty() { Ok(()) } else { Err(Failure::Found) }
}

impl From<ValidateError> for Failure {
    fn from(error: ValidateError) -> Self {
        match error {
            ValidateError::Engine(error) => error.into(),
            ValidateError::Text(error) => error.into(),
            other => Failure::Input(other.to_string()),
        }
    }
}

/// Makes the directory of the report: before the work, not after it.
fn make_dir(dir: &Path) -> Result<(), Failure> {
    if dir.metadata().is_ok_and(|existing| !existing.is_dir()) {
        return Err(Failure::Input(format!("{}: not a directory", dir.display())));
    }
    fs::create_dir_all(dir)
        .map_err(|error| Failure::Input(format!("cannot make {}: {error}", dir.display())))
}

fn write(report: &Report, conditions: &Conditions, dir: &Path) -> Result<(), Failure> {
    let plots = plots::write(report, dir)?;
    let files =
        [("validation.csv", report.csv()), ("validation.md", report.markdown(conditions, &plots))];
    for (name, text) in files {
        output_file::write_whole(&dir.join(name), |path| fs::write(path, &text))?;
    }
    Ok(())
}
