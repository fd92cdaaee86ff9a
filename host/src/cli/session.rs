//! One request from its prompt to its last token, timed.

use super::{failure::Failure, interrupt, terminal};
use halfwarp::{Engine, EngineError, EventKind, FinishReason, Model, Request, TextStream};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What a request brought.
pub struct Generation {
    /// The generated ids, a stop token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: FinishReason,
    /// How long it took.
    pub timings: Timings,
}

/// Times of a request, under the names of llama.cpp's server.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Timings {
    /// Tokens of the prompt.
    pub prompt_n: usize,
    /// Milliseconds from the request to its first token (TTFT).
    pub prompt_ms: f64,
    /// Tokens of the prompt in a second.
    pub prompt_per_second: f64,
    /// Tokens generated.
    pub predicted_n: usize,
    /// Milliseconds from the first token to the last.
    pub predicted_ms: f64,
    /// Tokens generated in a second after the first.
    pub predicted_per_second: f64,
}

impl Timings {
    fn new(prompt_n: usize, predicted_n: usize, prompt: Duration, predicted: Duration) -> Self {
        let per_second = |count: usize, time: Duration| match time.as_secs_f64() {
            0.0 => 0.0,
            seconds => count as f64 / seconds,
        };
        Timings {
            prompt_n,
            prompt_ms: 1e3 * prompt.as_secs_f64(),
            prompt_per_second: per_second(prompt_n, prompt),
            predicted_n,
            predicted_ms: 1e3 * predicted.as_secs_f64(),
            predicted_per_second: per_second(predicted_n.saturating_sub(1), predicted),
        }
    }

    /// Prints the speeds on stderr, and what they were reached on.
    pub fn print(&self, engine: &Engine) {
        terminal::note(format_args!(
            "{}\nprompt: {} tokens, first token after {:.1} ms ({:.1} tok/s)\n\
             decode: {} tokens, {:.1} tok/s",
            engine.describe_device(),
            self.prompt_n,
            self.prompt_ms,
            self.prompt_per_second,
            self.predicted_n,
            self.predicted_per_second
        ));
    }
}

/// Runs `request` to its end, or until Ctrl-C, and streams what it brings to stdout as a line: text, or for a model
/// with no tokenizer the ids.
pub fn stream(model: &Model, engine: &mut Engine, request: Request) -> Result<Generation, Failure> {
    let mut text = model.text().map(|text| TextStream::new(&text.tokenizer));
    let mut separator = "";
    let result = generate(engine, request, |token| {
        let piece = match &mut text {
            Some(text) => text.push(token),
            None => format!("{separator}{token}"),
        };
        separator = ",";
        terminal::print(&piece)
    });
    if matches!(result, Ok(_) | Err(Failure::Interrupted)) {
        terminal::print(&text.map_or_else(String::new, |text| text.finish()))?;
        terminal::print("\n")?;
    }
    result
}

/// Runs `request` to its end, or until Ctrl-C; each token goes to `on_token` as it comes.
pub fn generate(
    engine: &mut Engine,
    request: Request,
    on_token: impl FnMut(u32) -> Result<(), Failure>,
) -> Result<Generation, Failure> {
    let prompt_len = request.prompt.len();
    let start = Instant::now();
    let id = engine.add_request(request)?;
    let result = interrupt::polled(|| run(engine, start, prompt_len, on_token));
    if result.is_err() {
        engine.cancel(id);
    }
    result
}

fn run(
    engine: &mut Engine,
    start: Instant,
    prompt_len: usize,
    mut on_token: impl FnMut(u32) -> Result<(), Failure>,
) -> Result<Generation, Failure> {
    let mut tokens = Vec::new();
    let (mut first, mut last) = (start, start);
    loop {
        for event in engine.step()? {
            match event.kind {
                EventKind::Token(token) => {
                    last = Instant::now();
                    if tokens.is_empty() {
                        first = last;
                    }
                    tokens.push(token);
                    on_token(token)?;
                }
                EventKind::Failed(source) => return Err(EngineError::from(source).into()),
                EventKind::Finished(finish) => {
                    let (prompt, predicted) = (first - start, last - first);
                    let timings = Timings::new(prompt_len, tokens.len(), prompt, predicted);
                    return Ok(Generation { tokens, finish, timings });
                }
                _ => {}
            }
        }
        if interrupt::requested() {
            return Err(Failure::Interrupted);
        }
    }
}
