//! The answers of llama.cpp's `/completion` and `/infill`.

use super::{Asked, Usage, Writer, drain};
use crate::Model;
use crate::engine::Logprobs;
use crate::server::choice::{Finish, Part, PartKind, Token};
use crate::server::error::ApiError;
use crate::server::request::NativeOptions;
use axum::response::sse::Event;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;

/// What stands for the logarithm of 0, which JSON cannot write: llama.cpp's.
const LEAST: f32 = f32::MIN;

/// What an answer needs besides its parts.
#[derive(Debug)]
pub(in crate::server) struct NativeFields {
    pub model: Arc<Model>,
    pub options: NativeOptions,
    pub stops: Vec<String>,
    /// Positions of a sequence.
    pub context: usize,
}

/// Writes completions of llama.cpp's form.
#[derive(Debug)]
pub(in crate::server) struct NativeAnswer {
    asked: Asked,
    fields: NativeFields,
    answers: Vec<Answer>,
}

/// What is known of an answer.
#[derive(Debug, Default)]
struct Answer {
    content: String,
    tokens: Vec<u32>,
    probabilities: Vec<Value>,
    cached_tokens: usize,
    times: Times,
    finish: Option<Finish>,
}

/// When an answer left the queue, and when its first and its last token came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub start: Option<Instant>,
    pub first: Option<Instant>,
    pub last: Option<Instant>,
}

impl Times {
    /// Another token has come.
    pub fn token(&mut self) {
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    /// Seconds for the prompt, and for the tokens after it.
    pub fn seconds(&self) -> (f64, f64) {
        let between = |from: Option<Instant>, to: Option<Instant>| {
            from.zip(to).map_or(0.0, |(from, to)| to.duration_since(from).as_secs_f64())
        };
        (between(self.start, self.first), between(self.first, self.last))
    }
}

impl NativeAnswer {
    pub fn new(asked: Asked, fields: NativeFields) -> Self {
        let answers = (0..asked.num_answers()).map(|_| Answer::default()).collect();
        NativeAnswer { asked, fields, answers }
    }

    /// The last object of an answer, and the only one where it is not streamed.
    fn last(&self, index: usize, is_stream: bool) -> Value {
        let prompt = self.asked.prompt(index);
        let answer = &self.answers[index];
        let NativeFields { model, options, stops, context } = &self.fields;
        let num_tokens = prompt.ids.len() + answer.tokens.len();
        let (stop_type, word) = match answer.finish {
            Some(Finish::StopString(stop)) => ("word", stops.get(stop).map_or("", |stop| stop)),
            Some(Finish::Stop | Finish::ToolCalls) => ("eos", ""),
            Some(Finish::Length) => ("limit", ""),
            None => ("none", ""),
        };
        let text = model.text();
        let prompt_text = text.map(|text| text.tokenizer.decode(&prompt.ids, false));
        let keeps_tokens = options.return_tokens && !is_stream;
        let mut body = json!({
            "index": index,
            "content": if is_stream { "" } else { &*answer.content },
            "tokens": if keeps_tokens { &answer.tokens[..] } else { &[] },
            // There are no places that a request keeps.
            "id_slot": -1,
            "stop": true,
            "model": self.asked.model,
            "tokens_predicted": answer.tokens.len(),
            "tokens_evaluated": prompt.ids.len(),
            "generation_settings": options.settings,
            "prompt": prompt_text,
            "has_new_line": answer.content.contains('\n'),
            "truncated": answer.finish == Some(Finish::Length) && num_tokens > *context,
            "stop_type": stop_type,
            "stopping_word": word,
            "tokens_cached": num_tokens - usize::from(!answer.tokens.is_empty()),
            "timings": self.timings(index),
        });
        if !is_stream && options.num_probs > 0 {
            body["completion_probabilities"] = answer.probabilities.clone().into();
        }
        match &options.response_fields {
            None => body,
            Some(fields) => chosen(&body, fields),
        }
    }

    fn timings(&self, index: usize) -> Value {
        let (answer, prompt_len) = (&self.answers[index], self.asked.prompt(index).ids.len());
        let (prompt, predicted) = answer.times.seconds();
        let num_prompt = prompt_len.saturating_sub(answer.cached_tokens);
        let num_predicted = answer.tokens.len();
        let per = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        // The first token is the prompt's: there is a step for each one after it.
        let num_steps = num_predicted.saturating_sub(1) as f64;
        json!({
            "cache_n": answer.cached_tokens,
            "prompt_n": num_prompt,
            "prompt_ms": 1e3 * prompt,
            "prompt_per_token_ms": per(1e3 * prompt, num_prompt as f64),
            "prompt_per_second": per(num_prompt as f64, prompt),
            "predicted_n": num_predicted,
            "predicted_ms": 1e3 * predicted,
            "predicted_per_token_ms": per(1e3 * predicted, num_steps),
            "predicted_per_second": per(num_steps, predicted),
        })
    }

    /// An object before the last one of a stream.
    fn partial(&self, index: usize, content: &str, token: Option<u32>) -> Value {
        let answer = &self.answers[index];
        let mut body = json!({
            "index": index,
            "content": content,
            "tokens": token.into_iter().collect::<Vec<_>>(),
            "stop": false,
            "id_slot": -1,
            "tokens_predicted": answer.tokens.len(),
            "tokens_evaluated": self.asked.prompt(index).ids.len(),
        });
        if self.fields.options.timings_per_token {
            body["timings"] = self.timings(index);
        }
        body
    }

    /// How much of the prompt is computed.
    fn progress(&self, index: usize, is_done: bool) -> Event {
        let (answer, total) = (&self.answers[index], self.asked.prompt(index).ids.len());
        let mut body = self.partial(index, "", None);
        body["prompt_progress"] = json!({
            "total": total,
            "cache": answer.cached_tokens,
            "processed": if is_done { total } else { answer.cached_tokens },
            "time_ms": 1e3 * answer.times.seconds().0,
        });
        data(&body)
    }

    fn text(&mut self, index: usize, text: &str, token: Option<Token>) -> Vec<Event> {
        let mut events = Vec::new();
        let answer = &mut self.answers[index];
        answer.content.push_str(text);
        let mut probabilities = None;
        if let Some(token) = &token {
            answer.times.token();
            answer.tokens.push(token.id);
            probabilities = token.logprobs.as_ref().map(|it| token_probabilities(&self.fields, it));
            answer.probabilities.extend(probabilities.clone());
            if self.fields.options.return_progress && answer.tokens.len() == 1 {
                events.push(self.progress(index, true));
            }
        }
        if token.is_some() || !text.is_empty() {
            let mut body = self.partial(index, text, token.map(|token| token.id));
            if let Some(probabilities) = probabilities {
                body["completion_probabilities"] = json!([probabilities]);
            }
            events.push(data(&body));
        }
        events
    }
}

impl Writer for NativeAnswer {
    type Item = Event;

    fn asked(&self) -> &Asked {
        &self.asked
    }

    async fn whole(mut self, parts: mpsc::Receiver<Part>) -> Result<Value, ApiError> {
        drain(&mut self, parts).await?;
        let mut all = (0..self.answers.len()).map(|index| self.last(index, false));
        Ok(match self.answers.len() {
            1 => all.next().unwrap_or_default(),
            _ => all.collect(),
        })
    }

    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn part(&mut self, index: usize, kind: PartKind) -> Vec<Event> {
        match kind {
            PartKind::Started { cached_tokens } => {
                self.answers[index].cached_tokens = cached_tokens;
                self.answers[index].times.start = Some(Instant::now());
                match self.fields.options.return_progress {
                    true => vec![self.progress(index, false)],
                    false => Vec::new(),
                }
            }
            PartKind::Text { text, token } | PartKind::Reasoning { text, token } => {
                self.text(index, &text, token)
            }
            PartKind::Finished(finish) => {
                self.answers[index].finish = Some(finish);
                vec![data(&self.last(index, true))]
            }
            // Nobody asks for them here.
            PartKind::Prompt(_)
            | PartKind::CallBegin { .. }
            | PartKind::CallArguments { .. }
            | PartKind::Warning(_)
            | PartKind::Failed(_) => Vec::new(),
        }
    }

    fn end(&mut self, _: Usage) -> Vec<Event> {
        Vec::new()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        vec![data(&error.to_json())]
    }
}

fn data(body: &Value) -> Event {
    Event::default().data(body.to_string())
}

/// The fields of `body` at `paths`, such as `timings/prompt_n`, under their paths.
fn chosen(body: &Value, paths: &[String]) -> Value {
    let mut chosen = Map::new();
    for path in paths {
        if let Some(found) = path.split('/').try_fold(body, |value, name| value.get(name)) {
            chosen.insert(path.clone(), found.clone());
        }
    }
    chosen.into()
}

fn token_probabilities(fields: &NativeFields, logprobs: &Logprobs) -> Value {
    let spelt = |token: u32, logprob: f32| {
        let text = fields.model.text();
        let bytes = text.and_then(|text| text.tokenizer.token_bytes(token));
        let bytes = bytes.map_or_else(Vec::new, |(bytes, _)| bytes);
        json!({
            "id": token,
            "token": String::from_utf8_lossy(&bytes),
            "bytes": bytes,
            "logprob": logprob.max(LEAST),
        })
    };
    let mut own = spelt(logprobs.token, logprobs.logprob);
    let top = logprobs.top.iter().map(|&(token, logprob)| spelt(token, logprob));
    own["top_logprobs"] = top.collect();
    own
}
