//! Batches that are made while the device runs the one before.

use super::{Answers, MODEL, crowded, engine, greedy, options, random_request, run};
use halfwarp::engine::{Engine, EngineOptions, FinishReason, Request, RequestId, Sampling};
use halfwarp::exec::Device;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;

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

/// Runs `requests`, which come at random times; some are cancelled, whose ids are returned too.
fn serve(engine: &mut Engine, requests: &[Request], seed: u64) -> (Answers, BTreeSet<RequestId>) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut answers, mut added, mut cancelled) = Default::default();
    let (answers_of, ids): (&mut Answers, &mut Vec<RequestId>) = (&mut answers, &mut added);
    while ids.len() < requests.len() || engine.has_work() {
        match rng.random_range(0..12) {
            0 if ids.len() < requests.len() => {
                ids.push(engine.add_request(requests[ids.len()].clone()).unwrap());
            }
            1 if rng.random_bool(0.1) && !ids.is_empty() => {
                let id = ids[rng.random_range(0..ids.len())];
                engine.cancel(id);
                BTreeSet::insert(&mut cancelled, id);
            }
            2 if rng.random_bool(0.1) => answers_of.take(engine.step().unwrap()),
            _ => engine.step_while(|_, events| answers_of.take(events)).unwrap(),
        }
    }
    (answers, cancelled)
}

/// Whatever runs together, ends and is cancelled, and whoever chooses the tokens: with batches that
/// are made ahead every request gets what it gets without.
#[test]
fn batches_that_are_made_ahead_bring_the_same() {
    for seed in 0..24 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let batch_invariant = seed % 2 == 0;
        let options = EngineOptions { batch_invariant, ..crowded(&mut rng) };
        let mut request = || {
            let mut request = random_request(&mut rng);
            request.min_tokens = [0, 0, 0, 5][rng.random_range(0..4)];
            request.priority = rng.random_range(0..2);
            // The device draws alone.
            if seed % 3 > 0 {
                let Sampling { temperature, top_k, seed, .. } = request.sampling;
                request.sampling = Sampling { temperature, top_k, seed, ..Sampling::default() };
                request.min_tokens = 0;
            }
            request
        };
        let requests: Vec<_> = (0..12).map(|_| request()).collect();
        let [(without, gone), (with, gone_with)] = [false, true].map(|look_ahead| {
            let look_ahead = Some(look_ahead);
            serve(&mut engine(EngineOptions { look_ahead, ..options.clone() }), &requests, seed)
        });
        for (id, answer) in without.0 {
            if gone.contains(&id) || gone_with.contains(&id) {
                let len = answer.0.len().min(with.0[&id].0.len());
                assert_eq!(answer.0[..len], with.0[&id].0[..len], "seed {seed}, cancelled");
            } else {
                assert_eq!(answer, with.0[&id], "seed {seed}");
            }
        }
    }
}

/// A device that begins the next step when one ends takes the tokens from it, of whatever rows they
/// are there; what comes after a stop nobody gets.
#[test]
fn a_step_takes_the_tokens_of_the_one_before() {
    let [(without, _), (with, _)] = [false, true].map(|look_ahead| {
        let options = EngineOptions {
            device: Device::Emulated,
            context: Some(64),
            max_seqs: 3,
            max_tokens: Some(16),
            look_ahead: Some(look_ahead),
            ..options()
        };
        let mut engine = Engine::new(MODEL.clone(), options).unwrap();
        let lens = [(3, 9), (17, 2), (1, 6), (2, 4)];
        let request = |(index, (len, max_new_tokens)): (u32, (u32, usize))| {
            let prompt = (0..len).map(|at| (31 * at + 7 * index) % super::VOCAB_SIZE).collect();
            let sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
            Request { sampling, ..greedy(prompt, max_new_tokens) }
        };
        let mut requests: Vec<_> = (0..).zip(lens).map(request).collect();
        requests[2].stop_tokens = (0..super::VOCAB_SIZE).step_by(3).collect();
        serve(&mut engine, &requests, 1)
    });
    assert_eq!(without.0, with.0);
    assert!(with.0.values().any(|(_, reason)| *reason == Some(FinishReason::StopToken)));
}
