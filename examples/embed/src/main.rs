//! halfwarp in another program: `cargo run -- MODEL [TOKEN]..`, MODEL a directory, a `.gguf` file or a fetched model's
//! name. It continues the tokens, alone and beside another request, and prints what comes next.

use halfwarp::{Device, Engine, EngineOptions, EventKind, Model, Request};
use std::{env, error::Error, ops::ControlFlow, sync::Arc};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let model = Arc::new(Model::open(args.next().ok_or("usage: embed MODEL [TOKEN]..")?)?);
    let prompt: Vec<u32> = args.map(|token| token.parse()).collect::<Result<_, _>>()?;
    let options = EngineOptions { device: Device::Cpu, max_seqs: 2, ..EngineOptions::default() };
    let mut engine = Engine::new(Arc::clone(&model), options)?;

    // Token by token.
    let request = Request { prompt: prompt.clone(), max_new_tokens: Some(8), ..Request::default() };
    let mut streamed = Vec::new();
    engine.generate(request.clone(), |token| {
        streamed.push(token);
        ControlFlow::Continue(())
    })?;
    println!("generated {streamed:?}");

    // Logits: `[num_tokens, vocab_size]`.
    let logits = engine.logits(&prompt)?;
    let last = &logits[logits.len() - model.config().vocab_size..];
    let largest = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b]));
    println!("most likely {}", largest.ok_or("no logits")?);

    // Two requests share each step, and each gets what it would have got alone.
    let other = Request { prompt: vec![1, 2, 3], max_new_tokens: Some(8), ..Request::default() };
    let (first, _) = (engine.add_request(request)?, engine.add_request(other)?);
    let mut batched = Vec::new();
    while engine.has_work() {
        for event in engine.step()? {
            if let (true, EventKind::Token(token)) = (event.request == first, event.kind) {
                batched.push(token);
            }
        }
    }
    println!("beside another {batched:?}");
    Ok(())
}
