//! Answers a question, token by token.
//!
//! `cargo run --release --example generate_streaming [MODEL]`, MODEL a directory or a `.gguf` file with a tokenizer; without it
//! the model that `cargo xtask setup` fetches.

use halfwarp::{Engine, EngineOptions, Message, Model, Request, Sampling, TextStream};
use std::{env, error::Error, io::Write, ops::ControlFlow, path::PathBuf, sync::Arc};

fn main() -> Result<(), Box<dyn Error>> {
    let model = Arc::new(Model::open(model_path()?)?);
    let text = model.text().ok_or("the model has no tokenizer")?;
    let template = text.chat_template.as_ref().ok_or("the model has no chat template")?;

    let question = Message::new("user", "What is the capital of France?");
    let prompt = text.tokenizer.encode(&template.render(&[question], true)?, false)?;
    // With the stop tokens and the sampling values that the model comes with, or else these.
    let sampling = Sampling { temperature: 0.8, top_p: 0.95, seed: 1, ..Sampling::default() };
    let sampling = model.generation_config().sampling(sampling);
    let request = Request { max_new_tokens: Some(64), sampling, ..model.request(prompt) };

    let mut engine = Engine::new(Arc::clone(&model), EngineOptions::default())?;
    let mut stream = TextStream::new(&text.tokenizer);
    let mut stdout = std::io::stdout().lock();
    let generation = engine.generate(request, |token| {
        let written = write!(stdout, "{}", stream.push(token)).and_then(|()| stdout.flush());
        // Nobody reads any more: no need to go on.
        if written.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    println!("{}\n({} tokens)", stream.finish(), generation.tokens.len());
    Ok(())
}

fn model_path() -> Result<PathBuf, Box<dyn Error>> {
    match env::args_os().nth(1) {
        Some(path) => Ok(path.into()),
        None => Ok(model_cache::DEFAULT.path(&model_cache::cache_dir()?)),
    }
}
