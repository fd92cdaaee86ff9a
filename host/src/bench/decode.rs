//! Decoding with several sequences at once, timed from outside: what a step takes, its token on the
//! host included.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::engine::{Engine, EngineError, EventKind, Request};

/// What is decoded.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Sequences that decode together.
    pub num_seqs: usize,
    /// Tokens of each prompt; the prompts differ.
    pub prompt_len: usize,
    /// Steps that are timed, each with a token of every sequence.
    pub num_steps: usize,
}

impl Workload {
    /// Positions that a sequence comes to at most: the first ones decode while the prompts of
    /// others are read, of which a step takes `max_tokens` tokens.
    pub fn context(&self, max_tokens: usize) -> usize {
        let steps_of_prompt = self.prompt_len.div_ceil(max_tokens.max(1)).saturating_add(1);
        let prompt_steps = self.num_seqs.saturating_mul(steps_of_prompt);
        self.prompt_len
            .saturating_add(prompt_steps)
            .saturating_add(self.num_steps)
            .saturating_add(1)
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `decode_model`.
    pub op: &'static str,
    /// `halfwarp`.
    #[serde(rename = "impl")]
    pub implementation: &'static str,
    /// Sequences.
    pub batch: usize,
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Steps that were timed.
    pub steps: usize,
    /// Microseconds of a step: the median.
    pub us: f64,
    /// The least.
    pub min_us: f64,
    /// Tokens a second of all sequences, over all steps.
    pub tok_per_s: f64,
    /// The device.
    pub gpu: String,
}

/// Runs `workload`. The engine must have nothing else to do, and room for it.
///
/// # Errors
/// Those of [`Engine::add_request`] and [`Engine::step`], [`EngineError::Sample`] if a sequence failed.
pub fn measure(engine: &mut Engine, workload: &Workload) -> Result<Row, EngineError> {
    let &Workload { num_seqs, prompt_len, num_steps } = workload;
    let vocab_size = engine.model().config().vocab_size;
    let prompt =
        |seq: usize| (0..prompt_len).map(move |at| ((31 * at + 17 * seq) % vocab_size) as u32);
    let requests = (0..num_seqs)
        .map(|seq| {
            engine.add_request(Request { prompt: prompt(seq).collect(), ..Request::default() })
        })
        .collect::<Result<Vec<_>, _>>()?;

    let mut times = Vec::new();
    // The first of them may have had the last prompt in it.
    while times.len() <= num_steps && engine.has_work() {
        let start = Instant::now();
        let events = engine.step()?;
        let time = start.elapsed();
        for event in &events {
            if let EventKind::Failed(source) = event.kind {
                return Err(EngineError::Sample { request: event.request, source });
            }
        }
        let tokens = events.iter().filter(|event| matches!(event.kind, EventKind::Token(_)));
        if tokens.count() == num_seqs {
            times.push(time);
        }
    }
    for request in requests {
        engine.cancel(request);
    }
    let times = times.get_mut(1..).unwrap_or_default();
    times.sort_unstable();
    let us = |time: Option<&Duration>| time.map_or(0.0, |time| 1e6 * time.as_secs_f64());
    let seconds: f64 = times.iter().map(Duration::as_secs_f64).sum();
    let num_tokens = (num_seqs * times.len()) as f64;
    Ok(Row {
        op: "decode_model",
        implementation: "halfwarp",
        batch: num_seqs,
        prompt: prompt_len,
        steps: times.len(),
        us: us(times.get(times.len() / 2)),
        min_us: us(times.first()),
        tok_per_s: if seconds > 0.0 { num_tokens / seconds } else { 0.0 },
        gpu: engine.describe_device(),
    })
}
