//! `halfwarp perplexity`.

use super::{
    failure::Failure,
    model::EngineArgs,
    output_file,
    prompt::{encode, read_text, text},
    terminal,
};
use halfwarp::{
    Engine, Model,
    perplexity::{
        Divergence, Likelihood, MIN_WINDOW, SavedError, SavedLogits, SavedWriter, Windows,
    },
    validate::logits::nll,
};
use rayon::prelude::*;
use std::{
    fs::File,
    io::{self, BufWriter},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Tokens of a window where `-c` is not given: llama.cpp's.
pub const DEFAULT_WINDOW: usize = 512;

/// Between lines of progress.
const INTERVAL: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
The measure is llama-perplexity's, for the same flags: the text is cut into windows of CTX tokens (512 by default)
that do not overlap, each begins with the BOS token if the model wants one, and the second half of each is scored.
What is left after the last whole window is dropped.

Examples:
  halfwarp perplexity -f text.txt
  halfwarp perplexity -m model.gguf -f text.txt -c 2048 --chunks 20
  halfwarp perplexity -m model.gguf -f text.txt --kl-divergence-base logits.kld         save, then
  halfwarp perplexity -m small.gguf --kl-divergence-base logits.kld --kl-divergence    compare";

/// Arguments of `halfwarp perplexity`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    /// The text, in UTF-8; the newline at its end is left out
    #[arg(
        short,
        long,
        value_name = "FILE",
        help_heading = "Prompt",
        required_unless_present = "kl_divergence",
        value_hint = clap::ValueHint::FilePath
    )]
    file: Option<PathBuf>,
    /// Evaluate the first N windows alone
    #[arg(long, value_name = "N", help_heading = "Measure")]
    chunks: Option<usize>,
    /// Score every token of a window but the first, and the last window even if it is short: Hugging
    /// Face's measure with a stride of the window
    #[arg(long, help_heading = "Measure")]
    all_positions: bool,
    /// The file of log-probabilities that is written, or read with --kl-divergence: llama.cpp's format
    #[arg(
        long,
        alias = "save-all-logits",
        value_name = "FILE",
        help_heading = "Measure",
        conflicts_with = "all_positions",
        value_hint = clap::ValueHint::FilePath
    )]
    kl_divergence_base: Option<PathBuf>,
    /// Compare with the log-probabilities in that file, which holds the text too
    #[arg(
        long,
        help_heading = "Measure",
        requires = "kl_divergence_base",
        conflicts_with_all = ["file", "chunks"]
    )]
    kl_divergence: bool,
}

/// Prints the perplexity of a text, or how far the model is from one that was saved.
pub fn run(args: &Args) -> Result<(), Failure> {
    match (&args.kl_divergence_base, &args.file) {
        (Some(base), _) if args.kl_divergence => compare(args, base),
        (Some(base), Some(file)) => {
            output_file::check(base)?;
            let (model, windows) = open(args, file)?;
            let mut engine = args.engine.engine(&model, Some(windows.window_len()))?;
            save(&mut engine, &windows, base)
        }
        (None, Some(file)) => {
            let (model, windows) = open(args, file)?;
            let mut engine = args.engine.engine(&model, Some(windows.window_len()))?;
            let likelihood = evaluate(&mut engine, &windows, |_| Ok(()))?;
            print(&likelihood)
        }
        (_, None) => Err(Failure::Input("which text? -f FILE".to_owned())),
    }
}

/// The model, and the text of `file` in windows.
fn open(args: &Args, file: &Path) -> Result<(Arc<Model>, Windows), Failure> {
    let model = args.engine.open_model()?;
    let tokens = encode_file(&model, file)?;
    let max = model.config().max_position_embeddings;
    let window_len = match args.engine.context {
        None => DEFAULT_WINDOW.min(max),
        Some(0) => max,
        Some(window_len) => window_len,
    };
    let windows = match args.all_positions {
        true => every_position(tokens, window_len, args.chunks),
        false => second_halves(&model, tokens, window_len, args.chunks),
    }?;
    Ok((model, windows))
}

/// The token ids of the text in `file`, tokenised as a whole.
///
/// # Errors
/// [`Failure::Input`] for a file that cannot be read, or a model without a tokenizer.
pub fn encode_file(model: &Model, file: &Path) -> Result<Vec<u32>, Failure> {
    let input = read_text(file)?;
    encode(text(model)?, input.strip_suffix('\n').unwrap_or(&input), true)
}

/// The windows of llama.cpp.
///
/// # Errors
/// [`Failure::Input`] for windows that are too short, or a text that is.
pub fn second_halves(
    model: &Model,
    tokens: Vec<u32>,
    window_len: usize,
    max_windows: Option<usize>,
) -> Result<Windows, Failure> {
    if window_len < MIN_WINDOW {
        return Err(Failure::Input(format!(
            "-c {window_len}: a window needs {MIN_WINDOW} tokens or more, for its second half to predict one"
        )));
    }
    check_chunks(max_windows)?;
    let num_tokens = tokens.len();
    let windows = Windows::second_halves(tokens, window_len, bos(model), max_windows);
    windows.ok_or_else(|| {
        let needed = window_len.saturating_mul(2);
        let advice = match num_tokens / 2 {
            most if most >= MIN_WINDOW => format!("take a longer one, or -c {most} at most"),
            _ => "take a longer one".to_owned(),
        };
        Failure::Input(format!(
            "the text has {num_tokens} tokens, and windows of {window_len} need {needed}\n{advice}"
        ))
    })
}

/// The token that each window begins with.
fn bos(model: &Model) -> Option<u32> {
    model.text().and_then(|text| text.tokenizer.bos())
}

fn check_chunks(chunks: Option<usize>) -> Result<(), Failure> {
    match chunks {
        Some(0) => Err(Failure::Input("--chunks 0: there is nothing to evaluate".to_owned())),
        _ => Ok(()),
    }
}

fn every_position(
    tokens: Vec<u32>,
    window_len: usize,
    max_windows: Option<usize>,
) -> Result<Windows, Failure> {
    if window_len < 2 {
        return Err(Failure::Input(
            "-c 1: a window of one token predicts nothing, it needs 2 or more".to_owned(),
        ));
    }
    check_chunks(max_windows)?;
    if tokens.len() < 2 {
        return Err(Failure::Input(
            "the text is a single token: there is nothing to predict".to_owned(),
        ));
    }
    Ok(Windows::all_positions(tokens, window_len, max_windows))
}

/// The likelihood of all scored tokens; `each` gets the logits before it.
fn evaluate(
    engine: &mut Engine,
    windows: &Windows,
    mut each: impl FnMut(&[f32]) -> io::Result<()>,
) -> Result<Likelihood, Failure> {
    let mut likelihood = Likelihood::default();
    let mut progress = Progress::new(windows.num_windows());
    for window in windows.iter() {
        let mut written = Ok(());
        window.score(engine, |logits, targets| {
            let vocab_size = logits.len() / targets.len().max(1);
            let rows = logits.par_chunks(vocab_size.max(1)).zip(targets);
            let nlls: Vec<f64> = rows.map(|(row, &target)| nll(row, target)).collect();
            nlls.into_iter().for_each(|nll| likelihood.push(nll));
            if written.is_ok() {
                written = each(logits);
            }
        })?;
        written.map_err(|error| Failure::output("the log-probabilities", &error))?;
        let perplexity = likelihood.perplexity().value;
        progress.next(format_args!("PPL = {perplexity:.4}"));
    }
    Ok(likelihood)
}

fn print(likelihood: &Likelihood) -> Result<(), Failure> {
    let (mean, perplexity) = (likelihood.mean(), likelihood.perplexity());
    terminal::print(&format!(
        "mean NLL {mean:.6} over {} tokens\nFinal estimate: PPL = {:.4} +/- {:.5}\n",
        likelihood.count(),
        perplexity.value,
        perplexity.error
    ))
}

/// Writes the log-probabilities of the scored positions to `base`, and prints the perplexity.
fn save(engine: &mut Engine, windows: &Windows, base: &Path) -> Result<(), Failure> {
    let vocab_size = engine.model().config().vocab_size;
    let mut outcome = None;
    output_file::write_whole(base, |partial| {
        let out = BufWriter::new(File::create(partial)?);
        let mut saved = SavedWriter::new(out, windows, vocab_size)?;
        let evaluated = evaluate(engine, windows, |logits| saved.push(logits));
        let is_whole = evaluated.is_ok();
        outcome = Some(evaluated);
        if is_whole { saved.finish() } else { Err(io::Error::other("the text was not evaluated")) }
    })
    .or_else(|failure| match outcome {
        Some(Err(_)) => Ok(()),
        _ => Err(failure),
    })?;
    match outcome {
        Some(evaluated) => print(&evaluated?),
        None => Ok(()),
    }
}

/// Prints how far the model is from the one whose log-probabilities are in `base`.
fn compare(args: &Args, base: &Path) -> Result<(), Failure> {
    let fault = |error: SavedError| Failure::Input(format!("{}: {error}", base.display()));
    let model = args.engine.open_model()?;
    let mut saved =
        SavedLogits::open(base, model.config().vocab_size, bos(&model)).map_err(fault)?;
    let windows = saved.windows();
    let window_len = windows.window_len();
    if args.engine.context.is_some_and(|context| context != window_len) {
        return Err(Failure::Input(format!(
            "{} has windows of {window_len} tokens: leave -c out",
            base.display()
        )));
    }
    let mut engine = args.engine.engine(&model, Some(window_len))?;
    let mut divergence = Divergence::default();
    terminal::note(Divergence::HEADING);
    for (index, window) in windows.iter().enumerate() {
        let mut read = Ok(());
        window.score(&mut engine, |logits, targets| {
            match saved.read(targets.len()) {
                Ok(rows) if read.is_ok() => divergence.push(logits, &rows, targets),
                Ok(_) => {}
                Err(error) => read = Err(error),
            };
        })?;
        read.map_err(|error| fault(error.into()))?;
        terminal::note(divergence.line(index + 1));
    }
    terminal::print(&divergence.report())
}

/// Lines on stderr while windows are evaluated, with what is left of the time.
pub struct Progress {
    start: Instant,
    shown: Option<Instant>,
    done: usize,
    num_windows: usize,
}

impl Progress {
    /// None is done yet.
    pub fn new(num_windows: usize) -> Self {
        Progress { start: Instant::now(), shown: None, done: 0, num_windows }
    }

    /// The next one is done, with this `result` so far. Of those that take no time not all are shown.
    pub fn next(&mut self, result: std::fmt::Arguments<'_>) {
        self.done += 1;
        let left = self.num_windows - self.done;
        if left > 0 && self.shown.is_some_and(|shown| shown.elapsed() < INTERVAL) {
            return;
        }
        self.shown = Some(Instant::now());
        let left_s = self.start.elapsed().as_secs_f64() * left as f64 / self.done as f64;
        let left = match left_s {
            left_s if left_s < 1.0 => String::new(),
            left_s if left_s < 100.0 => format!(", {left_s:.0} s left"),
            left_s => format!(", {:.0} min left", left_s / 60.0),
        };
        let Progress { done, num_windows, .. } = self;
        terminal::note(format_args!("window {done} of {num_windows}: {result}{left}"));
    }
}
