//! The answers to a request as OpenAI writes them: whole, or as server-sent events.

use super::choice::{Part, PartKind};
use super::error::{ApiError, json_response};
use super::tools::ToolCall;
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc;

/// How often a stream says that it is alive while there is no token.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Which endpoint is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Completions,
}

/// What all answers to a request have in common.
#[derive(Debug)]
pub(super) struct Answer {
    pub endpoint: Endpoint,
    pub id: String,
    pub created: u64,
    pub model: String,
    /// Answers to each prompt.
    pub n: usize,
    pub prompts: Vec<Prompted>,
    pub include_usage: bool,
    pub return_token_ids: bool,
}

/// A prompt that is being answered.
#[derive(Debug)]
pub(super) struct Prompted {
    /// Its token ids.
    pub ids: Vec<u32>,
    /// What each answer begins with, for `echo`.
    pub echo: String,
}

#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChoiceBody>,
    /// `null` in all chunks but the last of a stream that ends with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct ChoiceBody {
    index: usize,
    #[serde(flatten)]
    content: Content,
    logprobs: Option<()>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

/// The field of an answer that holds its text.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Content {
    Message {
        role: &'static str,
        /// `null` beside calls alone.
        content: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    Delta {
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    Text(String),
}

/// Tokens that a request took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl Answer {
    fn num_choices(&self) -> usize {
        self.prompts.len() * self.n
    }

    /// The usage before any token is there.
    fn usage(&self) -> Usage {
        let prompt_tokens = self.prompts.iter().map(|prompt| prompt.ids.len()).sum();
        Usage { prompt_tokens, total_tokens: prompt_tokens, ..Usage::default() }
    }

    /// Counts a part.
    fn count(&self, usage: &mut Usage, part: &Part) {
        match part.kind {
            // Each prompt once: the other answers to it find it in the cache of the first.
            PartKind::Started { cached_tokens } if part.index.is_multiple_of(self.n) => {
                usage.prompt_tokens_details.cached_tokens += cached_tokens;
            }
            PartKind::Text { token: Some(_), .. } => {
                usage.completion_tokens += 1;
                usage.total_tokens += 1;
            }
            _ => {}
        }
    }

    fn body(&self, object: &'static str, choices: Vec<ChoiceBody>) -> Body<'_> {
        let Answer { id, created, model, .. } = self;
        Body { id, object, created: *created, model, choices, usage: None }
    }

    /// Waits for all answers, and returns them in one response.
    pub async fn whole(self, mut parts: mpsc::Receiver<Part>) -> Response {
        let mut usage = self.usage();
        let echoes = self.prompts.iter().flat_map(|prompt| vec![&prompt.echo; self.n]);
        let mut texts: Vec<String> = echoes.cloned().collect();
        let mut tokens = vec![Vec::new(); self.num_choices()];
        let mut calls = vec![Vec::new(); self.num_choices()];
        let mut finished = vec![None; self.num_choices()];
        while let Some(part) = parts.recv().await {
            self.count(&mut usage, &part);
            match part.kind {
                PartKind::Started { .. } => {}
                PartKind::Text { text, token } => {
                    texts[part.index].push_str(&text);
                    tokens[part.index].extend(token);
                }
                PartKind::Call(call) => calls[part.index].push(call),
                PartKind::Finished(finish) => finished[part.index] = Some(finish.name()),
                PartKind::Failed(error) => return error.into_response(),
            }
        }
        if finished.contains(&None) {
            return ApiError::internal("an answer has no end").into_response();
        }
        let answers = texts.into_iter().zip(tokens).zip(calls).zip(finished).enumerate();
        let choice = |answer: (usize, (((String, _), Vec<_>), _))| {
            let (index, (((text, tokens), tool_calls), finish_reason)) = answer;
            let content = match self.endpoint {
                Endpoint::Chat => {
                    let has_text = !text.is_empty() || tool_calls.is_empty();
                    let content = has_text.then_some(text);
                    Content::Message { role: "assistant", content, tool_calls }
                }
                Endpoint::Completions => Content::Text(text),
            };
            let ids = &self.prompts[index / self.n].ids;
            ChoiceBody {
                index,
                content,
                logprobs: None,
                finish_reason,
                prompt_token_ids: self.return_token_ids.then(|| ids.clone()),
                token_ids: self.return_token_ids.then_some(tokens),
            }
        };
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let body = self.body(object, answers.map(choice).collect());
        json_response(StatusCode::OK, &Body { usage: Some(Some(usage)), ..body })
    }

    /// Returns the answers as they come.
    pub fn stream(self, parts: mpsc::Receiver<Part>) -> Response {
        let chunks = Chunks {
            usage: self.usage(),
            num_open: self.num_choices(),
            ready: self.first_chunks(),
            parts: Some(parts),
            answer: self,
        };
        let events = futures_util::stream::unfold(chunks, async |mut chunks| {
            let event = chunks.next().await?;
            Some((Ok::<_, Infallible>(Event::default().data(event)), chunks))
        });
        Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
    }

    /// What is known before the first token.
    fn first_chunks(&self) -> VecDeque<String> {
        let first = |index: usize| {
            let prompt = &self.prompts[index / self.n];
            let content = match self.endpoint {
                Endpoint::Chat => {
                    let (role, content) = (Some("assistant"), Some(String::new()));
                    Content::Delta { role, content, tool_calls: Vec::new() }
                }
                Endpoint::Completions => Content::Text(prompt.echo.clone()),
            };
            let has_text = self.endpoint == Endpoint::Chat || !prompt.echo.is_empty();
            let prompt_token_ids = self.return_token_ids.then(|| prompt.ids.clone());
            (has_text || prompt_token_ids.is_some()).then(|| {
                let (logprobs, finish_reason, token_ids) = (None, None, None);
                let choice = ChoiceBody {
                    index,
                    content,
                    logprobs,
                    finish_reason,
                    prompt_token_ids,
                    token_ids,
                };
                self.chunk(choice)
            })
        };
        (0..self.num_choices()).filter_map(first).collect()
    }

    fn chunk(&self, choice: ChoiceBody) -> String {
        let usage = self.include_usage.then_some(None);
        data(&Body { usage, ..self.body(self.chunk_object(), vec![choice]) })
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn call_chunk(&self, index: usize, call: ToolCall) -> String {
        let content = Content::Delta { role: None, content: None, tool_calls: vec![call] };
        self.chunk(ChoiceBody {
            index,
            content,
            logprobs: None,
            finish_reason: None,
            prompt_token_ids: None,
            token_ids: None,
        })
    }

    fn text_chunk(
        &self,
        index: usize,
        text: Option<String>,
        token: Option<u32>,
        finish_reason: Option<&'static str>,
    ) -> String {
        let content = match self.endpoint {
            Endpoint::Chat => Content::Delta { role: None, content: text, tool_calls: Vec::new() },
            Endpoint::Completions => Content::Text(text.unwrap_or_default()),
        };
        let token_ids = self.return_token_ids.then(|| token.into_iter().collect());
        let (logprobs, prompt_token_ids) = (None, None);
        self.chunk(ChoiceBody {
            index,
            content,
            logprobs,
            finish_reason,
            prompt_token_ids,
            token_ids,
        })
    }
}

/// The events of a stream.
struct Chunks {
    answer: Answer,
    usage: Usage,
    /// Answers that have not ended.
    num_open: usize,
    ready: VecDeque<String>,
    /// None once the stream has failed or ended.
    parts: Option<mpsc::Receiver<Part>>,
}

impl Chunks {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(ready);
            }
            let part = self.parts.as_mut()?.recv().await;
            match part {
                Some(part) => self.take(part),
                None => self.fail(&ApiError::internal("an answer has no end")),
            }
        }
    }

    fn take(&mut self, Part { index, kind }: Part) {
        let part = Part { index, kind };
        self.answer.count(&mut self.usage, &part);
        match part.kind {
            PartKind::Started { .. } => {}
            PartKind::Text { text, token } => {
                if !text.is_empty() || (self.answer.return_token_ids && token.is_some()) {
                    self.ready.push_back(self.answer.text_chunk(index, Some(text), token, None));
                }
            }
            PartKind::Call(call) => self.ready.push_back(self.answer.call_chunk(index, call)),
            PartKind::Finished(finish) => {
                let chunk = self.answer.text_chunk(index, None, None, Some(finish.name()));
                self.ready.push_back(chunk);
                self.num_open -= 1;
                if self.num_open == 0 {
                    self.end();
                }
            }
            PartKind::Failed(error) => self.fail(&error),
        }
    }

    fn end(&mut self) {
        if self.answer.include_usage {
            let body = self.answer.body(self.answer.chunk_object(), Vec::new());
            self.ready.push_back(data(&Body { usage: Some(Some(self.usage)), ..body }));
        }
        self.close();
    }

    /// The status was sent long ago: the error is an event.
    fn fail(&mut self, error: &ApiError) {
        self.ready.push_back(error.to_json().to_string());
        self.close();
    }

    fn close(&mut self) {
        self.ready.push_back("[DONE]".to_owned());
        self.parts = None;
    }
}

fn data(body: &Body<'_>) -> String {
    serde_json::to_string(body).expect("texts and numbers are JSON")
}
