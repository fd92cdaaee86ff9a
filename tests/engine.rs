//! The engine on the CPU, with tiny models: whatever runs beside it, a request gets the tokens that it gets alone.

#[path = "engine/ahead.rs"]
mod ahead;
#[path = "engine/cache_events.rs"]
mod cache_events;
#[path = "engine/embeddings.rs"]
mod embeddings;
#[path = "engine/logprobs.rs"]
mod logprobs;
#[path = "engine/recurrent.rs"]
mod recurrent;
mod support;
#[path = "engine/windows.rs"]
mod windows;

use halfwarp::Model;
use halfwarp::engine::{
    Engine, EngineError, EngineOptions, Event, EventKind, FinishReason, Generation,
    PrecisionChoice, Request, RequestId, Sampling, SamplingError, StepSize,
};
use halfwarp::exec::{Device, ExecError};
use halfwarp::plan::{Fits, Op, PAGE_SIZE, Precision, SeqShape};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

const VOCAB_SIZE: u32 = 256;

static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let dir = support::data_dir().join("goldens/llama-gqa");
    Arc::new(Model::open(dir).unwrap_or_else(|error| panic!("{error}")))
});

fn options() -> EngineOptions {
    EngineOptions { device: Device::Cpu, precision: Precision::F32.into(), ..Default::default() }
}

/// Few sequences at once, short steps, and a cache from one context, where sequences push each
/// other out, to room for all.
fn crowded(rng: &mut ChaCha8Rng) -> EngineOptions {
    EngineOptions {
        context: Some(192),
        max_seqs: rng.random_range(1..6),
        max_tokens: Some([7, 32, 64, 512][rng.random_range(0..4)]),
        cache_positions: [Some(192), Some(320), None][rng.random_range(0..3)],
        ..options()
    }
}

fn engine(options: EngineOptions) -> Engine {
    Engine::new(MODEL.clone(), options).unwrap_or_else(|error| panic!("{error}"))
}

fn run(engine: &mut Engine, request: Request) -> Generation {
    engine.generate(request, |_| ControlFlow::Continue(())).unwrap()
}

fn prompt(rng: &mut ChaCha8Rng, len: usize) -> Vec<u32> {
    (0..len).map(|_| rng.random_range(0..VOCAB_SIZE)).collect()
}

fn greedy(prompt: Vec<u32>, max_new_tokens: usize) -> Request {
    Request { prompt, max_new_tokens: Some(max_new_tokens), ..Default::default() }
}

/// A request of any kind: short and long prompts, greedy and drawn, with and without a stop token.
fn random_request(rng: &mut ChaCha8Rng) -> Request {
    let len =
        if rng.random_bool(0.3) { rng.random_range(60..140) } else { rng.random_range(1..20) };
    let sampling = match rng.random_range(0..3) {
        0 => Sampling::default(),
        1 => Sampling { repetition_penalty: 1.2, ..Default::default() },
        _ => Sampling {
            temperature: 0.9,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.02,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: -0.1,
            logit_bias: vec![(rng.random_range(0..VOCAB_SIZE), 2.0)],
            seed: rng.random(),
        },
    };
    Request {
        prompt: prompt(rng, len),
        max_new_tokens: Some(rng.random_range(1..30)),
        sampling,
        stop_tokens: (0..rng.random_range(0..4)).map(|_| rng.random_range(0..VOCAB_SIZE)).collect(),
        ..Request::default()
    }
}

/// What has come of each request so far.
#[derive(Default)]
struct Answers(BTreeMap<RequestId, (Vec<u32>, Option<FinishReason>)>);

impl Answers {
    fn take(&mut self, events: Vec<Event>) {
        for Event { request, kind } in events {
            let (tokens, finished) = self.0.entry(request).or_default();
            assert_eq!(*finished, None, "an event after the last");
            match kind {
                EventKind::Started { .. } => assert!(tokens.is_empty(), "it starts twice"),
                EventKind::Token(token) => tokens.push(token),
                EventKind::Finished(reason) => *finished = Some(reason),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn any_interleaving_gives_each_request_what_it_gets_alone() {
    let mut alone = engine(options());
    for seed in 0..12 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut together = engine(crowded(&mut rng));
        let (mut requests, mut cancelled) = (BTreeMap::new(), Vec::new());
        let mut answers = Answers::default();
        while requests.len() < 12 || together.has_work() {
            match rng.random_range(0..10) {
                0..3 if requests.len() < 12 => {
                    let request = random_request(&mut rng);
                    requests.insert(together.add_request(request.clone()).unwrap(), request);
                }
                3 if rng.random_bool(0.2) && !requests.is_empty() => {
                    let id = *requests.keys().nth(rng.random_range(0..requests.len())).unwrap();
                    together.cancel(id);
                    cancelled.push(id);
                }
                _ => answers.take(together.step().unwrap()),
            }
        }
        for (id, request) in requests {
            let (tokens, finish_reason) = answers.0.remove(&id).unwrap_or_default();
            let wanted = run(&mut alone, request.clone());
            if finish_reason == Some(FinishReason::Cancelled) {
                assert!(cancelled.contains(&id));
                assert!(wanted.tokens.starts_with(&tokens), "seed {seed}: {request:?}");
            } else {
                assert_eq!((&tokens, finish_reason), (&wanted.tokens, Some(wanted.finish_reason)));
            }
        }
        assert!(answers.0.is_empty());
    }
}

#[test]
fn a_prompt_in_chunks_is_the_whole_prompt() {
    let tokens = prompt(&mut ChaCha8Rng::seed_from_u64(1), 200);
    let whole =
        engine(EngineOptions { max_tokens: Some(512), ..options() }).logits(&tokens).unwrap();
    assert_eq!(whole.len(), tokens.len() * VOCAB_SIZE as usize);
    let largest = whole.iter().fold(0.0f32, |max, logit| max.max(logit.abs()));
    for max_tokens in [1, 3, 64, 65] {
        let mut engine = engine(EngineOptions { max_tokens: Some(max_tokens), ..options() });
        let chunks = engine.logits(&tokens).unwrap();
        assert_eq!(chunks.len(), whole.len());
        for (index, (a, b)) in chunks.iter().zip(&whole).enumerate() {
            let error = (a - b).abs() / largest;
            assert!(error < 1e-5, "chunks of {max_tokens}, logit {index}: {a}, not {b}");
        }
        let last = whole[whole.len() - VOCAB_SIZE as usize..].iter().copied().enumerate();
        let top = last.reduce(|a, b| if b.1 > a.1 { b } else { a }).unwrap().0 as u32;
        assert_eq!(run(&mut engine, greedy(tokens.clone(), 1)).tokens, [top]);
    }
}

/// Linear layers' weights in E4M3: other logits than in f32, and near them.
#[test]
fn weights_become_e4m3_when_a_model_is_loaded() {
    let tokens = prompt(&mut ChaCha8Rng::seed_from_u64(8), 40);
    let [fp8, exact] = [PrecisionChoice::Fp8, Precision::F32.into()].map(|precision| {
        let mut engine = engine(EngineOptions { precision, ..options() });
        let storage = engine.model().weight_dtype(engine.numerics()).unwrap().unwrap();
        (engine.logits(&tokens).unwrap(), storage.to_string())
    });
    assert_eq!((&*fp8.1, &*exact.1), ("F8_E4M3", "F32"));
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
    let difference = norm(&mut fp8.0.iter().zip(&exact.0).map(|(a, b)| a - b));
    let error = difference / norm(&mut exact.0.iter().copied());
    assert!((1e-3..0.15).contains(&error), "relative error {error}");
}

#[test]
fn logits_beside_requests_that_run() {
    let mut engine = engine(EngineOptions { context: Some(128), max_seqs: 2, ..options() });
    let tokens = prompt(&mut ChaCha8Rng::seed_from_u64(2), 70);
    let alone = engine.logits(&tokens).unwrap();
    engine.add_request(greedy(vec![1, 2, 3], 100)).unwrap();
    engine.step().unwrap();
    assert_eq!(engine.logits(&tokens).unwrap(), alone);
    engine.add_request(greedy(tokens.clone(), 10)).unwrap();
    engine.step().unwrap();
    assert!(matches!(engine.logits(&tokens), Err(EngineError::CacheFull)));
}

#[test]
fn finish_reasons() {
    let mut engine = engine(EngineOptions { context: Some(100), ..options() });
    let free = run(&mut engine, greedy(vec![5, 6, 7], 20));
    assert_eq!(free.finish_reason, FinishReason::Length);
    assert_eq!(free.tokens.len(), 20);

    let none = run(&mut engine, greedy(vec![5, 6, 7], 0));
    let nothing = FinishReason::Length;
    assert_eq!(none, Generation { tokens: vec![], finish_reason: nothing, cached_tokens: 0 });

    let stop = free.tokens[7];
    let first = free.tokens.iter().position(|&token| token == stop).unwrap();
    let request = Request { stop_tokens: vec![stop], ..greedy(vec![5, 6, 7], 20) };
    let stopped = run(&mut engine, request);
    assert_eq!(stopped.tokens, free.tokens[..=first], "the stop token comes last");
    assert_eq!(stopped.finish_reason, FinishReason::StopToken);

    // A prompt of the whole context leaves room for one answer, which need not be in the cache.
    for prompt_len in [98, 100] {
        let request = Request { max_new_tokens: None, ..greedy(vec![5; prompt_len], 0) };
        let full = run(&mut engine, request);
        assert_eq!(full.tokens.len(), 101 - prompt_len);
        assert_eq!(full.finish_reason, FinishReason::ContextFull);
    }

    let mut seen = Vec::new();
    let broken_off = engine
        .generate(greedy(vec![5, 6, 7], 20), |token| {
            seen.push(token);
            if seen.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(broken_off.tokens, free.tokens[..3]);
    assert_eq!(broken_off.finish_reason, FinishReason::Cancelled);
    assert!(!engine.has_work());
}

/// `generate` keeps what happens to other requests for the steps that follow.
#[test]
fn generate_beside_other_requests() {
    let mut engine = engine(EngineOptions { max_seqs: 2, ..options() });
    let wanted = run(&mut engine, greedy(vec![9, 8], 30));
    let other = engine.add_request(greedy(vec![9, 8], 30)).unwrap();
    let mine = run(&mut engine, greedy(vec![1, 2, 3], 10));
    assert_eq!(mine.tokens.len(), 10);
    let mut answers = Answers::default();
    while engine.has_work() {
        answers.take(engine.step().unwrap());
    }
    assert_eq!(answers.0[&other], (wanted.tokens, Some(FinishReason::Length)));
}

#[test]
fn bad_requests_say_what_is_wrong() {
    let mut small = engine(EngineOptions { context: Some(64), ..options() });
    let sampling = Sampling { temperature: -1.0, ..Default::default() };
    let bias = Sampling { logit_bias: vec![(256, 1.0)], ..Default::default() };
    let bad = [
        (greedy(vec![], 1), "the prompt is empty"),
        (greedy(vec![1; 65], 1), "the prompt has 65 tokens, the context 64"),
        (greedy(vec![1, 256], 1), "token id 256 (number 1 of the prompt): the vocabulary has 256"),
        (Request { sampling, ..greedy(vec![1], 1) }, "temperature -1: it has to be 0 or more"),
        (Request { sampling: bias, ..greedy(vec![1], 1) }, "logit bias of token 256: the vocab"),
    ];
    for (request, start) in bad {
        let message = small.add_request(request).unwrap_err().to_string();
        assert!(message.starts_with(start), "{message}");
        assert!(message.lines().count() <= 2);
    }
    assert!(!small.has_work());
    assert!(matches!(small.logits(&[]), Err(EngineError::EmptyPrompt)));
    assert!(matches!(small.logits(&[u32::MAX]), Err(EngineError::UnknownToken { .. })));

    let too_long = Engine::new(MODEL.clone(), EngineOptions { context: Some(513), ..options() });
    let message = too_long.err().unwrap().to_string();
    assert_eq!(message, "a context of 513 positions: the model allows at most 512");
}

#[test]
fn what_has_ended_cannot_be_cancelled() {
    let mut engine = engine(options());
    let first = engine.add_request(greedy(vec![1, 2], 3)).unwrap();
    engine.cancel(first);
    engine.cancel(first);
    let cancelled = Event { request: first, kind: EventKind::Finished(FinishReason::Cancelled) };
    assert_eq!(engine.step().unwrap(), [cancelled]);
    engine.cancel(first);
    assert!(!engine.has_work());
    assert_eq!(engine.step().unwrap(), []);
    assert_eq!(run(&mut engine, greedy(vec![1, 2], 3)).tokens.len(), 3);
}

/// Sizes of 0 are what one request needs; too much is an error before anything is allocated.
#[test]
fn sizes_at_their_ends() {
    let none =
        EngineOptions { max_seqs: 0, max_tokens: Some(0), cache_positions: Some(0), ..options() };
    let answer = run(&mut engine(none), greedy(vec![1, 2, 3], 5));
    assert_eq!(answer, run(&mut engine(options()), greedy(vec![1, 2, 3], 5)));
    let no_room = EngineOptions { cache_positions: Some(u32::MAX as usize), ..options() };
    let error = Engine::new(MODEL.clone(), no_room).err().unwrap();
    // No shorter context would help: the cache's size was given.
    assert!(
        matches!(&error, EngineError::Memory(error) if matches!(error.fits, Fits::Cache(_))),
        "{error}"
    );
    for huge in [1 << 40, usize::MAX / PAGE_SIZE, usize::MAX] {
        for options in [
            EngineOptions { max_seqs: huge, ..options() },
            EngineOptions { cache_positions: Some(huge), ..options() },
        ] {
            let asked = format!("{options:?}");
            let error = Engine::new(MODEL.clone(), options).err().expect(&asked);
            assert!(matches!(error, EngineError::TooMany { .. }), "{asked}: {error}");
        }
    }
}

/// That is the default too, as there is memory for it.
#[test]
fn a_context_of_0_is_the_models() {
    let long = changed_model(|config| config["max_position_embeddings"] = 9000.into(), |_| ());
    for (context, positions) in [(None, 9000), (Some(0), 9000), (Some(100), 100)] {
        let engine = Engine::new(long.clone(), EngineOptions { context, ..options() }).unwrap();
        assert_eq!(engine.context(), positions, "{context:?}");
    }
}

/// f16 on the emulated GPU, but bf16 for a weight beyond f16, said in one line; f16 by name is an
/// error then.
#[test]
fn the_precision_is_one_that_holds_the_weights() {
    let auto = |device| EngineOptions { precision: PrecisionChoice::Auto, device, ..options() };
    let usual = Engine::new(MODEL.clone(), auto(Device::Emulated)).unwrap();
    assert_eq!((usual.precision(), usual.notes()), (Precision::F16, &[][..]));
    let usual = Engine::new(MODEL.clone(), auto(Device::Cpu)).unwrap();
    assert_eq!((usual.precision(), usual.notes()), (Precision::F32, &[][..]));

    let wide = changed_model(
        |_| (),
        |tensors| {
            tensors.get_mut("model.layers.1.mlp.down_proj.weight").unwrap()[9] = 1e5;
        },
    );
    let engine = Engine::new(wide.clone(), auto(Device::Emulated)).unwrap();
    assert_eq!(engine.precision(), Precision::BF16);
    let [note] = engine.notes() else { panic!("{:?}", engine.notes()) };
    assert!(note.starts_with("computes in bf16 in place of f16: "), "{note}");
    assert!(note.contains("down_proj.weight` holds 100000") && !note.contains('\n'), "{note}");
    let exact = EngineOptions { precision: Precision::F16.into(), ..auto(Device::Emulated) };
    let error = Engine::new(wide, exact).err().unwrap();
    assert!(matches!(error, EngineError::Exec(ExecError::Weights(_))), "{error}");

    let widest = changed_model(
        |_| (),
        |tensors| {
            tensors.get_mut("model.layers.1.mlp.down_proj.weight").unwrap()[9] = f32::MAX;
        },
    );
    for (device, num_notes) in [(Device::Emulated, 2), (Device::Cpu, 0)] {
        let engine = Engine::new(widest.clone(), auto(device)).unwrap();
        assert_eq!((engine.precision(), engine.notes().len()), (Precision::F32, num_notes));
    }
}

/// The tiny model in f32, with changes of its config.json and its weights.
fn changed_model(
    change_config: impl FnOnce(&mut serde_json::Value),
    change_tensors: impl FnOnce(&mut BTreeMap<String, Vec<f32>>),
) -> Arc<Model> {
    let golden = support::data_dir().join("goldens/llama-gqa");
    let dir = tempfile::tempdir().unwrap();
    let config = std::fs::read(golden.join("config.json")).unwrap();
    let mut config = serde_json::from_slice(&config).unwrap();
    change_config(&mut config);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();

    let bytes = std::fs::read(golden.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let widen = |half: &[u8]| half::f16::from_le_bytes([half[0], half[1]]).to_f32();
    let mut tensors: BTreeMap<String, Vec<f32>> = file
        .iter()
        .map(|(name, tensor)| (name.into(), tensor.data().chunks_exact(2).map(widen).collect()))
        .collect();
    change_tensors(&mut tensors);
    let bytes_of = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let views: Vec<(&str, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, values)| {
            (name.as_str(), file.tensor(name).unwrap().shape().to_vec(), bytes_of(values))
        })
        .collect();
    let views = views.iter().map(|(name, shape, data)| {
        (*name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap())
    });
    safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    Arc::new(Model::open(dir.path()).unwrap())
}

#[test]
fn a_step_is_no_larger_than_all_contexts_together() {
    let large = EngineOptions { context: Some(8), max_tokens: Some(usize::MAX), ..options() };
    let mut engine = engine(large);
    assert_eq!(run(&mut engine, greedy(vec![1, 2, 3], 2)).tokens.len(), 2);
}

/// A norm of NaN: every logit is one too.
#[test]
fn broken_weights_fail_each_request_by_itself() {
    let golden = support::data_dir().join("goldens/llama-gqa");
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json"] {
        std::fs::copy(golden.join(file), dir.path().join(file)).unwrap();
    }
    let mut bytes = std::fs::read(golden.join("model.safetensors")).unwrap();
    let (header_len, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let (start, end) = metadata.info("model.norm.weight").unwrap().data_offsets;
    for half in bytes[8 + header_len..][start..end].chunks_exact_mut(2) {
        half.copy_from_slice(&0x7e00u16.to_le_bytes());
    }
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();

    let model = Arc::new(Model::open(dir.path()).unwrap());
    let mut engine = Engine::new(model, EngineOptions { max_seqs: 2, ..options() }).unwrap();
    let sampling = Sampling { temperature: 1.0, ..Default::default() };
    let drawn = Request { sampling, ..greedy(vec![1, 2], 5) };
    let requests = [greedy(vec![1, 2], 5), drawn];
    let ids = requests.clone().map(|request| engine.add_request(request).unwrap());
    let events = engine.step().unwrap();
    for request in ids {
        let mut failures = events.iter().filter(|event| event.request == request);
        let failed = EventKind::Failed(SamplingError::NotFinite { token: 0 });
        assert_eq!(failures.next_back(), Some(&Event { request, kind: failed }));
    }
    assert!(!engine.has_work());
    for request in requests {
        let failure = engine.generate(request, |_| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(failure, EngineError::Sample { .. }), "{failure:?}");
        let start = "the model's logit of token 0 is NaN";
        assert!(failure.to_string().starts_with(start), "{failure}");
    }
}

/// A request whose logit bias rules out every token fails; the one that `generate` runs beside it
/// does not.
#[test]
fn generate_goes_on_when_another_request_fails() {
    let mut engine = engine(EngineOptions { max_seqs: 2, ..options() });
    let wanted = run(&mut engine, greedy(vec![1, 2, 3], 10));
    let sampling = Sampling {
        logit_bias: (0..VOCAB_SIZE).map(|token| (token, f32::NEG_INFINITY)).collect(),
        ..Default::default()
    };
    let doomed = Request { sampling, ..greedy(vec![9, 8], 30) };
    let other = engine.add_request(doomed).unwrap();
    assert_eq!(run(&mut engine, greedy(vec![1, 2, 3], 10)).tokens, wanted.tokens);
    assert!(engine.has_work());
    let kinds: Vec<EventKind> = engine
        .step()
        .unwrap()
        .into_iter()
        .map(|event| {
            assert_eq!(event.request, other);
            event.kind
        })
        .collect();
    let started = EventKind::Started { cached_tokens: 0 };
    assert_eq!(kinds, [started, EventKind::Failed(SamplingError::NoCandidate)]);
    assert!(!engine.has_work());
}

/// Number of tokens in whole pages, of `len` computed ones.
fn in_pages(len: usize) -> usize {
    len / PAGE_SIZE * PAGE_SIZE
}

/// The turns of a chat: each prompt is the one before with its answer and something new.
#[test]
fn a_turn_computes_only_what_is_new() {
    let mut kept = engine(options());
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut conversation = prompt(&mut rng, 100);
    let mut in_cache = 0;
    for turn in 0..3 {
        let request = greedy(conversation.clone(), 20);
        let wanted = run(&mut engine(options()), request.clone());
        assert_eq!(wanted.cached_tokens, 0);
        let got = run(&mut kept, request.clone());
        assert_eq!(got.tokens, wanted.tokens, "turn {turn}");
        assert_eq!(got.cached_tokens, in_cache, "turn {turn}");
        // The same again, of which the last token is computed in any case: its logits are wanted.
        let again = run(&mut kept, request);
        let cached_tokens = in_pages(conversation.len() - 1);
        assert_eq!((again.tokens, again.cached_tokens), (wanted.tokens, cached_tokens));
        conversation.extend(&got.tokens);
        // The last token of the answer was never computed.
        in_cache = in_pages(conversation.len() - 1);
        conversation.extend(prompt(&mut rng, 7));
    }
}

/// What a cancelled request computed is reused too, up to where the next prompt differs.
#[test]
fn what_a_cancelled_request_computed_is_reused() {
    let mut engine = engine(EngineOptions { max_tokens: Some(32), ..options() });
    let tokens = prompt(&mut ChaCha8Rng::seed_from_u64(4), 200);
    let id = engine.add_request(greedy(tokens.clone(), 5)).unwrap();
    let progress = |engine: &Engine| engine.prompt_progress(id).map(|p| (p.done, p.total));
    assert_eq!(progress(&engine), Some((0, 200)));
    engine.step().unwrap();
    assert_eq!(progress(&engine), Some((32, 200)));
    (0..4).for_each(|_| drop(engine.step().unwrap()));
    assert_eq!(progress(&engine), Some((160, 200)));
    engine.cancel(id);
    assert_eq!(progress(&engine), None);
    engine.step().unwrap();
    let mut other = tokens.clone();
    other[70] ^= 1;
    assert_eq!(run(&mut engine, greedy(other, 5)).cached_tokens, PAGE_SIZE);
    assert_eq!(run(&mut engine, greedy(tokens.clone(), 5)).cached_tokens, 2 * PAGE_SIZE);
    assert_eq!(run(&mut engine, greedy(tokens, 5)).cached_tokens, 3 * PAGE_SIZE);
}

#[test]
fn dropped_prefixes_are_computed_again() {
    let mut engine = engine(EngineOptions { context: Some(128), max_seqs: 1, ..options() });
    let request = greedy(prompt(&mut ChaCha8Rng::seed_from_u64(6), 100), 3);
    let first = run(&mut engine, request.clone());
    assert_eq!(run(&mut engine, request.clone()).cached_tokens, PAGE_SIZE);
    engine.drop_retained();
    assert_eq!(run(&mut engine, request), first);
    assert_eq!(first.cached_tokens, 0);
}

/// A request finds what one that still runs has computed, unless its salt is another.
#[test]
fn requests_with_the_same_salt_share_a_prefix_while_they_run() {
    let mut engine = engine(EngineOptions { context: Some(256), max_seqs: 4, ..options() });
    let tokens = prompt(&mut ChaCha8Rng::seed_from_u64(9), 150);
    let salted = |salt: Option<&str>| Request {
        cache_salt: salt.map(str::to_owned),
        ..greedy(tokens.clone(), 20)
    };
    engine.add_request(salted(None)).unwrap();
    engine.add_request(salted(Some("a"))).unwrap();
    engine.step().unwrap();
    let pages = engine.stats().num_used_pages;
    assert_eq!(pages, 2 * 3, "they have nothing in common");
    let mut cached = Vec::new();
    for (salt, new_pages) in [(None, 1), (Some("a"), 1)] {
        let id = engine.add_request(salted(salt)).unwrap();
        let pages = engine.stats().num_used_pages;
        let started = engine.step().unwrap().into_iter().find(|event| event.request == id);
        assert_eq!(engine.stats().num_used_pages - pages, new_pages, "{salt:?}");
        cached.push(started.unwrap().kind);
    }
    let started = || EventKind::Started { cached_tokens: 2 * PAGE_SIZE };
    assert_eq!(cached, [started(), started()]);
    let mut answers = Answers::default();
    while engine.has_work() {
        answers.take(engine.step().unwrap());
    }
    assert_eq!(run(&mut engine, salted(Some("b"))).cached_tokens, 0);
    let wanted = run(&mut engine, salted(None));
    assert_eq!(wanted.cached_tokens, 2 * PAGE_SIZE);
    for (tokens, _) in answers.0.values() {
        assert!(wanted.tokens.ends_with(tokens), "{tokens:?}");
    }
}

/// What is kept never keeps a request from running, and `logits` takes its room too.
#[test]
fn retained_prefixes_make_room() {
    let context = 3 * PAGE_SIZE;
    let mut engine = engine(EngineOptions { context: Some(context), max_seqs: 1, ..options() });
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    // Each takes two pages, and leaves the first one full.
    let [first, second, third] = [(); 3].map(|()| greedy(prompt(&mut rng, PAGE_SIZE + 1), 1));
    run(&mut engine, first.clone());
    run(&mut engine, second.clone());
    assert_eq!(run(&mut engine, first.clone()).cached_tokens, PAGE_SIZE);
    // The second's page is the one that was used longest ago.
    run(&mut engine, third);
    assert_eq!(run(&mut engine, first.clone()).cached_tokens, PAGE_SIZE);
    assert_eq!(run(&mut engine, second).cached_tokens, 0);
    let all = prompt(&mut rng, context);
    assert_eq!(engine.logits(&all).unwrap().len(), context * VOCAB_SIZE as usize);
    assert_eq!(run(&mut engine, first).cached_tokens, 0);
}

/// Batch invariant, a chat's second turn draws the same tokens as without the first: only positions
/// of its prompt are reused, not those that decoding computed.
#[test]
fn batch_invariance_reuses_prompts_alone() {
    let options = || EngineOptions { batch_invariant: true, ..options() };
    let mut kept = engine(options());
    let mut conversation = prompt(&mut ChaCha8Rng::seed_from_u64(6), 120);
    let sampling = Sampling { temperature: 1.5, seed: 1, ..Default::default() };
    let request = |prompt| Request { sampling: sampling.clone(), ..greedy(prompt, 30) };
    let answer = run(&mut kept, request(conversation.clone()));
    conversation.extend(&answer.tokens);
    let second = run(&mut kept, request(conversation.clone()));
    assert_eq!(second.cached_tokens, PAGE_SIZE);
    assert_eq!(second.tokens, run(&mut engine(options()), request(conversation)).tokens);
}

/// The operations of a prompt come in the order of the layers, and the last logits are those of
/// [`Engine::logits`].
#[test]
fn a_prompt_can_be_observed_operation_by_operation() {
    let tokens = prompt(&mut ChaCha8Rng::seed_from_u64(7), 40);
    let mut engine =
        engine(EngineOptions { context: Some(40), batch_invariant: true, ..options() });
    let expected = engine.logits(&tokens).unwrap();
    let (mut layers, mut logits) = (Vec::new(), Vec::new());
    let mut observe = |engine: &mut Engine, tokens: &[u32]| {
        engine.observe_prompt(tokens, &mut |plan, index, activations| {
            let op = &plan.ops[index];
            layers.push(plan.op_layer(op));
            if let Op::Linear(linear) = op
                && linear.out == plan.output
            {
                logits = activations.rows(linear.out)?;
            }
            Ok(())
        })
    };
    observe(&mut engine, &tokens).unwrap();
    // Its pages are free again: the cache holds one prompt of this length.
    observe(&mut engine, &tokens).unwrap();
    assert!(matches!(observe(&mut engine, &[]), Err(EngineError::EmptyPrompt)));
    assert_eq!(logits, expected[expected.len() - VOCAB_SIZE as usize..]);
    let in_layers: Vec<usize> = layers.iter().flatten().copied().collect();
    let once = &in_layers[..in_layers.len() / 2];
    assert!(once.is_sorted() && once.last() == Some(&(MODEL.config().num_layers() - 1)));
    assert_eq!([layers[0], layers[layers.len() - 1]], [None, None]);
}

#[test]
fn a_step_of_any_size_can_be_timed() {
    let options =
        EngineOptions { context: Some(80), max_seqs: 3, max_tokens: Some(64), ..options() };
    let mut engine = engine(options);
    for size in [
        StepSize { num_seqs: 1, cached_tokens: 0, new_tokens: 64 },
        StepSize { num_seqs: 3, cached_tokens: 79, new_tokens: 1 },
        StepSize { num_seqs: 2, cached_tokens: 10, new_tokens: 20 },
    ] {
        let step = engine.time_step(size, 2).unwrap();
        let StepSize { num_seqs, cached_tokens, new_tokens } = size;
        assert_eq!(step.shape.num_tokens, num_seqs * new_tokens);
        let kv_len = cached_tokens + new_tokens;
        assert_eq!(step.shape.seqs, vec![SeqShape { q_len: new_tokens, kv_len }; num_seqs]);
        assert_eq!(step.shape.num_logit_rows, num_seqs);
        assert_eq!(step.times.ops_us.len(), step.plan.ops.len());
        assert!(step.times.ops_us.iter().all(|times| times.len() == 2));
        assert_eq!(step.plan.decodes(), new_tokens == 1);
    }
    let size = StepSize { num_seqs: 3, cached_tokens: 0, new_tokens: 22 };
    let error = engine.time_step(size, 1).unwrap_err();
    assert!(matches!(error, EngineError::StepTooLarge { asked: 66, max: 64 }), "{error}");
    let size = StepSize { num_seqs: 1, cached_tokens: 80, new_tokens: 1 };
    let error = engine.time_step(size, 1).unwrap_err();
    assert!(matches!(error, EngineError::PromptTooLong { prompt_len: 81, context: 80 }), "{error}");
}
