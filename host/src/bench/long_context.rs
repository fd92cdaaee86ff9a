//! "GPU-015 ultra-mega-long context": a sequence that fills the context of an engine.
//!
//! The cache is filled by prompts of random tokens, in steps of at most the engine's tokens, and
//! the tokens after half of the context and at its end are timed one by one. Times are those of
//! the engine's steps on the host's clock.

use std::time::Instant;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::end_to_end::EndToEndError;
use crate::engine::{Engine, EngineError, EventKind, Request};
use crate::plan::{MemoryBudget, MemoryUse};

/// Tokens that are generated, and not timed, before those that are.
const WARM_UP: usize = 4;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Positions of the context.
    pub context: usize,
    /// Positions that prompts filled.
    pub filled: usize,
    /// Seconds that this took.
    pub fill_seconds: f64,
    /// Tokens after half of the context, and at its end.
    pub decode: Vec<Decode>,
    /// Bytes by part, as counted before anything was allocated.
    pub memory: Vec<Part>,
    /// Bytes that were counted, all parts together.
    pub counted_bytes: usize,
    /// Bytes that the executor, or the driver, says it took.
    pub used_bytes: usize,
}

/// Tokens at a depth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decode {
    /// Positions in the cache before the first token that is timed.
    pub depth: usize,
    /// Tokens that are timed.
    pub tokens: usize,
    /// Microseconds of a token: the median.
    pub us: f64,
}

/// A part of the memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// What it is for.
    pub part: &'static str,
    /// Size of the part.
    pub bytes: usize,
}

impl Report {
    /// Positions that were filled a second.
    pub fn positions_per_second(&self) -> f64 {
        self.filled as f64 / self.fill_seconds
    }
}

impl Decode {
    /// Tokens a second.
    pub fn tokens_per_second(&self) -> f64 {
        1e6 / self.us
    }
}

/// The least context for `n_gen` tokens that are timed.
pub fn least_context(n_gen: usize) -> usize {
    // The last token is in no step; a prompt has a token.
    2 * (n_gen + WARM_UP)
}

/// Fills `engine`, of which nothing else is asked, and times `n_gen` tokens after half of its
/// context and as many at its end. The context is at least [`least_context`].
///
/// # Errors
/// [`EndToEndError`].
pub fn measure(engine: &mut Engine, n_gen: usize) -> Result<Report, EndToEndError> {
    engine.drop_retained();
    let (context, vocab_size) = (engine.context(), engine.model().config().vocab_size);
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let tokens: Vec<u32> =
        (0..context).map(|_| random.random_range(0..vocab_size) as u32).collect();
    let max_new_tokens = WARM_UP + n_gen;
    let (mut filled, mut fill_seconds, mut decode) = (0, 0.0, Vec::new());
    for end in [context / 2, context] {
        let prompt = tokens[..end + 1 - max_new_tokens].to_vec();
        let depth = prompt.len() + WARM_UP - 1;
        let run = run(engine, prompt, max_new_tokens)?;
        filled += run.filled;
        fill_seconds += run.fill_seconds;
        let mut times = run.tokens_us[WARM_UP - 1..].to_vec();
        times.sort_by(f64::total_cmp);
        decode.push(Decode { depth, tokens: times.len(), us: times[times.len() / 2] });
    }
    let budget: MemoryBudget = *engine.memory_budget();
    let used: MemoryUse = engine.memory_use()?;
    Ok(Report {
        context,
        filled,
        fill_seconds,
        decode,
        memory: budget.parts().map(|(part, bytes)| Part { part, bytes }).to_vec(),
        counted_bytes: budget.total_bytes(),
        used_bytes: used.total_bytes(),
    })
}

/// The steps of a request.
struct Run {
    /// Positions of the prompt that were not in the cache.
    filled: usize,
    fill_seconds: f64,
    /// Times of the tokens after the first, which comes with the prompt's last step.
    tokens_us: Vec<f64>,
}

fn run(engine: &mut Engine, prompt: Vec<u32>, max_new_tokens: usize) -> Result<Run, EndToEndError> {
    let mut run = Run { filled: prompt.len(), fill_seconds: 0.0, tokens_us: Vec::new() };
    let max = Some(max_new_tokens);
    engine.add_request(Request { prompt, max_new_tokens: max, ..Request::default() })?;
    let mut generated = 0;
    while engine.has_work() {
        let start = Instant::now();
        let events = engine.step()?;
        let seconds = start.elapsed().as_secs_f64();
        match generated {
            0 => run.fill_seconds += seconds,
            _ => run.tokens_us.push(1e6 * seconds),
        }
        for event in events {
            match event.kind {
                EventKind::Started { cached_tokens } => run.filled -= cached_tokens,
                EventKind::Token(_) => generated += 1,
                EventKind::Failed(source) => {
                    return Err(EngineError::Sample { request: event.request, source }.into());
                }
                // Of what is not asked for here there is nothing.
                _ => {}
            }
        }
    }
    run.tokens_us.truncate(max_new_tokens - 1);
    if generated == max_new_tokens {
        return Ok(run);
    }
    Err(EndToEndError::Work {
        test: format!("tg{max_new_tokens}"),
        what: "generated tokens",
        got: generated,
        expected: max_new_tokens,
    })
}
