//! `halfwarp imatrix`.

use super::{
    failure::Failure,
    model::EngineArgs,
    output_file,
    perplexity::{DEFAULT_WINDOW, Progress, encode_file, second_halves},
    terminal,
};
use halfwarp::{
    EngineError, ExecError,
    imatrix::{Collector, Imatrix},
};
use std::{
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
The text is cut into windows as `halfwarp perplexity` does, all of whose tokens count. Files are llama.cpp's, and
either program's serve the other.

Examples:
  halfwarp imatrix -m Qwen2.5-0.5B-Instruct -f calibration.txt
  halfwarp quantize Qwen2.5-0.5B-Instruct qwen.gguf --type q4_k_m --imatrix imatrix.gguf
  halfwarp imatrix --in-file part1.gguf --in-file part2.gguf -o all.gguf       add two up";

/// Arguments of `halfwarp imatrix`.
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
        required_unless_present = "in_file",
        value_hint = clap::ValueHint::FilePath
    )]
    file: Option<PathBuf>,
    /// Evaluate the first N windows alone
    #[arg(long, value_name = "N", help_heading = "Measure")]
    chunks: Option<usize>,
    /// A file whose sums are added; may be repeated
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Measure",
        value_hint = clap::ValueHint::FilePath
    )]
    in_file: Vec<PathBuf>,
    /// The file to write
    #[arg(
        short,
        long,
        value_name = "OUT",
        default_value = "imatrix.gguf",
        help_heading = "Output",
        value_hint = clap::ValueHint::FilePath
    )]
    output: PathBuf,
    /// The format of that file; dat is for old programs, and has means alone
    #[arg(long, value_name = "FORMAT", default_value = "gguf", help_heading = "Output")]
    output_format: Format,
}

/// A format of importance matrices.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    Gguf,
    Dat,
}

/// Sums the inputs of all linear layers over a text, adds what other files have, and writes it.
pub fn run(args: &Args) -> Result<(), Failure> {
    output_file::check(&args.output)?;
    let mut others = Vec::new();
    for path in &args.in_file {
        let imatrix = Imatrix::read(path).map_err(|error| fault(path, error))?;
        others.push((path, imatrix));
    }
    let collected = args.file.as_deref().map(|file| collect(args, file)).transpose()?;
    let own_size = collected.as_ref().and_then(|imatrix| imatrix.chunk_size);
    // Tokens of a chunk of a `.dat` file, which does not say it.
    let chunk_size = own_size.or(args.engine.context).unwrap_or(DEFAULT_WINDOW);
    let mut imatrix = Imatrix::default();
    for (path, other) in others {
        imatrix.merge(other, chunk_size).map_err(|error| fault(path, error))?;
    }
    if let (Some(collected), Some(file)) = (collected, &args.file) {
        imatrix.merge(collected, chunk_size).map_err(|error| fault(file, error))?;
    }
    imatrix.chunk_size.get_or_insert(chunk_size);
    output_file::write_whole(&args.output, |partial| {
        let out = BufWriter::new(File::create(partial)?);
        match args.output_format {
            Format::Gguf => imatrix.write_gguf(out),
            Format::Dat => imatrix.write_dat(out),
        }
    })?;
    terminal::note(format_args!(
        "wrote {}: {} weights, {} chunks",
        args.output.display(),
        imatrix.entries.len(),
        imatrix.num_chunks.unwrap_or(0)
    ));
    Ok(())
}

fn fault(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Input(format!("{}: {error}", path.display()))
}

/// The sums over the text of `file`.
fn collect(args: &Args, file: &Path) -> Result<Imatrix, Failure> {
    let model = args.engine.open_model()?;
    let tokens = encode_file(&model, file)?;
    let max = model.config().max_position_embeddings;
    let window_len = match args.engine.context {
        None => DEFAULT_WINDOW.min(max),
        Some(0) => max,
        Some(window_len) => window_len,
    };
    let windows = second_halves(&model, tokens, window_len, args.chunks)?;
    let mut engine = args.engine.observed_engine(&model, window_len)?;
    let mut collector = Collector::new(&model);
    let mut progress = Progress::new(windows.num_windows());
    for window in windows.iter() {
        collector.read(&mut engine, &window.input).map_err(|error| match error {
            EngineError::Exec(ExecError::Unsupported { .. }) => {
                Failure::Input(format!("{error}\nchoose --device cpu, or --fusion off and one GPU"))
            }
            error => error.into(),
        })?;
        progress.next(format_args!("{window_len} tokens"));
    }
    Ok(collector.finish(file.to_string_lossy().into_owned(), window_len))
}
