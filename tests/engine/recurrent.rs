//! Models whose sequences have a recurrent state beside their pages.

use super::{Answers, crowded, greedy, options, run, support};
use halfwarp::Model;
use halfwarp::engine::{Engine, EngineOptions, Request};
use halfwarp::plan::PAGE_SIZE;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock, mpsc};

static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let dir = support::data_dir().join("goldens/qwen3-next");
    Arc::new(Model::open(dir).unwrap_or_else(|error| panic!("{error}")))
});

fn engine(options: EngineOptions) -> Engine {
    Engine::new(MODEL.clone(), options).unwrap_or_else(|error| panic!("{error}"))
}

fn prompt(rng: &mut ChaCha8Rng, len: usize) -> Vec<u32> {
    (0..len).map(|_| rng.random_range(3..128)).collect()
}

fn random_request(rng: &mut ChaCha8Rng) -> Request {
    let len =
        if rng.random_bool(0.3) { rng.random_range(60..140) } else { rng.random_range(1..20) };
    // Many begin alike.
    let mut prompt = prompt(rng, len);
    let num_common = [0, 60, 70, 130][rng.random_range(0..4)];
    prompt.splice(0..0, (0..num_common).map(|at| 3 + at % 100));
    prompt.truncate(160);
    greedy(prompt, rng.random_range(1..30))
}

/// Beside others, in pieces, after others in the same slot, and preempted where the cache is short.
#[test]
fn any_interleaving_gives_each_request_what_it_gets_alone() {
    let mut alone = engine(options());
    let mut num_preemptions = 0;
    for seed in 0..8 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let look_ahead = Some(seed % 2 == 0);
        let mut together = engine(EngineOptions { look_ahead, ..crowded(&mut rng) });
        let (mut requests, mut cancelled) = (BTreeMap::new(), Vec::new());
        let mut answers = Answers::default();
        while requests.len() < 10 || together.has_work() {
            match rng.random_range(0..10) {
                0..3 if requests.len() < 10 => {
                    let request = random_request(&mut rng);
                    requests.insert(together.add_request(request.clone()).unwrap(), request);
                }
                3 if rng.random_bool(0.2) && !requests.is_empty() => {
                    let id = *requests.keys().nth(rng.random_range(0..requests.len())).unwrap();
                    together.cancel(id);
                    cancelled.push(id);
                }
                _ => together.step_while(|_, events| answers.take(events)).unwrap(),
            }
        }
        num_preemptions += together.stats().num_preemptions;
        for (id, request) in requests {
            let (tokens, _) = answers.0.remove(&id).unwrap_or_default();
            let wanted = run(&mut alone, request.clone()).tokens;
            let is_right =
                tokens == wanted || cancelled.contains(&id) && wanted.starts_with(&tokens);
            assert!(is_right, "seed {seed}: {tokens:?} of {request:?}, not {wanted:?}");
        }
    }
    assert!(num_preemptions > 0, "no cache was short");
}

/// The answer of an engine that has seen nothing before.
fn fresh(request: &Request) -> Vec<u32> {
    run(&mut engine(options()), request.clone()).tokens
}

/// A turn computes what is new, and a page of the one before at most.
#[test]
fn a_turn_of_a_conversation_begins_with_the_state_of_the_turn_before() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for max_tokens in [None, Some(24), Some(100)] {
        let mut engine = engine(EngineOptions { max_seqs: 2, max_tokens, ..options() });
        let mut text = prompt(&mut rng, 150);
        let mut cached = Vec::new();
        for num_new in [70, 5, 0, 200] {
            let request = greedy(text.clone(), 40);
            let got = run(&mut engine, request.clone());
            assert_eq!(got.tokens, fresh(&request), "{max_tokens:?}: {cached:?}");
            cached.push(got.cached_tokens);
            text.extend(got.tokens);
            text.extend(prompt(&mut rng, num_new));
        }
        // The last page of 189, 299, 344 and 384 tokens.
        assert_eq!(cached, [0, 128, 256, 320], "{max_tokens:?}");
    }
}

/// The second request that begins so finds pages without a state, and leaves one there.
#[test]
fn what_others_begin_with_is_computed_twice() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let common = prompt(&mut rng, 2 * PAGE_SIZE + 5);
    let mut engine = engine(options());
    let (sender, events) = mpsc::channel();
    engine.on_cache_event(move |event| sender.send(event).unwrap());
    let mut cached = Vec::new();
    for _ in 0..4 {
        let request = greedy([common.clone(), prompt(&mut rng, 150)].concat(), 8);
        let got = run(&mut engine, request.clone());
        assert_eq!(got.tokens, fresh(&request));
        cached.push(got.cached_tokens);
    }
    assert_eq!(cached, [0, 0, 2 * PAGE_SIZE, 2 * PAGE_SIZE]);
    assert_eq!(events.try_iter().count(), 0, "pages alone are of no use to a router");
}

/// The logits of a text take a state while requests have others.
#[test]
fn logits_of_a_text_leave_the_states_of_requests_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let (request, text) = (greedy(prompt(&mut rng, 9), 12), prompt(&mut rng, 40));
    let wanted = run(&mut engine(options()), request.clone()).tokens;
    let logits = engine(options()).logits(&text).unwrap();
    let mut engine = engine(EngineOptions {
        max_seqs: 2,
        context: Some(128),
        max_tokens: Some(16),
        ..options()
    });
    let id = engine.add_request(request).unwrap();
    let mut answers = Answers::default();
    (0..5).for_each(|_| answers.take(engine.step().unwrap()));
    let beside = engine.logits(&text).unwrap();
    let is_close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
    assert!(beside.iter().zip(&logits).all(is_close));
    while engine.has_work() {
        answers.take(engine.step().unwrap());
    }
    assert_eq!(answers.0[&id].0, wanted);
}

/// Devices that share a model have a part of each state.
#[test]
fn devices_that_share_a_model_share_its_states() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let request = greedy(prompt(&mut rng, 150), 30);
    // Heads of values beside those of the same key, and a number of keys apart.
    for name in ["qwen3-next", "gguf/qwen3-next.gguf", "gguf/qwen3.5-moe.gguf"] {
        let file = support::data_dir().join("goldens").join(name);
        let model = Arc::new(Model::open(file).unwrap_or_else(|error| panic!("{error}")));
        let of = |world: usize| {
            let tensor_parallel_size = NonZeroUsize::new(world).unwrap();
            let options = EngineOptions { tensor_parallel_size, ..options() };
            let mut engine = Engine::new(model.clone(), options).unwrap();
            let budget = *engine.memory_budget();
            (run(&mut engine, request.clone()).tokens, budget.state_bytes)
        };
        let [alone, shared] = [1, 2].map(of);
        assert_eq!(shared.0, alone.0, "{name}");
        assert!(shared.1 < alone.1 * 3 / 2, "{name}: only keys may be several ranks'");
    }
}

/// Each sequence that may run has a state, and some are kept, whatever the cache's pages are.
#[test]
fn the_budget_counts_a_state_for_each_sequence() {
    let bytes = |max_seqs: usize, context: usize| {
        let options = EngineOptions { max_seqs, context: Some(context), ..options() };
        let engine = engine(options);
        let (budget, used) = (*engine.memory_budget(), engine.memory_use().unwrap().buffer_bytes);
        assert!(used >= budget.state_bytes + budget.kv_bytes + budget.weight_bytes);
        (budget.state_bytes, budget.kv_bytes)
    };
    // A layer of four heads of 32 x 32, and of three inputs of 256 channels.
    let of_sequence = 4 * (4 * 32 * 32 + 3 * 256);
    // A layer with keys and values of two heads of 32.
    let of_position = 2 * 4 * 2 * 32;
    assert_eq!(bytes(1, 128), (3 * of_sequence, 128 * of_position));
    assert_eq!(bytes(3, 128), (6 * of_sequence, 3 * 128 * of_position));
    assert_eq!(bytes(3, 256), (6 * of_sequence, 3 * 256 * of_position));
}
