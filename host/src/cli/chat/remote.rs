//! A chat with a server that runs: OpenAI's `/v1/chat/completions`, as it streams.

use super::{ChatArgs, Partner, conversation::Conversation, note_stopped};
use crate::cli::{
    failure::Failure,
    interrupt,
    session::Said,
    terminal::{self, Thoughts},
};
use halfwarp::Message;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;
use ureq::{Agent, http::Response};

/// How often Ctrl-C is looked for while nothing comes.
const PAUSE: Duration = Duration::from_millis(20);
/// Lines that wait to be read.
const MAX_LINES: usize = 64;
/// Bytes of a line at most: a piece of an answer is short.
const MAX_LINE_BYTES: u64 = 1 << 20;

/// The arguments of a chat with a server.
#[derive(clap::Args)]
#[command(next_help_heading = "Server")]
pub struct RemoteArgs {
    /// Talk with a model of the server at this address, such as http://127.0.0.1:8080; -m is the
    /// name that it has there
    #[arg(long, value_name = "URL", conflicts_with_all = LOCAL)]
    pub url: Option<String>,
    /// Key of the server
    #[arg(
        long,
        value_name = "KEY",
        env = "HALFWARP_API_KEY",
        hide_env_values = true,
        requires = "url"
    )]
    api_key: Option<String>,
}

/// Arguments of a model in this process.
const LOCAL: [&str; 20] = [
    "hf",
    "context",
    "device",
    "threads",
    "dtype",
    "cache_type_k",
    "cache_type_v",
    "kv_cache_dtype",
    "tensor_parallel_size",
    "collectives",
    "gemm",
    "accumulate",
    "target",
    "batch_invariant",
    "fusion",
    "attention",
    "chat_template",
    "chat_template_file",
    "parse_special_in_content",
    "reasoning_parser",
];

/// A model of a server and what was said with it.
pub struct Remote<'a> {
    args: &'a ChatArgs,
    agent: Agent,
    base: String,
    model: Option<String>,
    conversation: Conversation,
}

/// What an answer is made of.
#[derive(Debug, PartialEq)]
enum Piece {
    Text(String),
    Reasoning(String),
    /// Why it ends.
    Reason(String),
    Done,
    Failed(String),
}

/// How an answer ended.
enum End {
    Done,
    /// It was cut off at a limit.
    Length,
    Interrupted,
    Failed(String),
}

impl<'a> Remote<'a> {
    /// Finds the server.
    ///
    /// # Errors
    /// [`Failure::Input`] for what is no address, [`Failure::Environment`] for a server that does
    /// not answer.
    pub fn open(args: &'a ChatArgs, url: &str) -> Result<Self, Failure> {
        if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(Failure::Input(format!(
                "--url {url}: it has to begin with http:// or https://, such as http://127.0.0.1:8080"
            )));
        }
        let base = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(hub::tls_config());
        let agent = Agent::from(config.build());
        let model = args.engine.given_name();
        let conversation = Conversation::new(args.system.as_deref());
        let mut remote = Remote { args, agent, base, model, conversation };
        let models = remote.models()?;
        if remote.model.is_none() && models.len() == 1 {
            remote.model = models.into_iter().next();
        }
        match &remote.model {
            Some(model) => terminal::note(format_args!("{model} at {}", remote.base)),
            None => terminal::note(format_args!("the default model of {}", remote.base)),
        }
        Ok(remote)
    }

    /// The models that the server names.
    fn models(&self) -> Result<Vec<String>, Failure> {
        let request = self.agent.get(format!("{}/v1/models", self.base));
        let request = match self.key() {
            Some(key) => request.header("Authorization", key),
            None => request,
        };
        let response = request.call().map_err(|error| self.unreachable(&error))?;
        let list = json_of(response).map_err(|(_, what)| Failure::Input(what))?;
        let ids = list["data"].as_array().into_iter().flatten();
        Ok(ids.filter_map(|model| Some(model["id"].as_str()?.to_owned())).collect())
    }

    fn key(&self) -> Option<String> {
        self.args.remote.api_key.as_ref().map(|key| format!("Bearer {key}"))
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        Failure::Environment(format!("{} does not answer: {error}", self.base))
    }

    fn body(&self) -> Value {
        let mut body = Value::Object(self.args.sampling.fields());
        body["messages"] = self.conversation.messages().iter().map(message).collect();
        body["stream"] = true.into();
        if let Some(model) = &self.model {
            body["model"] = model.clone().into();
        }
        let variables = self.args.template.variables();
        if !variables.is_empty() {
            body["chat_template_kwargs"] = variables.into();
        }
        body
    }

    /// Sends the question. A server whose context is full is asked again without the oldest turns.
    fn send(&mut self) -> Result<Response<ureq::Body>, Failure> {
        loop {
            let mut request = self.agent.post(format!("{}/v1/chat/completions", self.base));
            request = request.header("Content-Type", "application/json");
            if let Some(key) = self.key() {
                request = request.header("Authorization", key);
            }
            let response = request.send(self.body().to_string().as_bytes());
            let response = response.map_err(|error| self.unreachable(&error))?;
            if response.status().is_success() {
                return Ok(response);
            }
            let (code, what) = match json_of(response) {
                Err(refused) => refused,
                Ok(_) => return Err(Failure::Input("the server answers with nothing".to_owned())),
            };
            let is_full = code.as_deref() == Some("context_length_exceeded");
            if !is_full || !self.forget() {
                return Err(Failure::Input(what));
            }
        }
    }

    /// Forgets the older half of the conversation; `false` where there is only the last question.
    fn forget(&mut self) -> bool {
        let half = self.conversation.messages().len() / 2;
        let len = |messages: &[Message]| Ok::<_, Failure>(messages.len());
        match self.conversation.drop_oldest(half.max(1), len) {
            Ok(num_dropped @ 1..) => {
                terminal::note(format_args!(
                    "the context of the server is full: forgot the oldest {num_dropped} of the questions and \
                     their answers"
                ));
                true
            }
            _ => false,
        }
    }
}

impl Partner for Remote<'_> {
    fn conversation(&mut self) -> &mut Conversation {
        &mut self.conversation
    }

    fn answer(&mut self) -> Result<(), Failure> {
        let response = self.send()?;
        let (mut text, mut reasoning) = (String::new(), String::new());
        let mut thoughts = Thoughts::new();
        let end = interrupt::polled(|| {
            read(response, |piece| {
                let said = match piece {
                    Piece::Text(piece) => {
                        text += piece;
                        Said::Text(piece)
                    }
                    Piece::Reasoning(piece) => {
                        reasoning += piece;
                        Said::Reasoning(piece)
                    }
                    Piece::Reason(_) | Piece::Done | Piece::Failed(_) => return Ok(()),
                };
                said.print(&mut thoughts)
            })
        })?;
        terminal::print("\n")?;
        match end {
            End::Interrupted if text.is_empty() && reasoning.is_empty() => {
                note_stopped();
                return Ok(());
            }
            End::Length => terminal::note("the answer was cut off at a limit of tokens"),
            End::Failed(what) => return Err(Failure::Input(what)),
            End::Done | End::Interrupted => {}
        }
        self.conversation.answer(&text, &reasoning);
        Ok(())
    }
}

/// Reads the events of an answer up to its end or Ctrl-C.
fn read(
    response: Response<ureq::Body>,
    mut output: impl FnMut(&Piece) -> Result<(), Failure>,
) -> Result<End, Failure> {
    let (sender, pieces) = mpsc::sync_channel(MAX_LINES);
    // The connection ends with the thread: when something comes that nobody waits for any more.
    let listen = move || {
        let mut reader = BufReader::new(response.into_body().into_reader());
        while let Some(line) = next_line(&mut reader) {
            let pieces = match line.strip_prefix("data:") {
                Some(data) => pieces_of(data.trim()),
                // A comment: is anybody there?
                None => vec![Piece::Text(String::new())],
            };
            if pieces.into_iter().any(|piece| sender.send(piece).is_err()) {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("answer".to_owned()).spawn(listen);
    thread.map_err(|error| Failure::Environment(format!("cannot start a thread: {error}")))?;
    let mut reason = None;
    loop {
        if interrupt::requested() {
            return Ok(End::Interrupted);
        }
        match pieces.recv_timeout(PAUSE) {
            Ok(Piece::Failed(what)) => return Ok(End::Failed(what)),
            Ok(Piece::Done) => break,
            Ok(Piece::Reason(why)) => reason = Some(why),
            Ok(piece) => output(&piece)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if reason.is_some() => break,
            Err(RecvTimeoutError::Disconnected) => {
                let what = "the connection ended before the answer did: /regenerate asks again";
                return Ok(End::Failed(what.to_owned()));
            }
        }
    }
    Ok(if reason.as_deref() == Some("length") { End::Length } else { End::Done })
}

/// The next line; `None` at the end, for what is no text, and for one that is too long.
fn next_line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    reader.take(MAX_LINE_BYTES).read_until(b'\n', &mut line).ok()?;
    line.pop().filter(|&last| last == b'\n').and_then(|_| String::from_utf8(line).ok())
}

/// What an event says.
fn pieces_of(data: &str) -> Vec<Piece> {
    if data == "[DONE]" {
        return vec![Piece::Done];
    }
    let Ok(chunk) = serde_json::from_str::<Value>(data) else {
        return vec![Piece::Failed("the server sends what is no JSON".to_owned())];
    };
    if let Some(what) = chunk["error"]["message"].as_str() {
        return vec![Piece::Failed(what.to_owned())];
    }
    let choice = &chunk["choices"][0];
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    // vLLM's newer name beside DeepSeek's.
    let reasoning =
        ["reasoning_content", "reasoning"].iter().find_map(|name| text(&choice["delta"][name]));
    let pieces = [
        reasoning.map(Piece::Reasoning),
        text(&choice["delta"]["content"]).map(Piece::Text),
        text(&choice["finish_reason"]).map(Piece::Reason),
    ];
    pieces.into_iter().flatten().collect()
}

/// A message as OpenAI has it.
fn message(message: &Message) -> Value {
    let mut body = message.fields.clone();
    body.insert("role".to_owned(), message.role.clone().into());
    body.insert("content".to_owned(), message.content.text().into());
    body.into()
}

/// The body of a response, or the code and the message of its error.
fn json_of(response: Response<ureq::Body>) -> Result<Value, (Option<String>, String)> {
    let status = response.status();
    let text = response.into_body().read_to_string().unwrap_or_default();
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    if status.is_success() {
        return Ok(body);
    }
    let error = &body["error"];
    let message = error["message"].as_str().unwrap_or("it does not say why");
    let hint = if status == 401 { " (--api-key)" } else { "" };
    let what = format!("the server answers with {}: {message}{hint}", status.as_u16());
    Err((error["code"].as_str().map(str::to_owned), what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_texts_reasons_and_failures() {
        for (data, wanted) in [
            ("[DONE]", vec![Piece::Done]),
            (r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#, vec![]),
            (r#"{"choices":[{"delta":{"content":"Hi"}}]}"#, vec![Piece::Text("Hi".to_owned())]),
            (
                r#"{"choices":[{"delta":{"content":"!"},"finish_reason":"stop"}]}"#,
                vec![Piece::Text("!".to_owned()), Piece::Reason("stop".to_owned())],
            ),
            (
                r#"{"choices":[{"delta":{"reasoning_content":"Hm"}}]}"#,
                vec![Piece::Reasoning("Hm".to_owned())],
            ),
            (r#"{"choices":[],"usage":{}}"#, vec![]),
            (r#"{"error":{"message":"full"}}"#, vec![Piece::Failed("full".to_owned())]),
        ] {
            assert_eq!(pieces_of(data), wanted, "{data}");
        }
        assert!(matches!(&pieces_of("<html>")[..], [Piece::Failed(_)]));
    }

    #[test]
    fn lines_are_bounded() {
        let long = [&[b'x'; 2 << 20][..], b"\nshort\n"].concat();
        assert_eq!(next_line(&mut &long[..]), None);
        let mut lines = &b"one\n\xff\n"[..];
        assert_eq!(next_line(&mut lines).as_deref(), Some("one"));
        assert_eq!(next_line(&mut lines), None);
        assert_eq!(next_line(&mut &b"no end"[..]), None);
    }
}
