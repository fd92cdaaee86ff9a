//! `halfwarp logits`.

use super::{failure::Failure, interrupt, model::EngineArgs, prompt::PromptArgs};
use safetensors::{Dtype, SafeTensorError, serialize_to_file, tensor::TensorView};
use std::path::{Path, PathBuf};

/// Arguments of `halfwarp logits`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// The safetensors file to write: `logits` f32 [num_tokens, vocab_size], `input_ids` i32
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
}

/// Runs the prompt through the model once and writes what came out.
pub fn run(args: &Args) -> Result<(), Failure> {
    let model = args.engine.model.open()?;
    let input_ids = args.prompt.token_ids(&model)?;
    check_output(&args.output)?;
    let mut engine = args.engine.engine(&model)?;
    let logits = engine.logits(&input_ids)?;
    interrupt::write_whole(&args.output, |path| write(path, &input_ids, &logits))
}

/// Before the work, not after it: whether there can be a file `path`.
fn check_output(path: &Path) -> Result<(), Failure> {
    let directory = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    if let Some(missing) = directory.filter(|dir| !dir.is_dir()) {
        return Err(Failure::Input(format!("{}: no such directory", missing.display())));
    }
    if path.is_dir() {
        return Err(Failure::Input(format!("{} is a directory, not a file", path.display())));
    }
    Ok(())
}

fn write(path: &Path, input_ids: &[u32], logits: &[f32]) -> Result<(), SafeTensorError> {
    let num_tokens = input_ids.len();
    let shape = vec![num_tokens, logits.len() / num_tokens];
    // Ids are far below 2^31: the bytes of a u32 are those of the i32.
    let ids = TensorView::new(Dtype::I32, vec![num_tokens], bytemuck::cast_slice(input_ids))?;
    let logits = TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(logits))?;
    serialize_to_file([("input_ids", ids), ("logits", logits)], None, path)
}
