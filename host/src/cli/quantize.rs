//! `halfwarp quantize`.

use super::{choices, failure::Failure, output_file, terminal};
use halfwarp::{
    Model,
    quantize::{Mix, QuantizeError, Summary, quantize},
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
}

/// Writes the file, and prints what is in it.
pub fn run(args: &Args) -> Result<(), Failure> {
    output_file::check(&args.output)?;
    let model = Model::open(&args.input)?;
    if is_same(model.checkpoint().path(), &args.output) {
        let output = args.output.display();
        return Err(Failure::Input(format!("{output}: this is the model that is read")));
    }
    let mut bad_input = None;
    let mut summary = None;
    let bar = terminal::quantizing_bar();
    let written = output_file::write_whole(&args.output, |partial| {
        let out = BufWriter::new(File::create(partial)?);
        match quantize(&model, args.mix, out, &bar) {
            Ok(done) => {
                summary = Some(done);
                Ok(())
            }
            Err(QuantizeError::Write(error)) => Err(error),
            Err(error) => {
                bad_input = Some(error.to_string());
                Err(io::Error::other("the model is at fault"))
            }
        }
    });
    drop(bar);
    if let Some(message) = bad_input {
        return Err(Failure::Input(message));
    }
    written?;
    summary.map_or(Ok(()), |summary| terminal::print(&report(&args.output, &summary)))
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
    let Summary { elems, bytes_before, bytes_after, requantized, .. } = *summary;
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
    text
}
