//! Batches that are prepared while the device runs the one before.

use super::{Answers, crowded, engine, greedy, options, random_request, run};
use halfwarp::engine::{EngineOptions, FinishReason, Request, Sampling};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What a batch brings is handed out once, beside the next one, and after the last one without.
#[test]
fn work_beside_a_batch() {
    for look_ahead in [false, true] {
        let mut engine = engine(EngineOptions { look_ahead: Some(look_ahead), ..options() });
        let sampling = Sampling { temperature: 1.0, seed: 5, ..Sampling::default() };
        let request = Request { sampling, ..greedy(vec![1, 2, 3], 4) };
        let wanted = run(&mut engine, request.clone()).tokens;
        engine.drop_retained();
        let id = engine.add_request(request).unwrap();
        let (mut answers, mut num_tokens) = (Answers::default(), Vec::new());
        while engine.has_work() {
            engine
                .step_while(|stats, events| {
                    assert!(stats.num_running <= 1);
                    answers.take(events);
                })
                .unwrap();
            num_tokens.push(answers.0.get(&id).map_or(0, |(tokens, _)| tokens.len()));
        }
        assert_eq!(num_tokens, [0, 1, 2, 3, 4]);
        assert_eq!(answers.0[&id], (wanted, Some(FinishReason::Length)));
    }
}

/// Whatever runs together, ends and is cancelled, and whoever chooses the tokens: with batches that
/// are prepared ahead every request gets what it gets without.
#[test]
fn batches_that_are_prepared_ahead_are_the_same() {
    for seed in 0..20 {
        let events = [false, true].map(|look_ahead| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let batch_invariant = seed % 2 == 0;
            let options = EngineOptions { batch_invariant, ..crowded(&mut rng) };
            let mut engine = engine(EngineOptions { look_ahead: Some(look_ahead), ..options });
            let (mut answers, mut added) = (Answers::default(), Vec::new());
            while added.len() < 12 || engine.has_work() {
                match rng.random_range(0..12) {
                    0 if added.len() < 12 => {
                        let mut request = random_request(&mut rng);
                        request.min_tokens = [0, 0, 0, 5][rng.random_range(0..4)];
                        request.priority = rng.random_range(0..2);
                        added.push(engine.add_request(request).unwrap());
                    }
                    1 if rng.random_bool(0.1) && !added.is_empty() => {
                        engine.cancel(added[rng.random_range(0..added.len())]);
                    }
                    2 if rng.random_bool(0.1) => answers.take(engine.step().unwrap()),
                    _ => engine.step_while(|_, events| answers.take(events)).unwrap(),
                }
            }
            answers.0
        });
        assert_eq!(events[0], events[1], "seed {seed}");
    }
}
