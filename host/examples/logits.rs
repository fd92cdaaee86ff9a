//! What a model thinks comes next: the five most likely tokens after a few.
//!
//! `cargo run --release --example logits [MODEL]`, MODEL a directory, a `.gguf` file or a fetched model's name; by
//! default a tiny model of the tests.

use halfwarp::{Engine, EngineOptions, Model};
use std::{env, error::Error, sync::Arc};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");

fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args_os().nth(1).unwrap_or(TINY.into());
    let model = Arc::new(Model::open(path)?);
    let vocab_size = model.config().vocab_size;
    let mut engine = Engine::new(model, EngineOptions::default())?;

    let tokens = [1, 2, 3, 4];
    let logits = engine.logits(&tokens)?;
    let last = &logits[(tokens.len() - 1) * vocab_size..];
    let mut ranked: Vec<usize> = (0..vocab_size).collect();
    ranked.sort_by(|&a, &b| last[b].total_cmp(&last[a]));
    for token in &ranked[..5] {
        println!("token {token:>6}: logit {:.4}", last[*token]);
    }
    Ok(())
}
