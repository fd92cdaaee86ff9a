//! The answers of Ollama's `/api/chat` and `/api/generate`: an object, or a line of JSON for each piece.

use super::native::Times;
use super::{Asked, StreamItem, Usage, Writer, no_end};
use crate::Model;
use crate::engine::Logprobs;
use crate::server::choice::{Finish, Part, PartKind, Token};
use crate::server::error::ApiError;
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde_json::{Map, Value, json};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// Which endpoint is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::server) enum OllamaEndpoint {
    Chat,
    /// Whether the tokens come back, for a next turn.
    Generate {
        keeps_context: bool,
    },
}

/// A line of JSON.
#[derive(Debug)]
pub(in crate::server) struct Line(String);

impl Line {
    pub fn new(body: &Value) -> Self {
        Line(format!("{body}\n"))
    }
}

impl StreamItem for Line {
    fn response(items: impl Stream<Item = Self> + Send + 'static) -> Response {
        let lines = Body::from_stream(items.map(|Line(line)| Ok::<_, Infallible>(line)));
        ([(header::CONTENT_TYPE, "application/x-ndjson")], lines).into_response()
    }
}

/// Writes an answer in Ollama's form.
#[derive(Debug)]
pub(in crate::server) struct OllamaAnswer {
    asked: Asked,
    model: Arc<Model>,
    endpoint: OllamaEndpoint,
    begin: Instant,
    times: Times,
    text: String,
    thinking: String,
    /// Calls whose arguments are all there, and the one that is being written.
    calls: Vec<Call>,
    num_calls_told: usize,
    tokens: Vec<u32>,
    logprobs: Vec<Value>,
}

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Call {
    fn to_json(&self, index: usize) -> Value {
        // One that is cut is no JSON.
        let arguments = serde_json::from_str(&self.arguments).unwrap_or_else(|_| json!({}));
        let function = json!({ "index": index, "name": self.name, "arguments": arguments });
        json!({ "id": self.id, "function": function })
    }
}

/// The time now, as Ollama writes it.
pub(in crate::server) fn timestamp() -> String {
    jiff::Timestamp::now().to_string()
}

impl OllamaAnswer {
    pub fn new(asked: Asked, model: Arc<Model>, endpoint: OllamaEndpoint, begin: Instant) -> Self {
        OllamaAnswer {
            asked,
            model,
            endpoint,
            begin,
            times: Times::default(),
            text: String::new(),
            thinking: String::new(),
            calls: Vec::new(),
            num_calls_told: 0,
            tokens: Vec::new(),
            logprobs: Vec::new(),
        }
    }

    /// An object with a piece of the answer.
    fn object(&self, text: &str, thinking: &str, calls: &[Value], logprobs: &[Value]) -> Value {
        let mut body = json!({ "model": self.asked.model, "created_at": timestamp() });
        let mut piece = Map::new();
        let name = match self.endpoint {
            OllamaEndpoint::Chat => {
                piece.insert("role".to_owned(), "assistant".into());
                "content"
            }
            OllamaEndpoint::Generate { .. } => "response",
        };
        piece.insert(name.to_owned(), text.into());
        if !thinking.is_empty() {
            piece.insert("thinking".to_owned(), thinking.into());
        }
        if !calls.is_empty() {
            piece.insert("tool_calls".to_owned(), calls.into());
        }
        match self.endpoint {
            OllamaEndpoint::Chat => body["message"] = piece.into(),
            OllamaEndpoint::Generate { .. } => {
                body.as_object_mut().into_iter().for_each(|body| body.extend(piece.clone()));
            }
        }
        if !logprobs.is_empty() {
            body["logprobs"] = logprobs.into();
        }
        body["done"] = false.into();
        body
    }

    /// Adds how the answer ended, and its times in nanoseconds.
    fn ended(&self, mut body: Value, finish: Finish) -> Value {
        let prompt = self.asked.prompt(0);
        let (prompt_time, answer_time) = self.times.seconds();
        let wait = self.times.start.map_or(Duration::ZERO, |start| start - self.begin);
        let nanoseconds = |seconds: f64| (1e9 * seconds) as u64;
        body["done"] = true.into();
        body["done_reason"] = match finish {
            Finish::Length => "length",
            Finish::Stop | Finish::StopString(_) | Finish::ToolCalls => "stop",
        }
        .into();
        if self.endpoint == (OllamaEndpoint::Generate { keeps_context: true }) {
            body["context"] = prompt.ids.iter().chain(&self.tokens).copied().collect();
        }
        body["total_duration"] = (self.begin.elapsed().as_nanos() as u64).into();
        // What is waited for before the prompt is read.
        body["load_duration"] = (wait.as_nanos() as u64).into();
        body["prompt_eval_count"] = prompt.ids.len().into();
        body["prompt_eval_duration"] = nanoseconds(prompt_time).into();
        body["eval_count"] = self.tokens.len().into();
        body["eval_duration"] = nanoseconds(answer_time).into();
        body
    }

    fn finished(&self, finish: Finish) -> Value {
        let told: Vec<Value> = self.calls_from(0);
        self.ended(self.object(&self.text, &self.thinking, &told, &self.logprobs), finish)
    }

    fn calls_from(&self, first: usize) -> Vec<Value> {
        self.calls.iter().enumerate().skip(first).map(|(index, call)| call.to_json(index)).collect()
    }

    /// The calls that are whole and have not been told.
    fn new_calls(&mut self) -> Option<Line> {
        let calls = self.calls_from(self.num_calls_told);
        self.num_calls_told = self.calls.len();
        (!calls.is_empty()).then(|| Line::new(&self.object("", "", &calls, &[])))
    }

    /// A new text, and what is known of the token that brought it.
    fn piece(&mut self, text: &str, thinking: &str, token: Option<Token>) -> Vec<Line> {
        self.text += text;
        self.thinking += thinking;
        let mut logprobs = Vec::new();
        if let Some(token) = token {
            self.times.token();
            self.tokens.push(token.id);
            logprobs.extend(token.logprobs.map(|it| token_logprobs(&self.model, &it)));
        }
        self.logprobs.extend(logprobs.iter().cloned());
        if text.is_empty() && thinking.is_empty() && logprobs.is_empty() {
            return Vec::new();
        }
        let piece = Line::new(&self.object(text, thinking, &[], &logprobs));
        // A call before it is whole; with a token alone it may still be written.
        let is_after = !text.is_empty() || !thinking.is_empty();
        let calls = if is_after { self.new_calls() } else { None };
        calls.into_iter().chain([piece]).collect()
    }
}

impl Writer for OllamaAnswer {
    type Item = Line;

    fn asked(&self) -> &Asked {
        &self.asked
    }

    async fn whole(mut self, mut parts: mpsc::Receiver<Part>) -> Result<Value, ApiError> {
        while let Some(part) = parts.recv().await {
            match part.kind {
                PartKind::Failed(error) => return Err(error),
                PartKind::Finished(finish) => return Ok(self.finished(finish)),
                kind => drop(self.part(part.index, kind)),
            }
        }
        Err(no_end())
    }

    fn begin(&mut self) -> Vec<Line> {
        Vec::new()
    }

    fn part(&mut self, _: usize, kind: PartKind) -> Vec<Line> {
        match kind {
            PartKind::Started { .. } => {
                self.times.start = Some(Instant::now());
                Vec::new()
            }
            PartKind::Text { text, token } => self.piece(&text, "", token),
            PartKind::Reasoning { text, token } => self.piece("", &text, token),
            PartKind::CallBegin { id, name, .. } => {
                let before = self.new_calls();
                self.calls.push(Call { id, name, arguments: String::new() });
                before.into_iter().collect()
            }
            PartKind::CallArguments { call, json } => {
                self.calls[call].arguments += &json;
                Vec::new()
            }
            PartKind::Finished(finish) => {
                let last = Line::new(&self.ended(self.object("", "", &[], &[]), finish));
                self.new_calls().into_iter().chain([last]).collect()
            }
            PartKind::Prompt(_) | PartKind::Warning(_) | PartKind::Failed(_) => Vec::new(),
        }
    }

    fn end(&mut self, _: Usage) -> Vec<Line> {
        Vec::new()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Line> {
        vec![Line::new(&error.to_ollama())]
    }
}

fn token_logprobs(model: &Model, logprobs: &Logprobs) -> Value {
    let spelt = |token: u32, logprob: f32| {
        let bytes = model.text().and_then(|text| text.tokenizer.token_bytes(token));
        let bytes = bytes.map_or_else(Vec::new, |(bytes, _)| bytes);
        let token = String::from_utf8_lossy(&bytes);
        json!({ "token": token, "logprob": logprob.max(f32::MIN), "bytes": bytes })
    };
    let mut own = spelt(logprobs.token, logprobs.logprob);
    let top = logprobs.top.iter().map(|&(token, logprob)| spelt(token, logprob));
    own["top_logprobs"] = top.collect();
    own
}

#[cfg(test)]
mod tests {
    use super::super::tests::{asked, body, call, reasoning, text};
    use super::*;
    use crate::server::choice::PartKind::{Finished, Started};

    fn writer(endpoint: OllamaEndpoint) -> OllamaAnswer {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let model = Arc::new(Model::open(golden).unwrap());
        OllamaAnswer::new(asked(5), model, endpoint, Instant::now())
    }

    fn parts() -> Vec<PartKind> {
        let [begin, first, second] = call(0, "f", ["{\"x\":", " 1}"]);
        let [other, all, none] = call(1, "g", ["{}", ""]);
        let calls = [begin, first, text(""), second, other, all, none];
        let start = [Started { cached_tokens: 0 }, reasoning("Hm."), text("Well")];
        start.into_iter().chain(calls).chain([Finished(Finish::ToolCalls)]).collect()
    }

    #[test]
    fn calls_come_whole_and_thoughts_by_themselves() {
        let lines = body(writer(OllamaEndpoint::Chat), true, parts());
        let lines: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [thought, said, first, second, last] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!(thought["message"]["thinking"], "Hm.");
        assert_eq!((&said["message"]["content"], &said["done"]), (&"Well".into(), &false.into()));
        let call = |line: &Value| line["message"]["tool_calls"][0].clone();
        let function = json!({ "index": 0, "name": "f", "arguments": { "x": 1 } });
        assert_eq!(call(first), json!({ "id": "call_0", "function": function }));
        assert_eq!(call(second)["function"]["name"], "g");
        assert_eq!((&last["done"], &last["done_reason"]), (&true.into(), &"stop".into()));
        assert_eq!((&last["prompt_eval_count"], &last["eval_count"]), (&5.into(), &3.into()));
        assert!(last["message"].get("tool_calls").is_none(), "{last}");
    }

    #[test]
    fn a_whole_answer_has_all_of_it() {
        let whole: Value =
            serde_json::from_str(&body(writer(OllamaEndpoint::Chat), false, parts())).unwrap();
        let message = &whole["message"];
        assert_eq!((&message["content"], &message["thinking"]), (&"Well".into(), &"Hm.".into()));
        assert_eq!(message["tool_calls"].as_array().unwrap().len(), 2);
        let generate = OllamaEndpoint::Generate { keeps_context: true };
        let parts = vec![text("a"), text("b"), Finished(Finish::Length)];
        let whole: Value = serde_json::from_str(&body(writer(generate), false, parts)).unwrap();
        assert_eq!((&whole["response"], &whole["done_reason"]), (&"ab".into(), &"length".into()));
        assert_eq!(whole["context"].as_array().unwrap().len(), 7);
    }

    #[test]
    fn a_failure_is_a_line() {
        let failed = PartKind::Failed(ApiError::unavailable("gone"));
        let lines = body(writer(OllamaEndpoint::Chat), true, vec![text("a"), failed]);
        assert!(lines.ends_with("\n{\"error\":\"gone\"}\n"), "{lines}");
    }
}
