//! The answers to a request: collected into one body, or written as server-sent events while they come.

mod completion;
mod logprobs;
mod message;
mod native;
mod ollama;
mod response;

pub(super) use completion::{Completion, Endpoint};
pub(super) use message::MessageObject;
pub(super) use native::{NativeAnswer, NativeFields};
pub(super) use ollama::{Line, OllamaAnswer, OllamaEndpoint, timestamp};
pub(super) use response::{Destination, ResponseObject, Settings};

use super::choice::{Finish, Part, PartKind, Token};
use super::error::{ApiError, json_response};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;

/// How often a stream says that it is alive while there is no token.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What all answers to a request have in common.
#[derive(Debug)]
pub(super) struct Asked {
    pub id: String,
    pub created: u64,
    pub model: String,
    /// Answers to each prompt.
    pub n: usize,
    pub prompts: Vec<Prompted>,
}

/// A prompt that is being answered.
#[derive(Debug)]
pub(super) struct Prompted {
    /// Token ids of the prompt.
    pub ids: Vec<u32>,
    /// What each answer begins with, for `echo`.
    pub echo: String,
}

/// An answer that has ended.
#[derive(Debug)]
pub(super) struct Answer {
    text: String,
    /// What was thought before it.
    reasoning: String,
    /// Tokens of the prompt, if its log-probabilities are asked for.
    prompt: Vec<Token>,
    tokens: Vec<Token>,
    calls: Vec<ToolCall>,
    /// What it breaks of its schema.
    warnings: Vec<String>,
    finish: Finish,
}

/// A call of a tool, as OpenAI has it; in a stream the first of its pieces.
#[derive(Debug, Serialize)]
struct ToolCall {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function,
}

/// What is called, with JSON.
#[derive(Debug, Serialize)]
struct Function {
    name: String,
    arguments: String,
}

impl ToolCall {
    /// A call whose arguments are still to come.
    fn new(id: String, name: String) -> Self {
        let function = Function { name, arguments: String::new() };
        ToolCall { id, kind: "function", function }
    }
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    /// Tokens of the completion that come before the answer.
    reasoning_tokens: usize,
}

/// A piece of a stream.
pub(super) trait StreamItem: Send + Sized + 'static {
    /// The response whose body is made of `items`.
    fn response(items: impl Stream<Item = Self> + Send + 'static) -> Response;
}

/// Server-sent events.
impl StreamItem for Event {
    fn response(items: impl Stream<Item = Self> + Send + 'static) -> Response {
        let events = Sse::new(items.map(Ok::<_, Infallible>));
        events.keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
    }
}

/// The form that an endpoint gives to answers.
pub(super) trait Writer: Send + 'static {
    /// What a stream is made of.
    type Item: StreamItem;

    fn asked(&self) -> &Asked;

    /// The body of all answers, which come in `parts`.
    fn whole(
        self,
        parts: mpsc::Receiver<Part>,
    ) -> impl Future<Output = Result<Value, ApiError>> + Send;

    /// The events before the first token.
    fn begin(&mut self) -> Vec<Self::Item>;

    /// The events of a part of answer number `index`.
    fn part(&mut self, index: usize, kind: PartKind) -> Vec<Self::Item>;

    /// The events after the end of the last answer.
    fn end(&mut self, usage: Usage) -> Vec<Self::Item>;

    /// The last events of a request that fails: its status was sent long ago.
    fn fail(&mut self, error: &ApiError) -> Vec<Self::Item>;
}

/// The response to a request whose answers come in `parts`.
pub(super) async fn respond(
    writer: impl Writer,
    stream: bool,
    parts: mpsc::Receiver<Part>,
) -> Response {
    if stream {
        return events(writer, parts);
    }
    match writer.whole(parts).await {
        Ok(body) => json_response(StatusCode::OK, &body),
        Err(error) => error.into_response(),
    }
}

/// Gives all `parts` to a writer that makes objects of them, and throws the events away.
async fn drain(
    writer: &mut impl Writer,
    mut parts: mpsc::Receiver<Part>,
) -> Result<Usage, ApiError> {
    let mut usage = writer.asked().usage();
    let mut num_open = writer.asked().num_answers();
    while let Some(part) = parts.recv().await {
        writer.asked().count(&mut usage, &part);
        num_open -= usize::from(matches!(part.kind, PartKind::Finished(_)));
        match part.kind {
            PartKind::Failed(error) => return Err(error),
            kind => drop(writer.part(part.index, kind)),
        }
        if num_open == 0 {
            return Ok(usage);
        }
    }
    Err(no_end())
}

impl Asked {
    fn num_answers(&self) -> usize {
        self.prompts.len() * self.n
    }

    /// The prompt of answer number `index`.
    fn prompt(&self, index: usize) -> &Prompted {
        &self.prompts[index / self.n]
    }

    /// The usage before any token is there.
    fn usage(&self) -> Usage {
        let prompt_tokens = self.prompts.iter().map(|prompt| prompt.ids.len()).sum();
        Usage { prompt_tokens, ..Usage::default() }
    }

    /// Counts a part.
    fn count(&self, usage: &mut Usage, part: &Part) {
        match part.kind {
            // Each prompt once: the other answers to it find it in the cache of the first.
            PartKind::Started { cached_tokens } if part.index.is_multiple_of(self.n) => {
                usage.cached_tokens += cached_tokens;
            }
            PartKind::Text { token: Some(_), .. } => usage.completion_tokens += 1,
            PartKind::Reasoning { token: Some(_), .. } => {
                usage.completion_tokens += 1;
                usage.reasoning_tokens += 1;
            }
            _ => {}
        }
    }
}

impl Usage {
    fn total_tokens(&self) -> usize {
        self.prompt_tokens + self.completion_tokens
    }
}

/// Waits for all answers.
async fn collect(
    asked: &Asked,
    mut parts: mpsc::Receiver<Part>,
) -> Result<(Vec<Answer>, Usage), ApiError> {
    let mut usage = asked.usage();
    let begin = |index| Answer {
        text: asked.prompt(index).echo.clone(),
        reasoning: String::new(),
        prompt: Vec::new(),
        tokens: Vec::new(),
        calls: Vec::new(),
        warnings: Vec::new(),
        finish: Finish::Stop,
    };
    let mut answers: Vec<Answer> = (0..asked.num_answers()).map(begin).collect();
    let mut num_open = answers.len();
    while let Some(part) = parts.recv().await {
        asked.count(&mut usage, &part);
        let answer = &mut answers[part.index];
        match part.kind {
            PartKind::Started { .. } => {}
            PartKind::Prompt(tokens) => answer.prompt = tokens,
            PartKind::Text { text, token } => {
                answer.text.push_str(&text);
                answer.tokens.extend(token);
            }
            PartKind::Reasoning { text, token } => {
                answer.reasoning.push_str(&text);
                answer.tokens.extend(token);
            }
            PartKind::CallBegin { id, name, .. } => answer.calls.push(ToolCall::new(id, name)),
            PartKind::CallArguments { call, json } => {
                answer.calls[call].function.arguments.push_str(&json);
            }
            PartKind::Warning(warning) => answer.warnings.push(warning),
            PartKind::Finished(finish) => {
                answer.finish = finish;
                num_open -= 1;
            }
            PartKind::Failed(error) => return Err(error),
        }
    }
    match num_open {
        0 => Ok((answers, usage)),
        _ => Err(no_end()),
    }
}

fn no_end() -> ApiError {
    ApiError::internal("an answer has no end")
}

/// Writes answers as they come.
fn events(mut writer: impl Writer, parts: mpsc::Receiver<Part>) -> Response {
    let events = Events {
        usage: writer.asked().usage(),
        num_open: writer.asked().num_answers(),
        ready: writer.begin().into(),
        parts: Some(parts),
        writer,
    };
    StreamItem::response(futures_util::stream::unfold(events, async |mut events| {
        let event = events.next().await?;
        Some((event, events))
    }))
}

/// The events of a stream.
struct Events<W: Writer> {
    writer: W,
    usage: Usage,
    /// Answers that have not ended.
    num_open: usize,
    ready: VecDeque<W::Item>,
    /// None once the stream has failed or ended.
    parts: Option<mpsc::Receiver<Part>>,
}

impl<W: Writer> Events<W> {
    async fn next(&mut self) -> Option<W::Item> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            let part = self.parts.as_mut()?.recv().await;
            match part {
                Some(part) => self.take(part),
                None => self.fail(&no_end()),
            }
        }
    }

    fn take(&mut self, part: Part) {
        self.writer.asked().count(&mut self.usage, &part);
        match part.kind {
            PartKind::Failed(error) => self.fail(&error),
            kind => {
                let is_end = matches!(kind, PartKind::Finished(_));
                self.ready.extend(self.writer.part(part.index, kind));
                self.num_open -= usize::from(is_end);
                if self.num_open == 0 {
                    self.ready.extend(self.writer.end(self.usage));
                    self.parts = None;
                }
            }
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.ready.extend(self.writer.fail(error));
        self.parts = None;
    }
}

#[cfg(test)]
mod tests;
