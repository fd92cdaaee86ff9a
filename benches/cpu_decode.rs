//! Decoding on the CPU is bound by reading the weights: how close does it come?
//!
//! Times a decode step of SmolLM2-135M, and a plain read of as many bytes as its weights have in memory, in turn and on
//! the same threads. The ratio of the medians is at most 2.5.

#[path = "../tests/support/mod.rs"]
mod support;

use halfwarp::Model;
use halfwarp::engine::{Engine, EngineError, EngineOptions, Request};
use halfwarp::exec::Device;
use halfwarp::plan::{Bounds, Numerics, PAGE_SIZE};
use rayon::prelude::*;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROMPT_LEN: usize = 128;
const ROUNDS: usize = 64;
const MAX_RATIO: f64 = 2.5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(path) = support::smollm2() else {
        println!("cpu_decode: skipped, SmolLM2 is not in the model cache");
        return Ok(());
    };
    let model = Arc::new(Model::open(path)?);
    let weights = vec![1.0f32; weight_bytes(&model)? / 4];
    let mut engine = decoding_engine(model)?;

    let (mut reads, mut steps) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        reads.push(time(|| black_box(sum(&weights))).0);
        let (step, events) = time(|| engine.step());
        assert_eq!(events?.len(), 1, "one token a step");
        steps.push(step);
    }
    let bytes = weights.len() * 4;
    println!("{}, {PROMPT_LEN} positions and up, f32", engine.describe_device());
    let read = report("read the weights", &mut reads, bytes);
    let step = report("decode a token", &mut steps, bytes);
    let ratio = step.as_secs_f64() / read.as_secs_f64();
    println!("ratio             {ratio:9.2}     (at most {MAX_RATIO})");
    if ratio > MAX_RATIO { Err("decoding is too slow".into()) } else { Ok(()) }
}

/// Bytes of the weights as the executor holds them.
fn weight_bytes(model: &Model) -> Result<usize, Box<dyn std::error::Error>> {
    let bounds = Bounds { max_kv_len: PAGE_SIZE, ..Bounds::one_sequence(1) };
    Ok(model.plan(&Numerics::default(), bounds, 1)?.weight_bytes())
}

/// An engine whose next steps decode one token each.
fn decoding_engine(model: Arc<Model>) -> Result<Engine, EngineError> {
    let options = EngineOptions { device: Device::Cpu, context: Some(512), ..Default::default() };
    let mut engine = Engine::new(model, options)?;
    let prompt = (0..PROMPT_LEN as u32).map(|i| 1000 + 7 * i).collect();
    engine.add_request(Request { prompt, ..Default::default() })?;
    engine.step()?;
    engine.step()?;
    Ok(engine)
}

fn time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let result = work();
    (start.elapsed(), result)
}

/// Reads every element once, as fast as vector loads go.
fn sum(values: &[f32]) -> f32 {
    const LANES: usize = 32;
    let block = |block: &[f32]| {
        let mut sums = [0.0; LANES];
        for chunk in block.as_chunks::<LANES>().0 {
            for lane in 0..LANES {
                sums[lane] += chunk[lane];
            }
        }
        sums.iter().sum::<f32>()
    };
    values.par_chunks(1 << 18).map(block).sum()
}

/// Prints the median and the spread of `times`, and returns the median.
fn report(what: &str, times: &mut [Duration], bytes: usize) -> Duration {
    times.sort_unstable();
    let (low, median, high) =
        (times[times.len() / 10], times[times.len() / 2], times[times.len() * 9 / 10]);
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let gb_per_s = bytes as f64 / median.as_secs_f64() / 1e9;
    println!(
        "{what:17} {:9.2} ms  ({:.2} to {:.2})  {gb_per_s:.1} GB/s",
        ms(median),
        ms(low),
        ms(high)
    );
    median
}
