//! Embeddings of prompts, against logits: these are linear in the hidden states.

use super::{MODEL, VOCAB_SIZE, crowded, engine, greedy, options, prompt, random_request, run};
use halfwarp::engine::{Engine, EngineOptions, EventKind, FinishReason, Pooling, Request};
use halfwarp::exec::Device;
use halfwarp::plan::{Bounds, Precision, WeightSource};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// What has come of a request.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    embedding: Option<Vec<f32>>,
    reason: Option<FinishReason>,
}

fn run_all(engine: &mut Engine, requests: &[Request]) -> Vec<Outcome> {
    let ids = requests.iter().map(|request| engine.add_request(request.clone()).unwrap());
    let ids: Vec<_> = ids.collect();
    let mut all = BTreeMap::<_, Outcome>::new();
    while engine.has_work() {
        for event in engine.step().unwrap() {
            let outcome = all.entry(event.request).or_default();
            assert_eq!(outcome.reason, None, "it has ended");
            match event.kind {
                EventKind::Started { .. } => {}
                EventKind::Embedding(embedding) => outcome.embedding = Some(embedding),
                EventKind::Token(token) => outcome.tokens.push(token),
                EventKind::Finished(reason) => outcome.reason = Some(reason),
                other => panic!("{other:?}"),
            }
        }
    }
    ids.iter().map(|id| all.remove(id).unwrap()).collect()
}

fn embedding_of(prompt: Vec<u32>, pooling: Pooling) -> Request {
    Request { prompt, pooling: Some(pooling), ..Request::default() }
}

fn unit(vector: Vec<f64>) -> Vec<f64> {
    let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    vector.into_iter().map(|x| x / length).collect()
}

/// The rows of the matrix that makes logits of hidden states.
fn lm_head() -> Vec<Vec<f32>> {
    let (max_tokens, max_seqs, max_logit_rows) = (2, 1, 1);
    let bounds =
        Bounds { max_tokens, max_seqs, max_q_len: 2, max_logit_rows, max_kv_len: 64, mixed: false };
    let plan = MODEL.plan(&Precision::F32.into(), bounds, 1).unwrap();
    let is_head = |name: &str| name == "lm_head" || name == "embedding";
    let head = plan.weights.iter().rfind(|weight| is_head(&weight.name)).unwrap();
    let mut bytes = vec![0; head.bytes()];
    MODEL.checkpoint().read(head, &mut bytes).unwrap();
    let values = bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    values.collect::<Vec<_>>().chunks(head.cols).map(<[f32]>::to_vec).collect()
}

/// The direction of the logits of a prompt's last token, or of their sum.
fn wanted(engine: &mut Engine, request: &Request) -> Vec<f64> {
    let logits = engine.logits(&request.prompt).unwrap();
    let rows = logits.chunks(VOCAB_SIZE as usize);
    let skipped = if request.pooling == Some(Pooling::Last) { request.prompt.len() - 1 } else { 0 };
    let mut sum = vec![0.0; VOCAB_SIZE as usize];
    for row in rows.skip(skipped) {
        sum.iter_mut().zip(row).for_each(|(sum, &logit)| *sum += f64::from(logit));
    }
    unit(sum)
}

fn check(embedding: &[f32], head: &[Vec<f32>], wanted: &[f64], tolerance: f64) {
    let length: f64 = embedding.iter().map(|&x| f64::from(x).powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let dot = |row: &Vec<f32>| row.iter().zip(embedding).map(|(&a, &b)| f64::from(a * b)).sum();
    let got = unit(head.iter().map(dot).collect());
    let error = got.iter().zip(wanted).map(|(got, wanted)| (got - wanted).powi(2)).sum::<f64>();
    assert!(error.sqrt() < tolerance, "{error}");
}

/// In chunks, beside what is generated, and preempted where the cache is short.
#[test]
fn they_are_the_hidden_states_that_logits_are_made_of() {
    let (mut alone, head) = (engine(options()), lm_head());
    let mut num_preemptions = 0;
    for seed in 0..16 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let batch_invariant = rng.random_bool(0.3);
        let mut together = engine(EngineOptions { batch_invariant, ..crowded(&mut rng) });
        let mut request = || {
            let request = random_request(&mut rng);
            let pooling = [None, Some(Pooling::Mean), Some(Pooling::Last)][rng.random_range(0..3)];
            let priority = rng.random_range(0..2);
            Request { pooling, priority, max_new_tokens: Some(50), ..request }
        };
        let requests: Vec<Request> = (0..12).map(|_| request()).collect();
        let outcomes = run_all(&mut together, &requests);
        num_preemptions += together.stats().num_preemptions;
        for (request, outcome) in requests.into_iter().zip(outcomes) {
            if request.pooling.is_some() {
                let ended = (outcome.tokens.len(), outcome.reason);
                assert_eq!(ended, (0, Some(FinishReason::Length)), "seed {seed}");
                let wanted = wanted(&mut alone, &request);
                check(&outcome.embedding.unwrap(), &head, &wanted, 1e-4);
            } else {
                assert_eq!(outcome.embedding, None);
                assert_eq!(outcome.tokens, run(&mut alone, request).tokens, "seed {seed}");
            }
        }
    }
    assert!(num_preemptions > 0, "no cache was short");
}

#[test]
fn they_and_answers_take_turns() {
    let mut engine = engine(EngineOptions { max_seqs: 3, max_tokens: Some(16), ..options() });
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    engine.add_request(greedy(vec![1, 2, 3], 50)).unwrap();
    engine.step().unwrap();
    let long = embedding_of(prompt(&mut rng, 64), Pooling::Mean);
    let ids = [(); 2].map(|()| engine.add_request(long.clone()).unwrap());
    let mut kinds = Vec::new();
    while kinds.iter().filter(|kind| **kind == "embedding").count() < 2 {
        for event in engine.step().unwrap() {
            match event.kind {
                EventKind::Token(_) => kinds.push("token"),
                EventKind::Embedding(_) => kinds.push("embedding"),
                EventKind::Started { .. } | EventKind::Finished(_) => {
                    assert!(ids.contains(&event.request));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // 128 tokens are eight steps of 16: between two of them comes a token.
    assert_eq!(kinds.iter().filter(|kind| **kind == "token").count(), 7, "{kinds:?}");
}

/// The GPU's kernels: the plan ends in another operation than that of logits.
#[test]
fn the_emulated_device_gives_the_same() {
    let head = lm_head();
    let requests = [Pooling::Mean, Pooling::Last]
        .map(|pooling| embedding_of(prompt(&mut ChaCha8Rng::seed_from_u64(2), 20), pooling));
    for precision in [Precision::F32, Precision::F16] {
        let options = EngineOptions {
            device: Device::Emulated,
            precision: precision.into(),
            context: Some(64),
            max_seqs: 2,
            max_tokens: Some(32),
            ..options()
        };
        let outcomes = run_all(&mut engine(options), &requests);
        for (request, outcome) in requests.iter().zip(outcomes) {
            let wanted = wanted(&mut engine(super::options()), request);
            let tolerance = if precision == Precision::F32 { 1e-4 } else { 1e-2 };
            check(&outcome.embedding.unwrap(), &head, &wanted, tolerance);
        }
    }
}
