//! `halfwarp quantize`.

use super::{choices, failure::Failure, output_file, terminal};
use halfwarp::{
    Model,
    quantize::{
        ImportanceMatrix, Mix, Options, QuantizeError, Summary, TensorType, num_parts, quantize,
    },
};
use std::{
    fmt::Write,
    fs::File,
    io::{self, BufWriter},
    path::{Path, PathBuf},
};

const EXAMPLES: &str = "\
IN is a Hugging Face directory, a .gguf file, or the name of a fetched model. The types are
llama.cpp's mixes: norms and biases stay in f32, and rows that are no multiple of a block take a type
of shorter blocks.

Examples:
  halfwarp quantize Qwen2.5-0.5B-Instruct qwen.gguf --type q4_k_m
  halfwarp quantize big-00001-of-00003.gguf small.gguf --type q3_k_m --keep-split
  halfwarp imatrix -m Qwen2.5-0.5B-Instruct -f text.txt -o imatrix.gguf
  halfwarp quantize Qwen2.5-0.5B-Instruct qwen.gguf --type iq4_xs --imatrix imatrix.gguf
  halfwarp quantize Qwen2.5-0.5B-Instruct qwen.gguf --tensor-type attn_v=q8_0 --tensor-type 'blk\\.[01]\\.=q6_k'
  halfwarp perplexity -m Qwen2.5-0.5B-Instruct -f text.txt     before
  halfwarp perplexity -m qwen.gguf -f text.txt                 after";

/// Arguments of `halfwarp quantize`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The model to read
    #[arg(value_name = "IN", value_hint = clap::ValueHint::AnyPath)]
    input: PathBuf,
    /// The GGUF file to write
    #[arg(value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    /// The type of the weights
    #[arg(long = "type", value_name = "TYPE", value_parser = choices::mix(), default_value = "q4_k_m")]
    mix: Mix,
    /// Another type for the tensors whose GGUF names match a regular expression; of several the first counts
    #[arg(long = "tensor-type", value_name = "NAME=TYPE")]
    tensor_types: Vec<TensorType>,
    /// An importance matrix: how much each column matters, as `halfwarp imatrix` or llama-imatrix wrote it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    imatrix: Option<PathBuf>,
    /// Write as many files as the GGUF model is split over: OUT-00001-of-00003.gguf
    #[arg(long)]
    keep_split: bool,
}

/// Writes the file, and prints what is in it.
pub fn run(args: &Args) -> Result<(), Failure> {
    output_file::check(&args.output)?;
    let read = |path: &Path| {
        let wrong = |error| Failure::Input(format!("{}: {error}", path.display()));
        ImportanceMatrix::read(path).map_err(wrong)
    };
    let importance = args.imatrix.as_deref().map(read).transpose()?;
    let model = Model::open(&args.input)?;
    let options = Options {
        mix: args.mix,
        tensor_types: args.tensor_types.clone(),
        importance,
        keep_split: args.keep_split,
    };
    let bad_input = |error: QuantizeError| Failure::Input(error.to_string());
    let paths = output_paths(args, num_parts(&model, &options).map_err(bad_input)?);
    for path in &paths {
        output_file::check(path)?;
        if model.checkpoint().files().any(|file| is_same(file, path)) {
            let path = path.display();
            return Err(Failure::Input(format!("{path}: this is the model that is read")));
        }
    }
    let mut failure = None;
    let mut summary = None;
    let bar = terminal::quantizing_bar();
    let written = output_file::write_all(&paths, |partials| {
        let part = |index: usize| Ok(BufWriter::new(File::create(&partials[index])?));
        match quantize(&model, &options, part, &bar) {
            Ok(done) => {
                summary = Some(done);
                Ok(())
            }
            Err(QuantizeError::Write(error)) => Err(error),
            Err(error) => {
                failure = Some(bad_input(error));
                Err(io::Error::other("the model is at fault"))
            }
        }
    });
    drop(bar);
    if let Some(failure) = failure {
        return Err(failure);
    }
    written?;
    summary.map_or(Ok(()), |summary| terminal::print(&report(&paths[0], &summary)))
}

/// The files to write: OUT, or OUT with the number of each as llama-gguf-split names them.
fn output_paths(args: &Args, num_parts: usize) -> Vec<PathBuf> {
    if !args.keep_split {
        return vec![args.output.clone()];
    }
    let name = args.output.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.strip_suffix(".gguf").unwrap_or(&name);
    let part = |number| format!("{stem}-{number:05}-of-{num_parts:05}.gguf");
    (1..=num_parts).map(|number| args.output.with_file_name(part(number))).collect()
}

/// Whether both paths lead to the same file.
fn is_same(model: &Path, output: &Path) -> bool {
    matches!((model.canonicalize(), output.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

fn report(output: &Path, summary: &Summary) -> String {
    let mut text = String::new();
    let mb = |bytes: usize| bytes as f64 / 1e6;
    for (dtype, tensors, bytes) in &summary.types {
        // Writing to a String does not fail.
        let _ =
            writeln!(text, "{:<6}{tensors:>5} tensors {:>10.1} MB", dtype.to_string(), mb(*bytes));
    }
    let Summary { elems, bytes_before, bytes_after, requantized, without_importance, .. } =
        *summary;
    let _ = writeln!(
        text,
        "{}: {:.1} MB of weights, {:.1} before; {:.2} bits a weight",
        output.display(),
        mb(bytes_after),
        mb(bytes_before),
        8.0 * bytes_after as f64 / elems as f64
    );
    if requantized > 0 {
        let _ = writeln!(
            text,
            "note: {requantized} tensors were quantised already: the model in 16 bits would give better ones"
        );
    }
    if without_importance > 0 {
        let _ = writeln!(
            text,
            "note: the importance matrix has nothing on {without_importance} of the tensors"
        );
    }
    text
}
