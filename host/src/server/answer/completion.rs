//! The answers of `/v1/chat/completions` and `/v1/completions`.

use super::logprobs::LogprobsBody;
use super::{Answer, Asked, ToolCall, Usage, Writer, collect};
use crate::Model;
use crate::server::choice::{Part, PartKind, Token};
use crate::server::error::ApiError;
use axum::response::sse::Event;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Which endpoint is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum Endpoint {
    Chat,
    Completions,
}

/// Writes completions.
#[derive(Debug)]
pub(in crate::server) struct Completion {
    pub asked: Asked,
    pub model: Arc<Model>,
    pub endpoint: Endpoint,
    pub include_usage: bool,
    pub return_token_ids: bool,
    pub logprobs: bool,
    /// Whether they are of the prompt too, which its text comes with then.
    pub scores_prompt: bool,
    /// What answers that end now break of their schema, with the numbers of the answers.
    pub warnings: Vec<(usize, String)>,
}

#[derive(Serialize)]
struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<Choice>,
    /// `null` in all chunks but the last of a stream that ends with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Serialize)]
struct Choice {
    index: usize,
    #[serde(flatten)]
    content: Content,
    logprobs: Option<LogprobsBody>,
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
        #[serde(flatten)]
        reasoning: Option<Reasoning>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
    },
    Delta(Delta),
    Text(String),
}

/// What is new of a chat's answer.
#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(flatten)]
    reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta; 1]>,
}

/// The reasoning under both of its names: DeepSeek's, which llama.cpp and SGLang took over, and vLLM's.
#[derive(Serialize)]
struct Reasoning {
    reasoning_content: String,
    reasoning: String,
}

/// What is new of a call: its name, or more of its arguments.
#[derive(Serialize)]
struct CallDelta {
    index: usize,
    #[serde(flatten)]
    call: CallPart,
}

#[derive(Serialize)]
#[serde(untagged)]
enum CallPart {
    Begin(ToolCall),
    More { function: MoreArguments },
}

#[derive(Serialize)]
struct MoreArguments {
    arguments: String,
}

impl Reasoning {
    /// `None` for no text.
    fn new(text: String) -> Option<Self> {
        (!text.is_empty()).then(|| Reasoning { reasoning_content: text.clone(), reasoning: text })
    }
}

#[derive(Serialize)]
struct UsageBody {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

#[derive(Serialize)]
struct CompletionTokensDetails {
    reasoning_tokens: usize,
}

impl From<Usage> for UsageBody {
    fn from(usage: Usage) -> Self {
        UsageBody {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.total_tokens(),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: CompletionTokensDetails {
                reasoning_tokens: usage.reasoning_tokens,
            },
        }
    }
}

impl Choice {
    /// A choice that has not ended.
    fn new(index: usize, content: Content) -> Self {
        Choice {
            index,
            content,
            logprobs: None,
            finish_reason: None,
            prompt_token_ids: None,
            token_ids: None,
        }
    }
}

impl Completion {
    fn body(&self, object: &'static str, choices: Vec<Choice>) -> Body<'_> {
        let Asked { id, created, model, .. } = &self.asked;
        Body { id, object, created: *created, model, choices, usage: None, warnings: Vec::new() }
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn chunk(&self, choice: Choice) -> Event {
        let usage = self.include_usage.then_some(None);
        data(&Body { usage, ..self.body(self.chunk_object(), vec![choice]) })
    }

    /// What is known of an answer before its first token, if anything is.
    fn first_chunk(&self, index: usize) -> Option<Event> {
        let prompt = self.asked.prompt(index);
        let content = match self.endpoint {
            Endpoint::Chat => {
                let (role, content) = (Some("assistant"), Some(String::new()));
                Content::Delta(Delta { role, content, ..Delta::default() })
            }
            Endpoint::Completions if self.scores_prompt => Content::Text(String::new()),
            Endpoint::Completions => Content::Text(prompt.echo.clone()),
        };
        let has_text = match self.endpoint {
            Endpoint::Chat => true,
            Endpoint::Completions => !prompt.echo.is_empty() && !self.scores_prompt,
        };
        let prompt_token_ids = self.return_token_ids.then(|| prompt.ids.clone());
        (has_text || prompt_token_ids.is_some())
            .then(|| self.chunk(Choice { prompt_token_ids, ..Choice::new(index, content) }))
    }

    /// Log-probabilities of `tokens`, if they are asked for.
    fn logprobs<'a>(&self, tokens: impl Iterator<Item = &'a Token>) -> Option<LogprobsBody> {
        self.logprobs.then(|| LogprobsBody::new(self.endpoint, self.model.text(), tokens))
    }

    /// A text that is new, and the token that brought it; nothing where neither is to be told.
    fn text_chunk(&self, index: usize, content: Content, token: Option<Token>) -> Option<Event> {
        let is_told = token.is_some() && (self.return_token_ids || self.logprobs);
        let is_new = match &content {
            Content::Delta(Delta { content: Some(text), .. }) | Content::Text(text) => {
                !text.is_empty()
            }
            Content::Delta(delta) => delta.reasoning.is_some(),
            Content::Message { .. } => true,
        };
        let token_ids = self.return_token_ids.then(|| token.iter().map(|token| token.id).collect());
        let logprobs = token.as_ref().and_then(|token| self.logprobs([token].into_iter()));
        let choice = Choice { token_ids, logprobs, ..Choice::new(index, content) };
        (is_new || is_told).then(|| self.chunk(choice))
    }

    fn call_chunk(&self, index: usize, call: usize, part: CallPart) -> Event {
        let tool_calls = Some([CallDelta { index: call, call: part }]);
        self.chunk(Choice::new(index, Content::Delta(Delta { tool_calls, ..Delta::default() })))
    }
}

impl Writer for Completion {
    type Item = Event;

    fn asked(&self) -> &Asked {
        &self.asked
    }

    async fn whole(self, parts: mpsc::Receiver<Part>) -> Result<Value, ApiError> {
        let (mut answers, usage) = collect(&self.asked, parts).await?;
        let is_one = answers.len() == 1;
        let of_answer = |(index, answer): (usize, &mut Answer)| {
            let warnings = std::mem::take(&mut answer.warnings).into_iter();
            warnings.map(move |why| if is_one { why } else { format!("choice {index}: {why}") })
        };
        let warnings = answers.iter_mut().enumerate().flat_map(of_answer).collect();
        let choice = |(index, answer): (usize, Answer)| {
            let Answer { text, reasoning, prompt, tokens, calls, finish, .. } = answer;
            let content = match self.endpoint {
                Endpoint::Chat => {
                    let has_text = !text.is_empty() || calls.is_empty();
                    let content = has_text.then_some(text);
                    let (role, reasoning) = ("assistant", Reasoning::new(reasoning));
                    Content::Message { role, content, reasoning, tool_calls: calls }
                }
                Endpoint::Completions => Content::Text(text),
            };
            let ids = &self.asked.prompt(index).ids;
            Choice {
                finish_reason: Some(finish.name()),
                prompt_token_ids: self.return_token_ids.then(|| ids.clone()),
                logprobs: self.logprobs(prompt.iter().chain(&tokens)),
                token_ids: self
                    .return_token_ids
                    .then(|| tokens.iter().map(|token| token.id).collect()),
                ..Choice::new(index, content)
            }
        };
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        let body = self.body(object, answers.into_iter().enumerate().map(choice).collect());
        let body = Body { usage: Some(Some(usage.into())), warnings, ..body };
        Ok(serde_json::to_value(&body).expect("texts and numbers are JSON"))
    }

    fn begin(&mut self) -> Vec<Event> {
        (0..self.asked.num_answers()).filter_map(|index| self.first_chunk(index)).collect()
    }

    fn part(&mut self, index: usize, kind: PartKind) -> Vec<Event> {
        match kind {
            PartKind::Text { text, token } => {
                let content = match self.endpoint {
                    Endpoint::Chat => {
                        Content::Delta(Delta { content: Some(text), ..Delta::default() })
                    }
                    Endpoint::Completions => Content::Text(text),
                };
                self.text_chunk(index, content, token).into_iter().collect()
            }
            PartKind::Reasoning { text, token } => {
                let reasoning = Reasoning::new(text);
                let content = Content::Delta(Delta { reasoning, ..Delta::default() });
                self.text_chunk(index, content, token).into_iter().collect()
            }
            PartKind::Prompt(tokens) => {
                let echo = Content::Text(self.asked.prompt(index).echo.clone());
                let logprobs = self.logprobs(tokens.iter());
                vec![self.chunk(Choice { logprobs, ..Choice::new(index, echo) })]
            }
            PartKind::CallBegin { call, id, name } => {
                vec![self.call_chunk(index, call, CallPart::Begin(ToolCall::new(id, name)))]
            }
            PartKind::CallArguments { call, json } => {
                let function = MoreArguments { arguments: json };
                vec![self.call_chunk(index, call, CallPart::More { function })]
            }
            PartKind::Finished(finish) => {
                let content = match self.endpoint {
                    Endpoint::Chat => Content::Delta(Delta::default()),
                    Endpoint::Completions => Content::Text(String::new()),
                };
                let token_ids = self.return_token_ids.then(Vec::new);
                let finish_reason = Some(finish.name());
                let choice = Choice { finish_reason, token_ids, ..Choice::new(index, content) };
                let own = self.warnings.extract_if(.., |(of, _)| *of == index);
                let warnings = own.map(|(_, warning)| warning).collect();
                let usage = self.include_usage.then_some(None);
                let body = self.body(self.chunk_object(), vec![choice]);
                vec![data(&Body { usage, warnings, ..body })]
            }
            PartKind::Warning(warning) => {
                self.warnings.push((index, warning));
                Vec::new()
            }
            PartKind::Started { .. } | PartKind::Failed(_) => Vec::new(),
        }
    }

    fn end(&mut self, usage: Usage) -> Vec<Event> {
        let last = self.include_usage.then(|| {
            let body = self.body(self.chunk_object(), Vec::new());
            data(&Body { usage: Some(Some(usage.into())), ..body })
        });
        last.into_iter().chain([done()]).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        vec![Event::default().data(error.to_json().to_string()), done()]
    }
}

fn done() -> Event {
    Event::default().data("[DONE]")
}

fn data(body: &Body<'_>) -> Event {
    Event::default().data(serde_json::to_string(body).expect("texts and numbers are JSON"))
}
