//! `halfwarp bench long-context`.

use super::end_to_end::failure;
use crate::cli::{failure::Failure, model::EngineArgs, terminal};
use clap::ValueEnum;
use halfwarp::bench::long_context::{self, Report};
use std::{fmt::Write, num::NonZeroUsize};

/// The context where none is given and the model allows it.
const CONTEXT: usize = 65_536;

/// Arguments of `halfwarp bench long-context`.
#[derive(clap::Args)]
pub struct LongContextArgs {
    #[command(flatten)]
    engine: EngineArgs,
    /// Tokens that are timed at each depth
    #[arg(short, long, value_name = "N", default_value = "32", help_heading = "Tests")]
    n_gen: NonZeroUsize,
    /// Most tokens of a step that fills the cache [default: the engine's]
    #[arg(long, value_name = "N", help_heading = "Tests")]
    chunk: Option<NonZeroUsize>,
    /// How the figures are printed
    #[arg(short, long, value_enum, default_value_t = Format::Md, help_heading = "Output")]
    output: Format,
}

/// How the figures are printed.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// A table in Markdown
    Md,
    /// A JSON object
    Json,
}

/// Fills the context, times tokens there, and prints the figures.
pub fn run(args: &LongContextArgs) -> Result<(), Failure> {
    let name = args.engine.model_name()?;
    let model = args.engine.open_model()?;
    let n_gen = args.n_gen.get();
    let max = model.config().max_position_embeddings;
    let context = match args.engine.context {
        None => CONTEXT.min(max),
        Some(0) => max,
        Some(context) => context,
    };
    let least = long_context::least_context(n_gen);
    if context > max || context < least {
        return Err(Failure::Input(format!(
            "a context of {context} positions: {name} allows at most {max}, and {n_gen} tokens at \
             two depths need at least {least}"
        )));
    }
    let chunk = args.chunk.map(NonZeroUsize::get);
    let mut engine = args.engine.engine_of(&model, context, 1, chunk)?;
    let report = long_context::measure(&mut engine, n_gen).map_err(failure)?;
    let dtype = args.engine.dtype_name(&engine)?;
    let kv = match engine.numerics().kv.to_string() {
        open if open == "auto" => engine.precision().to_string(),
        kv => kv,
    };
    let device = engine.describe_device();
    match args.output {
        Format::Md => {
            let subject = format!("{name}, {dtype}, {kv} cache, {device}");
            terminal::print(&table(&subject, &report))
        }
        Format::Json => {
            let mut json = serde_json::json!(report);
            json["positions_per_second"] = report.positions_per_second().into();
            for (i, decode) in report.decode.iter().enumerate() {
                json["decode"][i]["tokens_per_second"] = decode.tokens_per_second().into();
            }
            for (key, value) in [("model", name), ("dtype", dtype), ("kv", kv), ("device", device)]
            {
                json[key] = value.into();
            }
            terminal::print(&format!("{json:#}\n"))
        }
    }
}

/// The figures as a table, below a line that says what ran.
fn table(subject: &str, report: &Report) -> String {
    let mut text = format!("{subject}\n\n| context {} | |\n| --- | ---: |\n", report.context);
    let mut row = |name: String, value: String| {
        let _ = writeln!(text, "| {name} | {value} |");
    };
    let (filled, rate) = (report.filled, report.positions_per_second());
    row(format!("filling {filled} positions"), format!("{rate:.0} positions/s"));
    for decode in &report.decode {
        let rate = decode.tokens_per_second();
        row(format!("decoding at {}", decode.depth), format!("{rate:.2} tokens/s"));
    }
    let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    for part in report.memory.iter().filter(|part| part.bytes > 0) {
        row(part.part.to_owned(), mib(part.bytes));
    }
    row("all, as counted before".to_owned(), mib(report.counted_bytes));
    row("all, as measured".to_owned(), mib(report.used_bytes));
    text
}
