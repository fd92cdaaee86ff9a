//! `halfwarp quantize`.

use super::{failure::Failure, output_file, terminal};
use clap::ValueEnum;
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
    #[arg(long = "type", value_name = "TYPE", value_enum, default_value_t = Type::Q4KM)]
    mix: Type,
}

/// The types, by llama.cpp's names.
#[derive(Clone, Copy, ValueEnum)]
pub enum Type {
    /// 4.8 bits a weight: Q4_K, with Q6_K where it matters most
    #[value(name = "q4_k_m")]
    Q4KM,
    /// 5.7 bits a weight: Q5_K, with Q6_K where it matters most
    #[value(name = "q5_k_m")]
    Q5KM,
    /// 6.6 bits a weight
    #[value(name = "q6_k")]
    Q6K,
    /// 8.5 bits a weight
    #[value(name = "q8_0")]
    Q8_0,
    /// 4.5 bits a weight, less exact than q4_k_m
    #[value(name = "q4_0")]
    Q4_0,
    /// 16 bits a weight
    F16,
}

impl From<Type> for Mix {
    fn from(mix: Type) -> Self {
        match mix {
            Type::Q4KM => Mix::Q4_K_M,
            Type::Q5KM => Mix::Q5_K_M,
            Type::Q6K => Mix::Q6_K,
            Type::Q8_0 => Mix::Q8_0,
            Type::Q4_0 => Mix::Q4_0,
            Type::F16 => Mix::F16,
        }
    }
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
    let mut bar = terminal::quantizing_bar();
    let written = output_file::write_whole(&args.output, |partial| {
        let out = BufWriter::new(File::create(partial)?);
        match quantize(&model, args.mix.into(), out, &mut bar) {
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
