//! A client of the frontend: chats, whole and streamed.

use super::cluster::MODEL;
use crate::tools::http;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines};

const CHAT: &str = "/v1/chat/completions";

/// A conversation.
pub struct Chat {
    messages: Vec<Value>,
}

impl Chat {
    /// `num_sentences` about a subject, with which no other conversation begins.
    pub fn about(subject: &str, num_sentences: usize) -> Self {
        let system = format!("{subject}: a tale");
        let sentence = |number| format!("The {subject} sees {number} stars.");
        let tale: Vec<String> = (0..num_sentences).map(sentence).collect();
        let message = |role, content| json!({"role": role, "content": content});
        Chat { messages: vec![message("system", system), message("user", tale.join(" "))] }
    }

    /// The answer, and the next message.
    pub fn go_on(&mut self, answer: &str) {
        self.messages.push(json!({"role": "assistant", "content": answer}));
        self.messages.push(json!({"role": "user", "content": "Go on."}));
    }

    /// Greedy, and of exactly `max_tokens` tokens.
    fn body(&self, max_tokens: usize) -> Value {
        json!({
            "model": MODEL, "messages": self.messages, "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": true, "nvext": {"extra_fields": ["worker_id"]},
        })
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub text: String,
    pub usage: Usage,
    /// Dynamo's number of the worker that gave it.
    pub worker_id: u64,
}

/// What an answer has taken.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

impl Usage {
    fn of(answer: &Value) -> Result<Self> {
        let count = |name: &str| {
            let count = answer["usage"][name].as_u64().with_context(|| format!("no {name}"))?;
            Ok::<_, anyhow::Error>(usize::try_from(count)?)
        };
        Ok(Usage {
            prompt_tokens: count("prompt_tokens")?,
            completion_tokens: count("completion_tokens")?,
        })
    }
}

/// A client of the frontend at 127.0.0.1.
pub struct Client(http::Client);

impl Client {
    /// Client of the frontend at `port`.
    pub fn new(port: u16) -> Self {
        Client(http::Client::new(&format!("127.0.0.1:{port}")))
    }

    /// Workers that the frontend has found for the model.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn num_workers(&self) -> Result<usize> {
        let get = |path| -> Result<Value> { Ok(serde_json::from_slice(&self.0.get(path)?.body)?) };
        let models = get("/v1/models")?;
        let models = models["data"].as_array().context("no models")?;
        ensure!(models.iter().any(|model| model["id"] == MODEL), "the model is not there yet");
        let health = get("/health")?;
        let instances = health["instances"].as_array().context("no instances")?;
        Ok(instances.iter().filter(|instance| instance["endpoint"] == "generate").count())
    }

    /// An answer.
    ///
    /// # Errors
    /// If there is none.
    pub fn complete(&self, chat: &Chat, max_tokens: usize) -> Result<Answer> {
        let body = self.post(&chat.body(max_tokens))?;
        let answer: Value = serde_json::from_reader(body)?;
        let text = answer["choices"][0]["message"]["content"].as_str();
        let text = text.with_context(|| format!("no answer: {answer}"))?;
        let worker_id = answer["nvext"]["worker_id"]["decode_worker_id"].as_u64();
        let worker_id = worker_id.with_context(|| format!("no worker: {answer}"))?;
        Ok(Answer { text: text.to_owned(), usage: Usage::of(&answer)?, worker_id })
    }

    /// An answer that comes token by token.
    ///
    /// # Errors
    /// If none begins.
    pub fn stream(&self, chat: &Chat, max_tokens: usize) -> Result<Stream> {
        let mut body = chat.body(max_tokens);
        body["stream"] = true.into();
        // After each token, so that tokens without a text are counted too.
        body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        let lines = self.post(&body)?.lines();
        Ok(Stream { lines, tokens: 0, finish_reason: String::new() })
    }

    fn post(&self, body: &Value) -> Result<BufReader<ureq::BodyReader<'static>>> {
        let response = self.0.send(CHAT, body)?;
        let (status, body) = (response.status(), response.into_body());
        if !status.is_success() {
            bail!("{status}: {}", body.into_with_config().read_to_string()?);
        }
        Ok(BufReader::new(body.into_reader()))
    }
}

/// An answer that comes token by token.
pub struct Stream {
    lines: Lines<BufReader<ureq::BodyReader<'static>>>,
    tokens: usize,
    finish_reason: String,
}

/// How a stream ended.
pub struct End {
    pub finish_reason: String,
    pub usage: Usage,
}

impl Stream {
    /// Tokens that have come.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Reads until so many tokens have come.
    ///
    /// # Errors
    /// If the stream ends before, or fails.
    pub fn read_tokens(&mut self, num_tokens: usize) -> Result<()> {
        while self.tokens < num_tokens {
            self.next()?.context("the stream ended before its worker was killed")?;
        }
        Ok(())
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// If the stream fails, or has no usage.
    pub fn read_to_end(mut self) -> Result<End> {
        let mut last = None;
        while let Some(event) = self.next()? {
            last = Some(event);
        }
        let usage = Usage::of(&last.context("the stream has no end")?)?;
        Ok(End { finish_reason: self.finish_reason, usage })
    }

    /// The next event; `None` at the end.
    fn next(&mut self) -> Result<Option<Value>> {
        for line in self.lines.by_ref() {
            let line = line?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return Ok(None);
            }
            let event: Value = serde_json::from_str(data).with_context(|| data.to_owned())?;
            ensure!(event["error"].is_null(), "the stream failed: {event}");
            if let Ok(usage) = Usage::of(&event) {
                self.tokens = usage.completion_tokens;
            }
            if let Some(reason) = event["choices"][0]["finish_reason"].as_str() {
                reason.clone_into(&mut self.finish_reason);
            }
            return Ok(Some(event));
        }
        bail!("the stream was cut")
    }
}
