//! `halfwarp profile`.

mod counters;
mod plots;
mod tables;

use super::{choices, model::EngineArgs};
use super::{failure::Failure, output_file, terminal};
use halfwarp::engine::StepSize;
use halfwarp::profile::{Profile, StepProfile, chrome_trace};
use halfwarp::{Engine, Model, PrecisionChoice};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::{fs, sync::Arc};

const EXAMPLES: &str = "\
Two steps are profiled: a prompt, and the step that decodes the token after it. Each operation is timed by itself: on
a GPU by events before and after, without the CUDA graph that a step usually is, on the CPU by the clock. Bytes and
operations are what it must read, write and compute; \"roofline\" is the share of what the device can do, by
measurement, in the better used of bandwidth and arithmetic.

Examples:
  halfwarp profile
  halfwarp profile -m model.gguf --device cuda -p 2048 --plot plots --chrome-trace trace.json
  halfwarp profile --dtype f16 --against f32 --csv operations.csv
  halfwarp profile --counters";

/// Tokens of the prompt where neither the user nor the model says otherwise.
const DEFAULT_PROMPT: usize = 512;

/// Arguments of `halfwarp profile`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ProfileArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// Tokens of the prompt [default: 512, or less where the model's context is shorter]
    #[arg(short, long, value_name = "N")]
    prompt_tokens: Option<NonZeroUsize>,
    /// Sequences that decode together, each after a prompt
    #[arg(long, value_name = "N", default_value = "1")]
    sequences: NonZeroUsize,
    /// Times that each step is repeated: the figures are medians
    #[arg(short, long, value_name = "N", default_value = "10")]
    repeats: NonZeroUsize,
    /// Profile it in this type, too, and compare
    #[arg(long, value_parser = choices::dtype(), value_name = "DTYPE")]
    against: Option<PrecisionChoice>,
    /// Read the GPU's counters of memory traffic too, by NVIDIA Nsight Compute (ncu)
    #[arg(long)]
    counters: bool,
    /// For ncu: run this step alone and print how many kernels each operation has
    #[arg(long, value_enum, hide = true)]
    collect: Option<Step>,
    /// Write a row for each operation
    #[arg(long, value_name = "FILE", help_heading = "Output", value_hint = clap::ValueHint::FilePath)]
    csv: Option<PathBuf>,
    /// Write everything as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output", value_hint = clap::ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// Draw plots into this directory, as SVG and PNG
    #[arg(long, value_name = "DIR", help_heading = "Output", value_hint = clap::ValueHint::DirPath)]
    plot: Option<PathBuf>,
    /// Write a trace that Perfetto (ui.perfetto.dev) and Chrome open
    #[arg(long, value_name = "FILE", help_heading = "Output", value_hint = clap::ValueHint::FilePath)]
    chrome_trace: Option<PathBuf>,
}

/// A step that is profiled.
#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Step {
    Prefill,
    Decode,
}

/// Profiles a prompt and a decode step, prints the sums, and writes what was asked for.
pub fn run(args: &ProfileArgs) -> Result<(), Failure> {
    let files = [&args.csv, &args.json, &args.chrome_trace];
    files.into_iter().flatten().try_for_each(|path| output_file::check(path))?;
    if args.counters && args.collect.is_none() {
        counters::check()?;
    }
    let model = args.engine.open_model()?;
    if let Some(step) = args.collect {
        return args.collect(step, &model);
    }
    let mut profiles = vec![args.profile(&args.engine, &model)?];
    if args.counters {
        for (name, step) in ["prefill", "decode"].into_iter().zip(&mut profiles[0].steps) {
            counters::read(name, &mut step.ops)?;
        }
    }
    if let Some(dtype) = args.against {
        profiles.push(args.profile(&args.engine.in_dtype(dtype), &model)?);
    }
    profiles.iter().try_for_each(|profile| terminal::print(&tables::profile(profile)))?;
    if let [first, second] = &profiles[..] {
        terminal::print(&tables::comparison(first, second))?;
    }
    if let Some(path) = &args.csv {
        let table =
            tables::csv(&profiles).map_err(|error| Failure::Environment(error.to_string()))?;
        write(path, table)?;
    }
    if let Some(path) = &args.json {
        write(path, &(serde_json::json!(profiles).to_string() + "\n"))?;
    }
    if let Some(path) = &args.chrome_trace {
        let Profile { device, steps, .. } = &profiles[0];
        write(path, chrome_trace(device, steps).to_string())?;
    }
    match &args.plot {
        Some(dir) => plots::write(dir, &profiles),
        None => Ok(()),
    }
}

impl ProfileArgs {
    /// The sizes of both steps, and an engine for them.
    fn open(
        &self,
        engine_args: &EngineArgs,
        model: &Arc<Model>,
    ) -> Result<([StepSize; 2], Engine), Failure> {
        let longest = model.config().max_position_embeddings.saturating_sub(1).max(1);
        let default = DEFAULT_PROMPT.min(longest);
        let prompt = self.prompt_tokens.map_or(default, NonZeroUsize::get);
        let sequences = self.sequences.get();
        let sizes = [
            StepSize { num_seqs: 1, cached_tokens: 0, new_tokens: prompt },
            StepSize { num_seqs: sequences, cached_tokens: prompt, new_tokens: 1 },
        ];
        let max_tokens = Some(prompt.max(sequences));
        Ok((sizes, engine_args.engine_of(model, prompt + 1, sequences, max_tokens)?))
    }

    /// Runs one step for a profiler that watches this process.
    fn collect(&self, step: Step, model: &Arc<Model>) -> Result<(), Failure> {
        let ([prefill, decode], mut engine) = self.open(&self.engine, model)?;
        let size = if step == Step::Prefill { prefill } else { decode };
        terminal::print(&serde_json::json!(engine.collect_step(size)?).to_string())
    }

    fn profile(&self, engine_args: &EngineArgs, model: &Arc<Model>) -> Result<Profile, Failure> {
        let (sizes, mut engine) = self.open(engine_args, model)?;
        let repeats = self.repeats.get();
        let steps = sizes.map(|size| StepProfile::measure(&mut engine, size, repeats));
        let steps = steps.into_iter().collect::<Result<_, _>>()?;
        let (device, precision) = (engine.describe_device(), engine.precision());
        let dtype = engine_args.dtype_name(&engine)?;
        // The device's memory is free again before more is asked for.
        drop(engine);
        Ok(Profile {
            model: engine_args.model_name()?,
            device,
            dtype,
            roofline: engine_args.roofline(precision)?,
            steps,
        })
    }
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), Failure> {
    output_file::write_whole(path, |partial| fs::write(partial, text.as_ref()))?;
    terminal::note(format_args!("wrote {}", path.display()));
    Ok(())
}
