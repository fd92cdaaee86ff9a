//! `halfwarp logits`.

use super::{failure::Failure, model::EngineArgs, output_file, prompt::PromptArgs, terminal};
use halfwarp::{Request, weights::safetensors};
use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
Examples:
  halfwarp logits -p \"The capital of France is\" -o logits.safetensors
  halfwarp logits -m model.gguf --tokens 1,2,3 --dtype f32 -o logits.safetensors";

/// Arguments of `halfwarp logits`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct LogitsArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// The safetensors file to write: logits f32 [num_tokens, vocab_size], input_ids i32 [num_tokens]
    #[arg(
        short,
        long,
        value_name = "OUT",
        help_heading = "Output",
        value_hint = clap::ValueHint::FilePath
    )]
    output: PathBuf,
}

/// Runs the prompt through the model once, and writes the logits of every position.
pub fn run(args: &LogitsArgs) -> Result<(), Failure> {
    let model = args.engine.open_model()?;
    let request = Request { prompt: args.prompt.token_ids(&model)?, ..Request::default() };
    output_file::check(&args.output)?;
    let mut engine = args.engine.engine_for(&request, &model)?;
    let input_ids = request.prompt;
    let logits = engine.logits(&input_ids)?;
    output_file::write_whole(&args.output, |path| write(path, &input_ids, &logits))?;
    let (output, num_tokens) = (&args.output, input_ids.len());
    let bytes = output.metadata().map_or(0, |metadata| metadata.len());
    terminal::note(format_args!(
        "wrote {}: logits f32 [{num_tokens}, {}], input_ids i32 [{num_tokens}], {bytes} bytes",
        output.display(),
        logits.len() / num_tokens,
    ));
    Ok(())
}

fn write(path: &Path, input_ids: &[u32], logits: &[f32]) -> io::Result<()> {
    let num_tokens = input_ids.len();
    let logits_shape = [num_tokens, logits.len() / num_tokens];
    let mut file = File::create(path)?;
    file.write_all(&safetensors::header([
        (("input_ids", "I32", &[num_tokens][..]), 4 * num_tokens),
        (("logits", "F32", &logits_shape), 4 * logits.len()),
    ]))?;
    // Ids are far below 2^31: the bytes of a u32 are those of the i32.
    file.write_all(bytemuck::cast_slice(input_ids))?;
    file.write_all(bytemuck::cast_slice(logits))
}
