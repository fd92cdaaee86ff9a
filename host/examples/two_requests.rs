//! Two requests at once: they share each step, and each gets what it would have got alone.
//!
//! `cargo run --release --example two_requests [MODEL]`, MODEL a directory or a `.gguf` file; without it a tiny one of the tests.

use halfwarp::{Engine, EngineOptions, EventKind, Model, Request};
use std::{env, error::Error, sync::Arc};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args_os().nth(1).unwrap_or(TINY.into());
    let model = Arc::new(Model::open(path)?);
    let options = EngineOptions { max_seqs: 2, ..EngineOptions::default() };
    let mut engine = Engine::new(model, options)?;

    let prompts = [vec![1, 2, 3, 4, 5], vec![9, 8, 7]];
    let requests = prompts.map(|prompt| {
        engine.add_request(Request { prompt, max_new_tokens: Some(8), ..Request::default() })
    });
    let [first, second] = requests;
    let names = [(first?, "first"), (second?, "second")];

    while engine.has_work() {
        for event in engine.step()? {
            let name = names.iter().find(|(id, _)| *id == event.request).map_or("?", |(_, n)| n);
            match event.kind {
                EventKind::Token(token) => println!("{name:>6}: {token}"),
                EventKind::Finished(reason) => println!("{name:>6}: finished ({reason:?})"),
                other => println!("{name:>6}: {other:?}"),
            }
        }
    }
    Ok(())
}
