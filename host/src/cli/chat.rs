//! `halfwarp chat`.

use super::{
    failure::Failure,
    model::EngineArgs,
    prompt::{message, opening, render, text},
    sampling::SamplingArgs,
    session, terminal,
};
use halfwarp::{Engine, Message, Model, Request};
use rustyline::{DefaultEditor, error::ReadlineError};
use std::{io, path::PathBuf};

/// Arguments of `halfwarp chat`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// The system prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Tokens of an answer at most [default: until the model or the context ends it]
    #[arg(short, long = "n-predict", visible_alias = "predict", value_name = "N")]
    n: Option<usize>,
}

/// Reads a line, answers it, and so on until the input ends.
pub fn run(args: &Args) -> Result<(), Failure> {
    let model = args.engine.model.open()?;
    let mut messages = opening(args.system.as_deref());
    // A model that cannot chat says so before its weights are loaded.
    let hello = request(&model, &[&messages[..], &[message("user", "Hello")]].concat(), args)?;
    let mut engine = args.engine.engine_for(&hello, &model)?;
    let device = engine.describe_device();
    terminal::note(format_args!("{device}\nCtrl-C stops an answer, Ctrl-D ends"));

    let terminal_fault = |error| Failure::Environment(format!("cannot read a line: {error}"));
    let mut editor = DefaultEditor::new().map_err(terminal_fault)?;
    let history = history_file();
    if let Some(history) = &history {
        // There is none the first time.
        let _ = editor.load_history(history);
    }
    loop {
        let line = match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => continue,
            Ok(line) => line,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Interrupted) => return Err(Failure::Interrupted),
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(Failure::Input(format!("cannot read a line: {error}")));
            }
            Err(error) => return Err(terminal_fault(error)),
        };
        remember(&mut editor, &line, history.as_ref());
        messages.push(message("user", &line));
        match answer(&model, &mut engine, &messages, args) {
            Ok(answer) => messages.push(message("assistant", &answer)),
            Err(failure @ (Failure::Environment(_) | Failure::OutputClosed)) => {
                return Err(failure);
            }
            // A stopped answer or a conversation beyond the context costs this turn alone.
            Err(failure) => {
                failure.report();
                messages.pop();
            }
        }
    }
}

/// Streams the answer to the last message, and returns it.
fn answer(
    model: &Model,
    engine: &mut Engine,
    messages: &[Message],
    args: &Args,
) -> Result<String, Failure> {
    let generation = session::stream(model, engine, request(model, messages, args)?)?;
    Ok(text(model)?.tokenizer.decode(&generation.tokens, true))
}

/// An answer to the last message.
fn request(model: &Model, messages: &[Message], args: &Args) -> Result<Request, Failure> {
    Ok(Request {
        prompt: render(model, messages)?,
        max_new_tokens: args.n,
        sampling: args.sampling.sampling(),
        stop_tokens: model.stop_tokens().to_vec(),
    })
}

/// Where the lines are kept from one chat to the next.
fn history_file() -> Option<PathBuf> {
    let cache = model_cache::cache_dir().ok()?;
    std::fs::create_dir_all(&cache).ok()?;
    Some(cache.join("chat_history"))
}

/// A history that cannot be written must not end the chat.
fn remember(editor: &mut DefaultEditor, line: &str, history: Option<&PathBuf>) {
    let _ = editor.add_history_entry(line);
    if let Some(history) = history {
        let _ = editor.append_history(history);
    }
}
