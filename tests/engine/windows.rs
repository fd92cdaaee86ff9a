//! Models with sliding windows: their layers have pages of their own, which leave with the window.

use super::{Answers, crowded, greedy, options, run, support};
use halfwarp::Model;
use halfwarp::engine::{Engine, EngineOptions};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

/// Windows in every layer, and in some.
const MODELS: [&str; 4] = ["mistral-window", "qwen2-window", "gemma3", "gpt-oss"];

fn model(name: &str) -> Arc<Model> {
    let dir = support::data_dir().join("goldens").join(name);
    Arc::new(Model::open(dir).unwrap_or_else(|error| panic!("{error}")))
}

fn engine(model: &Arc<Model>, options: EngineOptions) -> Engine {
    Engine::new(model.clone(), options).unwrap_or_else(|error| panic!("{error}"))
}

fn prompt(rng: &mut ChaCha8Rng, len: usize) -> Vec<u32> {
    (0..len).map(|_| rng.random_range(3..100)).collect()
}

/// `tokens` and the `len` tokens after them, each from a step in which all before it are new: no
/// page can leave.
fn continued(engine: &mut Engine, tokens: &[u32], len: usize) -> Vec<u32> {
    let mut tokens = tokens.to_vec();
    for _ in 0..len {
        let row = engine.logits(&tokens).unwrap();
        let last = &row[row.len() - engine.model().config().vocab_size..];
        let largest = last.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(&a.0)));
        tokens.push(largest.unwrap().0 as u32);
    }
    tokens
}

#[test]
fn what_left_its_window_is_not_missed() {
    for name in MODELS {
        let model = model(name);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let whole = EngineOptions { max_tokens: Some(512), max_seqs: 1, ..options() };
        let mut whole = engine(&model, EngineOptions { context: Some(512), ..whole });
        for (max_tokens, len) in [(7, 290), (64, 400), (512, 330)] {
            let text = prompt(&mut rng, len);
            let short = EngineOptions { max_tokens: Some(max_tokens), max_seqs: 2, ..options() };
            let mut short = engine(&model, EngineOptions { context: Some(512), ..short });
            let got = run(&mut short, greedy(text.clone(), 12)).tokens;
            assert_eq!(continued(&mut whole, &text, got.len())[len..], got, "{name}");
        }
    }
}

/// Beside others, in pieces, after others, and preempted where the cache is short.
#[test]
fn any_interleaving_gives_each_request_what_it_gets_alone() {
    let model = model("gemma3");
    let mut alone = engine(&model, options());
    let (mut num_preemptions, mut num_cached) = (0, 0);
    for seed in 0..8 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut together = engine(
            &model,
            EngineOptions {
                context: Some(320),
                cache_positions: Some(320),
                look_ahead: Some(seed % 2 == 0),
                ..crowded(&mut rng)
            },
        );
        let (mut requests, mut answers) = (BTreeMap::new(), Answers::default());
        while requests.len() < 8 || together.has_work() {
            if requests.len() < 8 && rng.random_bool(0.2) {
                // Many begin alike.
                let mut text = prompt(&mut rng, 20);
                let num_common = [0, 60, 150, 200][rng.random_range(0..4)];
                text.splice(0..0, (0..num_common).map(|at| 3 + at % 100));
                let request = greedy(text, rng.random_range(1..40));
                requests.insert(together.add_request(request.clone()).unwrap(), request);
            } else {
                together.step_while(|_, events| answers.take(events)).unwrap();
            }
        }
        num_preemptions += together.stats().num_preemptions;
        for (id, request) in requests {
            let (tokens, _) = answers.0.remove(&id).unwrap_or_default();
            let wanted = run(&mut alone, request.clone());
            num_cached += wanted.cached_tokens;
            assert_eq!(tokens, wanted.tokens, "seed {seed}: {request:?}");
        }
    }
    assert!(num_preemptions > 0, "no cache was short");
    assert!(num_cached > 1000, "{num_cached} tokens were found");
}

/// Another turn finds the pages of the turn before, those in the window last.
#[test]
fn a_turn_of_a_conversation_begins_with_the_pages_of_the_turn_before() {
    let model = model("mistral-window");
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let options = EngineOptions { max_seqs: 1, context: Some(512), ..options() };
    let mut engine = engine(&model, EngineOptions { max_tokens: Some(64), ..options });
    let mut text = prompt(&mut rng, 300);
    let mut cached = Vec::new();
    for num_new in [70, 5, 0] {
        let got = run(&mut engine, greedy(text.clone(), 20));
        cached.push(got.cached_tokens);
        text.extend(got.tokens);
        text.extend(prompt(&mut rng, num_new));
    }
    // The last whole page of 319 and 409 tokens.
    assert_eq!(cached, [0, 256, 384]);
}

/// What a long context takes is that of layers without a window.
#[test]
fn a_long_context_takes_no_memory_of_layers_with_a_window() {
    let model_of = |name: &str| {
        let dir = tempfile::tempdir().unwrap();
        let from = support::data_dir().join("goldens").join(name);
        let config = fs::read_to_string(from.join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&config).unwrap();
        config["max_position_embeddings"] = 8192.into();
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
        Arc::new(Model::open(dir.path()).unwrap_or_else(|error| panic!("{error}")))
    };
    let kv_bytes = |model: &Arc<Model>, context: usize| {
        let options = EngineOptions { max_seqs: 1, max_tokens: Some(64), ..options() };
        engine(model, EngineOptions { context: Some(context), ..options }).memory_budget().kv_bytes
    };
    for name in MODELS {
        let model = model_of(name);
        let [short, long] = [4096, 8192].map(|context| kv_bytes(&model, context));
        let config = model.config();
        let without = config.layers.iter().filter(|layer| layer.window.is_none()).count();
        let bytes = without * 2 * config.num_kv_heads * config.head_dim * size_of::<f32>();
        assert_eq!(long - short, 4096 * bytes, "{name}");
    }
}
