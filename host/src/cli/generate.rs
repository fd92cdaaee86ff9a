//! `halfwarp generate`.

use super::{
    failure::Failure,
    grammar::GrammarArgs,
    model::EngineArgs,
    prompt::{ConversationArgs, PromptArgs},
    sampling::SamplingArgs,
    session::{self, End, Generation, Reading, Timings},
    terminal::{self, Thoughts},
};
use clap::ValueEnum;
use halfwarp::{AfterReasoning, Constraint};
use serde::Serialize;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  halfwarp generate -p \"Once upon a time\" -n 100
  halfwarp generate --chat -p \"Why is the sky blue?\"
  halfwarp generate --chat -f question.txt --temp 0
  echo \"The capital of France is\" | halfwarp generate -n 8
  halfwarp generate --chat -p \"Two colours\" -j '{\"type\": \"array\", \"items\": {\"type\": \"string\"}}'
  halfwarp generate -m model.gguf -p Hello --output-format json";

/// Arguments of `halfwarp generate`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct GenerateArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    chat: ConversationArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
    /// Go on after an end-of-sequence token
    #[arg(long, help_heading = "Sampling")]
    ignore_eos: bool,
    /// Text as it is generated, or one line of JSON at the end
    #[arg(
        long,
        value_enum,
        default_value_t = OutputFormat::Text,
        value_name = "FORMAT",
        help_heading = "Output"
    )]
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
    text: Option<&'a str>,
    /// What was thought before.
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning: &'a str,
    finish_reason: &'static str,
    seed: u64,
    timings: Timings,
}

/// Generates, and streams the text to stdout.
pub fn run(args: &GenerateArgs) -> Result<(), Failure> {
    let model = args.engine.open_model_with(&args.chat.overrides()?)?;
    let prompt = args.prompt.chat_token_ids(&args.chat, &model)?;
    let mut request = args.sampling.request(&model, prompt);
    if args.ignore_eos {
        request.stop_tokens.clear();
    }
    let grammar = args.grammar.grammar(&model)?;
    request.constraint = grammar.clone().map(|grammar| grammar as Arc<dyn Constraint>);
    let format = args.chat.thinking_format(&model);
    if let (Some(form), Some(format), Some(text)) = (&request.constraint, &format, model.text()) {
        // The form begins after the reasoning.
        let limits = format.reasoning_limits(&text.tokenizer.decode(&request.prompt, false), None);
        let after =
            |limits| AfterReasoning::new(Arc::clone(&model), limits, Some(Arc::clone(form)));
        if let Some(thinking) = limits.and_then(after) {
            request.constraint = Some(Arc::new(thinking));
        }
    }
    let mut engine = args.engine.engine_for(&request, &model)?;
    let (prompt_tokens, seed) = (request.prompt.clone(), request.sampling.seed);
    let is_text = matches!(args.output_format, OutputFormat::Text);
    let stop: Vec<String> =
        args.sampling.stop.iter().map(|stop| args.prompt.unescaped(stop)).collect();
    let reading = Reading { stop: &stop, format: format.as_ref() };
    let mut thoughts = Thoughts::new();
    let generation = session::generate(&model, &mut engine, request, reading, |said| {
        if is_text { said.print(&mut thoughts) } else { Ok(()) }
    })?;
    if is_text {
        terminal::print("\n")?;
    }
    let finish_reason = match generation.end {
        End::Stop => "stop",
        End::Length => "length",
        End::ContextFull => "context_full",
        End::Interrupted => return Err(Failure::Interrupted),
    };
    if !is_text {
        let Generation { tokens, text, reasoning, timings, .. } = &generation;
        let (prompt_tokens, text) = (&prompt_tokens[..], text.as_deref());
        let timings = *timings;
        let output =
            Output { prompt_tokens, tokens, text, reasoning, finish_reason, seed, timings };
        let json = serde_json::to_string(&output).expect("numbers and strings are JSON");
        terminal::print(&format!("{json}\n"))?;
    }
    if let (Some(grammar), Some(text), End::Stop) = (&grammar, &generation.text, generation.end) {
        for violation in grammar.violations(text) {
            terminal::note(format_args!("warning: {violation}"));
        }
    }
    generation.timings.print(&engine)
}
