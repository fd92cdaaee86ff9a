//! Log-probabilities, and how many tokens come before a stop token.

use super::{VOCAB_SIZE, crowded, engine, greedy, options, prompt, random_request, run};
use halfwarp::engine::{
    Engine, EngineOptions, EventKind, FinishReason, Logprobs, Request, RequestId, Sampling,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// What has come of a request.
#[derive(Default)]
struct Scored {
    prompt: Vec<Logprobs>,
    generated: Vec<Logprobs>,
    tokens: Vec<u32>,
    cached_tokens: usize,
    reason: Option<FinishReason>,
}

fn run_all(engine: &mut Engine) -> BTreeMap<RequestId, Scored> {
    let mut all = BTreeMap::<_, Scored>::new();
    while engine.has_work() {
        for event in engine.step().unwrap() {
            let scored = all.entry(event.request).or_default();
            match event.kind {
                EventKind::Started { cached_tokens } => scored.cached_tokens = cached_tokens,
                EventKind::PromptLogprobs(of) => scored.prompt.extend(of),
                EventKind::Logprobs(of) => scored.generated.push(of),
                EventKind::Token(token) => scored.tokens.push(token),
                EventKind::Finished(reason) => scored.reason = Some(reason),
                other => panic!("{other:?}"),
            }
        }
    }
    all
}

/// The logarithm of the softmax, in f64, of each position of `tokens`.
fn oracle(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f64>> {
    let logits = engine.logits(tokens).unwrap();
    let log_softmax = |row: &[f32]| {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        row.iter().map(|&logit| f64::from(logit) - sum.ln()).collect()
    };
    logits.chunks(VOCAB_SIZE as usize).map(log_softmax).collect()
}

fn check(of: &Logprobs, token: u32, num_top: usize, wanted: &[f64]) {
    assert_eq!((of.token, of.top.len()), (token, num_top));
    let mut sorted = wanted.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let each = of.top.iter().zip(sorted).map(|(top, nth)| (*top, nth));
    for ((token, logprob), nth) in each.chain([((token, of.logprob), wanted[token as usize])]) {
        assert!((f64::from(logprob) - wanted[token as usize]).abs() < 1e-4, "{of:?}");
        assert!((f64::from(logprob) - nth).abs() < 1e-4, "{of:?}");
    }
}

/// In chunks, beside others, and preempted where the cache is short; whatever the sampling is.
#[test]
fn they_are_the_models_own() {
    let mut alone = engine(options());
    let mut num_preemptions = 0;
    for seed in 0..8 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let batch_invariant = rng.random_bool(0.3);
        let mut together = engine(EngineOptions { batch_invariant, ..crowded(&mut rng) });
        let mut requests = BTreeMap::new();
        for _ in 0..10 {
            let mut num_top = || rng.random_bool(0.7).then(|| rng.random_range(0..4));
            let (logprobs, prompt_logprobs) = (num_top(), num_top());
            let max_new_tokens = Some(rng.random_range(0..50));
            let request = random_request(&mut rng);
            let request = Request { logprobs, prompt_logprobs, max_new_tokens, ..request };
            requests.insert(together.add_request(request.clone()).unwrap(), request);
        }
        let all = run_all(&mut together);
        num_preemptions += together.stats().num_preemptions;
        for (id, request) in requests {
            let Scored { prompt, generated, tokens, .. } = &all[&id];
            let plain = Request { logprobs: None, prompt_logprobs: None, ..request.clone() };
            assert_eq!(*tokens, run(&mut alone, plain).tokens, "seed {seed}");
            let whole = [&request.prompt[..], tokens].concat();
            let wanted = oracle(&mut alone, &whole);
            let scored = request.prompt_logprobs.map_or(0, |_| request.prompt.len() - 1);
            assert_eq!(prompt.len(), scored, "seed {seed}");
            for (at, of) in prompt.iter().enumerate() {
                check(of, whole[at + 1], request.prompt_logprobs.unwrap(), &wanted[at]);
            }
            assert_eq!(generated.len(), request.logprobs.map_or(0, |_| tokens.len()));
            for (at, of) in (request.prompt.len()..).zip(generated) {
                check(of, whole[at], request.logprobs.unwrap(), &wanted[at - 1]);
            }
        }
    }
    assert!(num_preemptions > 0, "no cache was short");
}

#[test]
fn a_prompt_is_scored_as_a_whole_and_alone() {
    let mut engine = engine(EngineOptions { max_seqs: 2, ..options() });
    let prompt = prompt(&mut ChaCha8Rng::seed_from_u64(3), 150);
    let scored = Request { prompt_logprobs: Some(1), ..greedy(prompt.clone(), 0) };
    let first = engine.add_request(scored.clone()).unwrap();
    let first = run_all(&mut engine).remove(&first).unwrap();
    assert_eq!((first.prompt.len(), &*first.tokens), (149, &[][..]));
    assert_eq!(first.reason, Some(FinishReason::Length));
    // What it left in the cache is of use to others, and not to a prompt that is scored.
    assert_eq!(run(&mut engine, greedy(prompt, 1)).cached_tokens, 128);
    let again = engine.add_request(scored).unwrap();
    let again = run_all(&mut engine).remove(&again).unwrap();
    assert_eq!((again.cached_tokens, again.prompt), (0, first.prompt));
    let one = Request { prompt_logprobs: Some(1), ..greedy(vec![1], 0) };
    let one = engine.add_request(one).unwrap();
    let one = run_all(&mut engine).remove(&one).unwrap();
    assert!(one.prompt.is_empty() && one.reason == Some(FinishReason::Length));
}

#[test]
fn stop_tokens_wait_for_min_tokens() {
    let mut engine = engine(options());
    let prompt = vec![5, 6, 7];
    let free = run(&mut engine, greedy(prompt.clone(), 12)).tokens;
    // Both would come among the first ones; one is no token at all.
    let stop_tokens = vec![free[0], free[3], 100_000];
    let biased = Request {
        sampling: Sampling {
            logit_bias: stop_tokens[..2].iter().map(|&stop| (stop, f32::NEG_INFINITY)).collect(),
            ..Sampling::default()
        },
        ..greedy(prompt.clone(), 6)
    };
    let without = run(&mut engine, biased).tokens;
    let request =
        Request { stop_tokens: stop_tokens.clone(), min_tokens: 6, ..greedy(prompt.clone(), 12) };
    let got = run(&mut engine, request).tokens;
    assert_eq!(got[..6], without);
    let after =
        run(&mut engine, Request { stop_tokens, ..greedy([&prompt[..], &without].concat(), 6) });
    assert_eq!(got[6..], after.tokens);
    // A token that comes first at `at` ends the answer there, but not where one more is asked for.
    let is_new = |&at: &usize| at > 0 && !free[..at].contains(&free[at]);
    let at = (0..free.len()).rfind(is_new).unwrap();
    let mut ended = |min_tokens| {
        let stop_tokens = vec![free[at]];
        run(&mut engine, Request { stop_tokens, min_tokens, ..greedy(prompt.clone(), 12) }).tokens
    };
    assert_eq!(ended(at), free[..=at]);
    assert_ne!(ended(at + 1)[at], free[at]);
}
