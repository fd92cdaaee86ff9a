//! Models as a whole: a prompt, decoding of one sequence and of several.
//!
//! `cargo bench --bench end_to_end [-- FILTER]`. A tiny model on the CPU, whose tokens are verified
//! first; the fetched model on the first GPU, else on the CPU. A time is that of
//! `halfwarp::bench::end_to_end`: of the engine's steps, to the last token on the host. Throughput
//! is tokens of all sequences.

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{Criterion, Throughput};
use halfwarp::bench::end_to_end::{self, Test};
use halfwarp::exec::Device;
use halfwarp::{Engine, EngineOptions, Model, Request};
use std::{ops::ControlFlow, path::Path, sync::Arc, time::Duration};

/// Names, and what runs: as `halfwarp bench -p 64 -n 16` and `-n 16 --sequences 8`.
const TESTS: [(&str, Test); 3] = [
    ("prompt_64", Test { n_prompt: 64, n_gen: 0, n_depth: 0, sequences: 1 }),
    ("decode_1", Test { n_prompt: 0, n_gen: 16, n_depth: 64, sequences: 1 }),
    ("decode_8", Test { n_prompt: 0, n_gen: 16, n_depth: 64, sequences: 8 }),
];
const CONTEXT: usize = 128;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let golden = support::data_dir().join("goldens/llama-gqa");
    verify(&golden);
    time(&mut criterion, "llama_gqa", &golden, Device::Cpu);
    match support::smollm2() {
        Some(path) => time(&mut criterion, "smollm2", &path, Device::Auto),
        None => println!("smollm2: skipped, SmolLM2 is not in the model cache: halfwarp fetch"),
    }
    criterion.final_summary();
}

fn engine(model: &Arc<Model>, device: Device, max_seqs: usize) -> Engine {
    let options =
        EngineOptions { device, max_seqs, context: Some(CONTEXT), ..EngineOptions::default() };
    Engine::new(Arc::clone(model), options).unwrap_or_else(|error| panic!("{error}"))
}

/// Compares greedy tokens with the golden's.
fn verify(golden: &Path) {
    let expected = |name| support::expected(golden, name, u32::from_le_bytes);
    let (prompt, tokens) = (expected("greedy_prompt"), expected("greedy_tokens"));
    let request = Request { prompt, max_new_tokens: Some(tokens.len()), ..Request::default() };
    let model = Arc::new(Model::open(golden).expect("a golden"));
    let generation =
        engine(&model, Device::Cpu, 1).generate(request, |_| ControlFlow::Continue(()));
    assert_eq!(generation.expect("a prompt of its vocabulary").tokens, tokens);
}

/// Times every test; an engine is loaded where no filter leaves its test out.
fn time(criterion: &mut Criterion, name: &str, path: &Path, device: Device) {
    let model = Arc::new(Model::open(path).unwrap_or_else(|error| panic!("{error}")));
    let mut group = criterion.benchmark_group(name);
    for (name, test) in TESTS {
        let mut loaded = None;
        let num_tokens = test.sequences * (test.n_prompt + test.n_gen);
        group.throughput(Throughput::Elements(num_tokens as u64));
        group.bench_function(name, |bencher| {
            let engine = loaded.get_or_insert_with(|| engine(&model, device, test.sequences));
            bencher.iter_custom(|count| {
                let mut run = || end_to_end::run(engine, &test).expect("room for the test");
                (0..count).map(|_| run()).sum()
            });
        });
    }
}
