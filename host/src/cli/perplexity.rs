//! `halfwarp perplexity`.

use super::{
    failure::Failure,
    model::EngineArgs,
    prompt::{encode, read_text, text},
    terminal,
};
use halfwarp::{Engine, validate::logits::nll};
use rayon::prelude::*;
use std::path::PathBuf;

/// Tokens of a window where `-c` is not given: enough context, and logits that fit into every memory.
const DEFAULT_WINDOW: usize = 2048;

const EXAMPLES: &str = "\
The text is split into windows of CTX tokens (2048 by default) that do not overlap. Within a window every token
but the first is predicted from those before it: Hugging Face's measure with stride = window. llama.cpp scores
only the second half of its windows, so its figures are lower.

Examples:
  halfwarp perplexity -f text.txt
  halfwarp perplexity -m model.gguf -f text.txt -c 512 --dtype f16";

/// Arguments of `halfwarp perplexity`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// The text, in UTF-8
    #[arg(
        short,
        long,
        value_name = "FILE",
        help_heading = "Prompt",
        value_hint = clap::ValueHint::FilePath
    )]
    file: PathBuf,
}

/// Prints the mean negative log-likelihood of a token, in nats, and its exponential.
pub fn run(args: &Args) -> Result<(), Failure> {
    let model = args.engine.open_model()?;
    let input = read_text(&args.file)?;
    let tokens = encode(text(&model)?, &input, true)?;
    if tokens.len() < 2 {
        return Err(Failure::Input(
            "the text is a single token: there is nothing to predict".to_owned(),
        ));
    }
    let max = model.config().max_position_embeddings;
    let window = match args.engine.context {
        None => DEFAULT_WINDOW.min(max),
        Some(0) => max,
        Some(window) => window,
    };
    if window < 2 {
        return Err(Failure::Input(
            "-c 1: a window of one token predicts nothing, it needs 2 or more".to_owned(),
        ));
    }
    let mut engine = args.engine.engine(&model, Some(window))?;
    let (nll, count) = total_nll(&mut engine, &tokens, window)?;
    let mean = nll / count as f64;
    terminal::print(&format!(
        "mean NLL {mean:.6} over {count} tokens\nperplexity {:.4}\n",
        mean.exp()
    ))
}

/// The sum over all predicted tokens, and their number.
fn total_nll(engine: &mut Engine, tokens: &[u32], window: usize) -> Result<(f64, usize), Failure> {
    let (mut total, mut count) = (0.0, 0);
    for window in tokens.chunks(window).filter(|window| window.len() > 1) {
        let logits = engine.logits(window)?;
        let vocab_size = logits.len() / window.len();
        let rows = logits.par_chunks(vocab_size).zip(&window[1..]);
        total += rows.map(|(row, &target)| nll(row, target)).sum::<f64>();
        count += window.len() - 1;
        terminal::note(format_args!(
            "{count} of {} tokens: perplexity {:.4}",
            tokens.len(),
            (total / count as f64).exp()
        ));
    }
    Ok((total, count))
}
