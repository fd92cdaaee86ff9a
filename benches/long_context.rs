//! "GPU-015 ultra-mega-long context": tokens at the end of 65,536 positions, or of the model's
//! context.
//!
//! `cargo bench --bench long_context`, on the first GPU, of the model that
//! `$HALFWARP_LONG_CONTEXT_MODEL` names: such as the file of
//! `halfwarp random-model llama-2-7b DIR --type q4_k_m`. Each sample fills the cache anew, as
//! `halfwarp bench long-context` does; its time is the median of 32 tokens. Throughput is tokens.

use criterion::{Criterion, Throughput};
use halfwarp::bench::long_context;
use halfwarp::exec::cuda;
use halfwarp::{Engine, EngineOptions, Model};
use std::{env, sync::Arc, time::Duration};

const MODEL: &str = "HALFWARP_LONG_CONTEXT_MODEL";
const CONTEXT: usize = 65_536;
const TOKENS: usize = 32;

fn main() {
    if let Err(error) = cuda::free_memory(0) {
        return println!("long_context: skipped, {error}");
    }
    let Some(path) = env::var_os(MODEL) else {
        return println!("long_context: skipped, ${MODEL} names no model");
    };
    let model = Arc::new(Model::open(path).unwrap_or_else(|error| panic!("{error}")));
    let context = CONTEXT.min(model.config().max_position_embeddings);
    let options = EngineOptions { max_seqs: 1, context: Some(context), ..EngineOptions::default() };
    let mut engine = Engine::new(model, options).unwrap_or_else(|error| panic!("{error}"));
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    let mut group = criterion.benchmark_group("GPU-015 ultra-mega-long context");
    group.throughput(Throughput::Elements(1)).bench_function("decode", |bencher| {
        bencher.iter_custom(|count| {
            let report = long_context::measure(&mut engine, TOKENS).expect("room for the context");
            let at_end = report.decode.last().expect("two depths");
            Duration::from_secs_f64(at_end.us * count as f64 / 1e6)
        });
    });
    group.finish();
    criterion.final_summary();
}
