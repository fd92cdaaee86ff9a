//! One request from its prompt to its last token, timed.

use super::{
    failure::Failure,
    interrupt,
    terminal::{self, PromptBar, Thoughts},
};
use halfwarp::text::answer::{AnswerFormat, AnswerReader, Piece, ReaderOptions};
use halfwarp::{
    Engine, EngineError, EventKind, FinishReason, Model, Request, RequestId, TextStream,
};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What a request brought.
pub struct Generation {
    /// The generated ids, a stop token included.
    pub tokens: Vec<u32>,
    /// Text of the tokens, without special tokens and stop strings; `None` for a model with no tokenizer.
    pub text: Option<String>,
    /// What was thought before it.
    pub reasoning: String,
    /// Why it ended.
    pub end: End,
    /// How long it took.
    pub timings: Timings,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A stop token or a stop string.
    Stop,
    /// The limit of tokens.
    Length,
    /// No position is left in the context.
    ContextFull,
    /// Ctrl-C.
    Interrupted,
}

/// Times of a request, under the names of llama.cpp's server.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Timings {
    /// Tokens of the prompt whose keys and values were in the cache already.
    pub cache_n: usize,
    /// Tokens of the prompt that were computed.
    pub prompt_n: usize,
    /// Milliseconds from the request to its first token (TTFT).
    pub prompt_ms: f64,
    /// Tokens of the prompt computed per second.
    pub prompt_per_second: f64,
    /// Tokens generated.
    pub predicted_n: usize,
    /// Milliseconds from the first token to the last.
    pub predicted_ms: f64,
    /// Tokens generated per second after the first.
    pub predicted_per_second: f64,
}

impl Timings {
    /// Prints the speeds on stderr, the device that reached them, and its memory.
    ///
    /// # Errors
    /// Errors of [`Engine::memory_use`].
    pub fn print(&self, engine: &Engine) -> Result<(), Failure> {
        terminal::note(format_args!(
            "{}\nprompt: {} tokens, first token after {:.1} ms ({:.1} tok/s)\n\
             decode: {} tokens, {:.1} tok/s\n\
             memory: {}\n\
             budget: {}",
            engine.describe_device(),
            self.prompt_n,
            self.prompt_ms,
            self.prompt_per_second,
            self.predicted_n,
            self.predicted_per_second,
            engine.memory_use()?,
            engine.memory_budget(),
        ));
        Ok(())
    }
}

/// How an answer is read.
#[derive(Clone, Copy)]
pub struct Reading<'a> {
    /// Strings that end it.
    pub stop: &'a [String],
    /// How it is written, where reasoning is to be set apart.
    pub format: Option<&'a AnswerFormat>,
}

/// What is new of an answer.
#[derive(Clone, Copy)]
pub enum Said<'a> {
    /// Text of the answer; for a model with no tokenizer the ids, separated by commas.
    Text(&'a str),
    /// What was thought before.
    Reasoning(&'a str),
}

impl Said<'_> {
    /// Writes a text to stdout; what was thought goes to `thoughts`.
    pub fn print(self, thoughts: &mut Thoughts) -> Result<(), Failure> {
        match self {
            Said::Reasoning(text) => {
                thoughts.show(text);
                Ok(())
            }
            Said::Text(text) => {
                thoughts.end();
                terminal::print(text)
            }
        }
    }
}

/// Tokens at the end of a prompt that may have opened the reasoning.
const PROMPT_END: usize = 64;

/// Runs `request` until it ends, a string comes that ends the answer, or Ctrl-C. `output` gets the answer as it comes.
///
/// # Errors
/// [`Failure::Input`] for a request that the engine refuses; those of [`Engine::step`] and of `output`.
pub fn generate(
    model: &Model,
    engine: &mut Engine,
    request: Request,
    Reading { stop, format }: Reading<'_>,
    output: impl FnMut(Said<'_>) -> Result<(), Failure>,
) -> Result<Generation, Failure> {
    if model.text().is_none() && !stop.is_empty() {
        return Err(Failure::Input(
            "this model has no tokenizer: --stop has no text to look at".to_owned(),
        ));
    }
    let kept = |tokenizer| format.map_or_else(Vec::new, |format| format.special_tokens(tokenizer));
    let text = model.text().map(|text| &text.tokenizer);
    let text = text.map(|tokenizer| TextStream::keeping(tokenizer, kept(tokenizer)).until(stop));
    let prompt_len = request.prompt.len();
    let reader = format.zip(model.text()).map(|(format, text)| {
        let end = &request.prompt[prompt_len.saturating_sub(PROMPT_END)..];
        let prompt = &*text.tokenizer.decode(end, false);
        AnswerReader::new(format, ReaderOptions { tools: &[], is_single: false, prompt })
    });
    let start = Instant::now();
    let id = engine.add_request(request)?;
    let mut run = Run {
        id,
        text,
        reader,
        output,
        written: String::new(),
        reasoning: String::new(),
        tokens: Vec::new(),
        cached: 0,
        start,
        first: start,
        last: start,
    };
    let end =
        interrupt::polled(|| run.run_to_end(engine)).and_then(|end| run.finish().map(|()| end));
    // It may have ended by itself; then there is nothing to cancel.
    engine.cancel(id);
    let end = end?;
    let timings = run.timings(prompt_len);
    let (text, reasoning) = (model.text().map(|_| run.written), run.reasoning);
    Ok(Generation { tokens: run.tokens, text, reasoning, end, timings })
}

/// A request that runs.
struct Run<'a, F> {
    id: RequestId,
    text: Option<TextStream<'a>>,
    reader: Option<AnswerReader>,
    output: F,
    /// What `output` got of the text, and of the reasoning.
    written: String,
    reasoning: String,
    tokens: Vec<u32>,
    /// Tokens of the prompt that were in the cache.
    cached: usize,
    start: Instant,
    first: Instant,
    last: Instant,
}

impl<F: FnMut(Said<'_>) -> Result<(), Failure>> Run<'_, F> {
    fn run_to_end(&mut self, engine: &mut Engine) -> Result<End, Failure> {
        let (id, mut bar) = (self.id, PromptBar::new());
        loop {
            for event in engine.step()?.into_iter().filter(|event| event.request == id) {
                match event.kind {
                    EventKind::Started { cached_tokens } => self.cached = cached_tokens,
                    EventKind::Token(token) => {
                        bar.clear();
                        self.token(token)?;
                    }
                    EventKind::Finished(reason) => return Ok(self.end(reason)),
                    EventKind::Failed(source) => {
                        return Err(EngineError::Sample { request: id, source }.into());
                    }
                    _ => {}
                }
            }
            if self.is_stopped() {
                return Ok(End::Stop);
            }
            if interrupt::requested() {
                return Ok(End::Interrupted);
            }
            if let Some(progress) = engine.prompt_progress(id) {
                bar.update(progress.done, progress.total);
            }
        }
    }

    fn token(&mut self, token: u32) -> Result<(), Failure> {
        self.last = Instant::now();
        if self.tokens.is_empty() {
            self.first = self.last;
        }
        let separator = if self.tokens.is_empty() { "" } else { "," };
        self.tokens.push(token);
        let text = match &mut self.text {
            Some(text) => text.push(token),
            None => format!("{separator}{token}"),
        };
        self.write(&text)
    }

    /// Writes the characters that waited for more bytes, or could have begun a stop string.
    fn finish(&mut self) -> Result<(), Failure> {
        let rest = self.text.take().map_or_else(String::new, TextStream::finish);
        self.write(&rest)?;
        let pieces = self.reader.as_mut().map_or_else(Vec::new, AnswerReader::finish);
        pieces.into_iter().try_for_each(|piece| self.write_piece(piece))
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        match &mut self.reader {
            None => self.write_piece(Piece::Text(text.to_owned())),
            Some(reader) => {
                let pieces = reader.push(text);
                pieces.into_iter().try_for_each(|piece| self.write_piece(piece))
            }
        }
    }

    fn write_piece(&mut self, piece: Piece) -> Result<(), Failure> {
        match piece {
            Piece::Text(text) => {
                self.written.push_str(&text);
                (self.output)(Said::Text(&text))
            }
            Piece::Reasoning(text) => {
                self.reasoning.push_str(&text);
                (self.output)(Said::Reasoning(&text))
            }
            // There are no tools to call.
            Piece::CallBegin { .. } | Piece::CallArguments { .. } => Ok(()),
        }
    }

    fn is_stopped(&self) -> bool {
        self.text.as_ref().is_some_and(TextStream::is_stopped)
    }

    /// A stop string in the last token counts before the limit that this token reached.
    fn end(&self, reason: FinishReason) -> End {
        match reason {
            _ if self.is_stopped() => End::Stop,
            FinishReason::StopToken => End::Stop,
            FinishReason::Length => End::Length,
            FinishReason::ContextFull => End::ContextFull,
            FinishReason::Cancelled => End::Interrupted,
        }
    }

    fn timings(&self, prompt_len: usize) -> Timings {
        let per_second = |count: usize, time: Duration| match time.as_secs_f64() {
            0.0 => 0.0,
            seconds => count as f64 / seconds,
        };
        let (prompt, predicted) = (self.first - self.start, self.last - self.first);
        let (prompt_n, predicted_n) = (prompt_len - self.cached, self.tokens.len());
        Timings {
            cache_n: self.cached,
            prompt_n,
            prompt_ms: 1e3 * prompt.as_secs_f64(),
            prompt_per_second: per_second(prompt_n, prompt),
            predicted_n,
            predicted_ms: 1e3 * predicted.as_secs_f64(),
            predicted_per_second: per_second(predicted_n.saturating_sub(1), predicted),
        }
    }
}
