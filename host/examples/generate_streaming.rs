//! Answers a question, token by token.
//!
//! `cargo run --release --example generate_streaming [MODEL]`, MODEL a directory, a `.gguf` file or a fetched model's
//! name; by default the model that `cargo xtask setup` fetches.

use halfwarp::{Engine, EngineOptions, Message, Model, Request, Sampling, TextStream, models};
use std::{env, error::Error, io::Write, ops::ControlFlow, sync::Arc};

fn main() -> Result<(), Box<dyn Error>> {
    let model = match env::args_os().nth(1) {
        Some(model) => Model::open(model)?,
        None => Model::open(models::default_model()?)?,
    };
    let model = Arc::new(model);
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
