//! `halfwarp generate`.

use super::{
    failure::Failure,
    model::EngineArgs,
    prompt::{ChatArgs, PromptArgs},
    sampling::SamplingArgs,
    session::{self, Generation, Timings},
    terminal,
};
use clap::ValueEnum;
use halfwarp::{Engine, FinishReason, Model, Request};
use serde::Serialize;

/// Arguments of `halfwarp generate`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    chat: ChatArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Tokens to generate at most [default: until the text or the context ends]
    #[arg(short, long = "n-predict", visible_alias = "predict", value_name = "N")]
    n: Option<usize>,
    /// Go on after an end-of-sequence token
    #[arg(long)]
    ignore_eos: bool,
    /// text as it is made, or json at the end
    #[arg(long, value_enum, default_value_t = OutputFormat::Text, value_name = "FORMAT")]
    output_format: OutputFormat,
}

#[derive(Clone, Copy, ValueEnum)]
enum OutputFormat {
    Text,
    Json,
}

/// `--output-format json`.
#[derive(Serialize)]
struct Output<'a> {
    prompt_tokens: &'a [u32],
    /// The generated ids, a stop token included.
    tokens: &'a [u32],
    /// `null` for a model with no tokenizer.
    text: Option<String>,
    finish_reason: &'static str,
    seed: u64,
    timings: Timings,
}

/// Generates, and streams what it generates to stdout.
pub fn run(args: &Args) -> Result<(), Failure> {
    let model = args.engine.model.open()?;
    let prompt = args.prompt.chat_token_ids(&args.chat, &model)?;
    let stop_tokens = if args.ignore_eos { Vec::new() } else { model.stop_tokens().to_vec() };
    let request =
        Request { prompt, max_new_tokens: args.n, sampling: args.sampling.sampling(), stop_tokens };
    let mut engine = args.engine.engine_for(&request, &model)?;
    match args.output_format {
        OutputFormat::Text => session::stream(&model, &mut engine, request)?,
        OutputFormat::Json => json(&model, &mut engine, request)?,
    }
    .timings
    .print(&engine);
    Ok(())
}

/// All at the end, as one line.
fn json(model: &Model, engine: &mut Engine, request: Request) -> Result<Generation, Failure> {
    let (prompt_tokens, seed) = (request.prompt.clone(), request.sampling.seed);
    let generation = session::generate(engine, request, |_| Ok(()))?;
    let output = Output {
        prompt_tokens: &prompt_tokens,
        tokens: &generation.tokens,
        text: model.text().map(|text| text.tokenizer.decode(&generation.tokens, true)),
        finish_reason: match generation.finish {
            FinishReason::StopToken => "stop",
            FinishReason::Length => "length",
            FinishReason::ContextFull => "context_full",
            FinishReason::Cancelled => "cancelled",
        },
        seed,
        timings: generation.timings,
    };
    let json = serde_json::to_string(&output).expect("numbers and strings are JSON");
    terminal::print(&format!("{json}\n"))?;
    Ok(generation)
}
