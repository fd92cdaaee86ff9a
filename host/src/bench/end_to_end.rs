//! Whole models, timed from outside in the tests of llama-bench: prompts, and generated tokens.
//!
//! A time is that of the engine's steps on the host's clock, from the requests to their last token.
//! Before each repetition the cache is emptied, and filled with `n_depth` tokens of each sequence,
//! which the requests then begin with. Tokens are random; those of a sequence are always the same.

use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::engine::{Engine, EngineError, Event, EventKind, Request};

/// What every sequence does, all of them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Tokens of the prompt that are timed; 0 to time generated tokens alone.
    pub n_prompt: usize,
    /// Tokens that are generated; 0 to time the prompt alone, which gives one token, or the
    /// embedding that an encoder makes.
    pub n_gen: usize,
    /// Tokens that are in the cache before, in whole pages.
    pub n_depth: usize,
    /// Sequences.
    pub sequences: usize,
}

impl Test {
    /// llama-bench's name: `pp512`, `tg128`, `pp512+tg128`, and the depth where it is not 0.
    pub fn name(&self) -> String {
        let &Test { n_prompt, n_gen, n_depth, .. } = self;
        let name = match (n_prompt, n_gen) {
            (_, 0) => format!("pp{n_prompt}"),
            (0, _) => format!("tg{n_gen}"),
            _ => format!("pp{n_prompt}+tg{n_gen}"),
        };
        if n_depth > 0 { format!("{name} @ d{n_depth}") } else { name }
    }

    /// Positions of the cache that a sequence comes to: its last token is in no step.
    pub fn context(&self) -> usize {
        self.prompt_len().saturating_add(self.max_new_tokens() - 1)
    }

    /// Tokens that count, of all sequences.
    fn num_tokens(&self) -> usize {
        self.sequences * (self.n_prompt + self.n_gen)
    }

    /// Tokens of a request, at least one of them not in the cache.
    fn prompt_len(&self) -> usize {
        self.n_depth.saturating_add(self.n_prompt.max(1))
    }

    fn max_new_tokens(&self) -> usize {
        self.n_gen.max(1)
    }

    /// The prompt of each sequence. No two begin alike, as long as the vocabulary has a token for
    /// each.
    fn prompts(&self, vocab_size: usize) -> Vec<Vec<u32>> {
        let prompt = |seq: usize| {
            let mut random = ChaCha8Rng::seed_from_u64(0);
            random.set_stream(seq as u64);
            let rest = (1..self.prompt_len()).map(|_| random.random_range(0..vocab_size));
            std::iter::once(seq % vocab_size).chain(rest).map(|token| token as u32).collect()
        };
        (0..self.sequences).map(prompt).collect()
    }
}

/// Why there is no time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndToEndError {
    /// The engine failed, or takes no such requests.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine has done other work than the test's: its time says nothing.
    #[error("{test}: {got} {what}, expected {expected}")]
    Work {
        /// The test.
        test: String,
        /// What was counted.
        what: &'static str,
        /// How many there were, in all sequences.
        got: usize,
        /// How many there should be.
        expected: usize,
    },
}

/// Runs `test` once, cold. The engine has nothing else to do, and room for the test's sequences.
///
/// # Errors
/// [`EndToEndError`].
pub fn run(engine: &mut Engine, test: &Test) -> Result<Duration, EndToEndError> {
    engine.drop_retained();
    let prompts = test.prompts(engine.model().config().vocab_size);
    if test.n_depth > 0 {
        let fill = prompts.iter().map(|prompt| prompt[..test.n_depth].to_vec()).collect();
        complete(engine, fill, 1)?;
    }
    let start = Instant::now();
    let (cached, generated) = complete(engine, prompts, test.max_new_tokens())?;
    let time = start.elapsed();
    let check = |what, got, each| match test.sequences * each {
        expected if got == expected => Ok(()),
        expected => Err(EndToEndError::Work { test: test.name(), what, got, expected }),
    };
    check("tokens from the cache", cached, test.n_depth)?;
    check("generated tokens", generated, test.max_new_tokens())?;
    Ok(time)
}

/// Runs requests to their ends; returns the tokens that were in the cache, and those generated.
fn complete(
    engine: &mut Engine,
    prompts: Vec<Vec<u32>>,
    max_new_tokens: usize,
) -> Result<(usize, usize), EngineError> {
    let model = engine.model();
    // An embedding is what comes of the prompt of an encoder, in the place of a token.
    let pooling = (!model.config().is_causal && max_new_tokens == 1).then(|| model.pooling());
    for prompt in prompts {
        let max_new_tokens = Some(max_new_tokens);
        engine.add_request(Request { prompt, max_new_tokens, pooling, ..Request::default() })?;
    }
    let (mut cached, mut generated) = (0, 0);
    let mut failed = None;
    while engine.has_work() && failed.is_none() {
        engine.step_while(|_, events| {
            for Event { request, kind } in events {
                match kind {
                    EventKind::Started { cached_tokens } => cached += cached_tokens,
                    EventKind::Token(_) | EventKind::Embedding(_) => generated += 1,
                    EventKind::Failed(source) => {
                        failed = Some(EngineError::Sample { request, source });
                    }
                    // Of what is not asked for here there is nothing.
                    _ => {}
                }
            }
        })?;
    }
    failed.map_or(Ok((cached, generated)), Err)
}

/// What is timed, and on what.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model's name.
    pub model: String,
    /// Bytes of the weights on the device.
    pub model_size_bytes: usize,
    /// Weights.
    pub n_params: usize,
    /// Where it runs: [`Engine::describe_device`].
    pub device: String,
    /// The GPU's name, if it runs on one.
    pub gpu: Option<String>,
    /// Type of weights, KV cache and operands; `f16_acc16` with accumulators in f16.
    pub dtype: String,
    /// Whether the engine is batch-invariant.
    pub batch_invariant: bool,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Row {
    /// What was timed.
    pub config: Config,
    /// What it did.
    pub test: Test,
    /// Microseconds of each repetition.
    pub samples_us: Vec<f64>,
}

/// Times `repetitions` of `test`, after one that is not counted.
///
/// # Errors
/// As [`run`].
pub fn measure(
    engine: &mut Engine,
    config: Config,
    test: Test,
    repetitions: usize,
) -> Result<Row, EndToEndError> {
    run(engine, &test)?;
    let sample = |_| Ok(run(engine, &test)?.as_nanos() as f64 / 1e3);
    let samples_us = (0..repetitions).map(sample).collect::<Result<_, EndToEndError>>()?;
    Ok(Row { config, test, samples_us })
}

impl Row {
    /// Mean and standard deviation of the repetitions, in microseconds.
    pub fn us(&self) -> [f64; 2] {
        mean_and_deviation(&self.samples_us)
    }

    /// Mean and standard deviation of the repetitions, in tokens a second of all sequences.
    pub fn tokens_per_second(&self) -> [f64; 2] {
        let num_tokens = self.test.num_tokens() as f64;
        let rates: Vec<f64> = self.samples_us.iter().map(|us| 1e6 * num_tokens / us).collect();
        mean_and_deviation(&rates)
    }

    /// Everything there is to know of it, by key.
    pub fn fields(&self) -> [(&'static str, Value); 20] {
        let ([avg_us, stddev_us], [avg_ts, stddev_ts]) = (self.us(), self.tokens_per_second());
        let Config { model, model_size_bytes, n_params, device, gpu, dtype, batch_invariant } =
            &self.config;
        let Test { n_prompt, n_gen, n_depth, sequences } = self.test;
        [
            ("build_commit", json!(env!("HALFWARP_COMMIT"))),
            ("build_version", json!(env!("CARGO_PKG_VERSION"))),
            ("model", json!(model)),
            ("model_size_bytes", json!(model_size_bytes)),
            ("n_params", json!(n_params)),
            ("device", json!(device)),
            ("gpu", json!(gpu)),
            ("dtype", json!(dtype)),
            ("batch_invariant", json!(batch_invariant)),
            ("test", json!(self.test.name())),
            ("n_prompt", json!(n_prompt)),
            ("n_gen", json!(n_gen)),
            ("n_depth", json!(n_depth)),
            ("sequences", json!(sequences)),
            ("repetitions", json!(self.samples_us.len())),
            ("avg_us", json!(avg_us)),
            ("stddev_us", json!(stddev_us)),
            ("avg_ts", json!(avg_ts)),
            ("stddev_ts", json!(stddev_ts)),
            ("samples_us", json!(self.samples_us)),
        ]
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.fields())
    }
}

/// The deviation is that of a sample; 0 of a single value.
fn mean_and_deviation(values: &[f64]) -> [f64; 2] {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    [mean, (squares / (values.len() as f64 - 1.0).max(1.0)).sqrt()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Test = Test { n_prompt: 0, n_gen: 0, n_depth: 0, sequences: 1 };

    #[test]
    fn names_are_llama_benchs() {
        let name = |n_prompt, n_gen, n_depth| Test { n_prompt, n_gen, n_depth, ..NOTHING }.name();
        assert_eq!(name(512, 0, 0), "pp512");
        assert_eq!(name(0, 128, 0), "tg128");
        assert_eq!(name(512, 128, 0), "pp512+tg128");
        assert_eq!(name(0, 128, 4096), "tg128 @ d4096");
    }

    #[test]
    fn the_last_token_takes_no_position() {
        let context =
            |n_prompt, n_gen, n_depth| Test { n_prompt, n_gen, n_depth, ..NOTHING }.context();
        assert_eq!([context(512, 0, 0), context(512, 0, 100)], [512, 612]);
        assert_eq!([context(0, 128, 0), context(0, 128, 100)], [128, 228]);
        assert_eq!([context(512, 1, 0), context(512, 128, 0)], [512, 639]);
        assert_eq!(context(usize::MAX, usize::MAX, usize::MAX), usize::MAX);
    }

    #[test]
    fn prompts_begin_differently() {
        let prompts = Test { n_prompt: 3, n_depth: 2, sequences: 4, ..NOTHING }.prompts(5);
        let first: Vec<u32> = prompts.iter().map(|prompt| prompt[0]).collect();
        assert_eq!(first, [0, 1, 2, 3]);
        assert!(prompts.iter().all(|prompt| prompt.len() == 5 && prompt.iter().all(|&t| t < 5)));
    }

    #[test]
    fn rates_count_the_tokens_of_all_sequences() {
        let config = Config {
            model: String::new(),
            model_size_bytes: 0,
            n_params: 0,
            device: String::new(),
            gpu: None,
            dtype: String::new(),
            batch_invariant: false,
        };
        let row = |test, samples_us: &[f64]| Row {
            config: config.clone(),
            test,
            samples_us: samples_us.to_vec(),
        };
        let both = Test { n_prompt: 6, n_gen: 2, n_depth: 99, sequences: 5 };
        // 40 tokens in 1, 2 and 4 ms.
        let row_of_3 = row(both, &[1000.0, 2000.0, 4000.0]);
        let [mean, deviation] = row_of_3.tokens_per_second();
        assert!((mean - 70_000.0 / 3.0).abs() < 1e-6, "{mean}");
        assert!((deviation - 15_275.252_316_519_467).abs() < 1e-6, "{deviation}");
        assert_eq!(row(both, &[2000.0]).tokens_per_second(), [20_000.0, 0.0]);
        assert_eq!(row(both, &[1.0, 3.0]).us(), [2.0, 2f64.sqrt()]);
    }
}
