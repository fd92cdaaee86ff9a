//! One answer: its tokens from the engine, its text to whoever collects or streams it.

use super::error::ApiError;
use super::lines::{LineLimits, Lines};
use super::metrics::ModelMetrics;
use super::tools::AnswerRules;
use crate::Model;
use crate::engine::{FinishReason, Logprobs, RequestEvent, RequestStream};
use crate::grammar::Grammar;
use crate::text::TextStream;
use crate::text::answer::{AnswerReader, Piece};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Parts of an answer that wait for a reader.
pub(super) const MAX_PARTS: usize = 64;

/// Something new about one of the answers to a request.
#[derive(Debug)]
pub(super) struct Part {
    /// Which answer.
    pub index: usize,
    pub kind: PartKind,
}

#[derive(Debug)]
pub(super) enum PartKind {
    /// Leading tokens of the prompt that were in the cache.
    Started { cached_tokens: usize },
    /// The tokens of the prompt, whose log-probabilities are asked for; the first has none.
    Prompt(Vec<Token>),
    /// A token and the text that it completes; text that was held back has none.
    Text { text: String, token: Option<Token> },
    /// A text of the reasoning before the answer.
    Reasoning { text: String, token: Option<Token> },
    /// Call number `call` of a tool begins.
    CallBegin { call: usize, id: String, name: String },
    /// More of the JSON of its arguments.
    CallArguments { call: usize, json: String },
    /// What the answer that ends now breaks of its schema.
    Warning(String),
    /// The last part.
    Finished(Finish),
    /// The last part of all answers.
    Failed(ApiError),
}

/// A token of an answer or of its prompt.
#[derive(Debug)]
pub(super) struct Token {
    pub id: u32,
    /// What is asked for of it.
    pub logprobs: Option<Logprobs>,
    /// Characters of the text before it; 0 where no log-probabilities are asked for.
    pub offset: usize,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finish {
    /// A stop token.
    Stop,
    /// The stop string of this number.
    StopString(usize),
    /// The limit of tokens, or the end of the context.
    Length,
    /// After a call of a tool.
    ToolCalls,
}

impl Finish {
    /// OpenAI's name.
    pub fn name(self) -> &'static str {
        match self {
            Finish::Stop | Finish::StopString(_) => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// An answer in progress.
pub(super) struct Choice {
    pub index: usize,
    pub stream: RequestStream,
    pub model: Arc<Model>,
    pub metrics: Arc<ModelMetrics>,
    pub stop: Vec<String>,
    /// How it is taken apart; text alone if not.
    pub rules: Option<Arc<AnswerRules>>,
    /// Whether the text continues that of the prompt.
    pub continues: bool,
    /// Whether log-probabilities are asked for.
    pub logprobs: bool,
    /// What the answer obeys.
    pub grammar: Option<Arc<Grammar>>,
    /// Limits of its lines.
    pub lines: Option<LineLimits>,
    /// The prompt, if its own are.
    pub scored_prompt: Option<Vec<u32>>,
    /// How long a reader may take for a part.
    pub write_timeout: Duration,
}

/// The reader has gone, or is too slow.
struct Left;

impl Choice {
    /// Sends the answer to `parts` until it ends or nobody listens: then the engine's request is cancelled.
    pub async fn run(self, parts: mpsc::Sender<Part>) {
        let (start, metrics) = (Instant::now(), Arc::clone(&self.metrics));
        let ended = tokio::select! {
            biased;
            ended = self.send(&parts, start) => ended,
            () = parts.closed() => Err(Left),
        };
        metrics.request_latency.observe(start.elapsed().as_secs_f64());
        metrics.finished(match ended {
            Ok(Some(finish)) => finish.name(),
            Ok(None) => "error",
            Err(Left) => "abort",
        });
    }

    /// Why it ended; `None` if it failed.
    async fn send(
        mut self,
        parts: &mpsc::Sender<Part>,
        start: Instant,
    ) -> Result<Option<Finish>, Left> {
        let (index, write_timeout) = (self.index, self.write_timeout);
        let send = async |kind| match timeout(write_timeout, parts.send(Part { index, kind })).await
        {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Left),
        };
        let mut text = self.model.text().map(|text| {
            let stream = match (self.continues, &self.rules) {
                (true, _) => TextStream::continuing(&text.tokenizer),
                (false, None) => TextStream::new(&text.tokenizer),
                (false, Some(rules)) => {
                    TextStream::keeping(&text.tokenizer, rules.kept_tokens.clone())
                }
            };
            stream.until(self.stop.iter().cloned())
        });
        let mut reader = self.rules.as_ref().map(|rules| rules.reader());
        let stops = self.rules.as_ref().map_or(&[][..], |rules| &rules.stop_tokens);
        let mut last_token: Option<Instant> = None;
        let mut texts = Offsets::new(&self.model, self.logprobs, self.scored_prompt.is_none());
        let (mut of_prompt, mut of_token) = (Vec::new(), None);
        let mut lines = self.lines.map(Lines::new);
        let mut is_cut = false;
        let mut said = Said { grammar: self.grammar, text: String::new() };
        let reason = loop {
            let event = self.stream.next().await;
            if let Some(RequestEvent::Token(_) | RequestEvent::Finished(_)) = event
                && let Some(prompt) = self.scored_prompt.take()
            {
                let of_each = iter::once(None).chain(of_prompt.drain(..).map(Some));
                let tokens = prompt.into_iter().zip(of_each);
                let tokens = tokens.map(|(id, logprobs)| texts.place(id, logprobs)).collect();
                send(PartKind::Prompt(tokens)).await?;
            }
            match event {
                Some(RequestEvent::Started { cached_tokens }) => {
                    send(PartKind::Started { cached_tokens }).await?;
                }
                Some(RequestEvent::PromptLogprobs(logprobs)) => of_prompt.extend(logprobs),
                Some(RequestEvent::Logprobs(logprobs)) => of_token = Some(logprobs),
                // Nobody asks for one here.
                Some(RequestEvent::Embedding(_)) => {}
                Some(RequestEvent::Token(token)) => {
                    match last_token.replace(Instant::now()) {
                        Some(last) => &self.metrics.inter_token_latency.observe(seconds(last)),
                        None => &self.metrics.time_to_first_token.observe(seconds(start)),
                    };
                    let is_end =
                        self.model.stop_tokens().contains(&token) || stops.contains(&token);
                    let is_end = is_end && reader.is_some();
                    let open = text.as_mut().filter(|_| !is_end);
                    let mut part = open.map_or_else(String::new, |text| text.push(token));
                    if let Some(lines) = &mut lines {
                        (part, is_cut) = lines.take(part);
                    }
                    for kind in
                        parts_of(&mut reader, part, Some(texts.place(token, of_token.take())))
                    {
                        said.hear(&kind);
                        send(kind).await?;
                    }
                    if text.as_ref().is_some_and(TextStream::is_stopped)
                        || reader.as_ref().is_some_and(AnswerReader::is_done)
                    {
                        break FinishReason::StopToken;
                    }
                    if is_cut {
                        break FinishReason::Length;
                    }
                }
                Some(RequestEvent::Finished(reason)) => break reason,
                Some(RequestEvent::Failed(error)) => {
                    send(PartKind::Failed((&*error).into())).await?;
                    return Ok(None);
                }
                None => return Ok(None),
            }
        };
        drop(self.stream);
        let stopped_by = text.as_ref().and_then(TextStream::stopped_by);
        let stopped_by = stopped_by.and_then(|by| self.stop.iter().position(|stop| stop == by));
        let finish = match reason {
            FinishReason::StopToken => stopped_by.map_or(Finish::Stop, Finish::StopString),
            FinishReason::Length | FinishReason::ContextFull => Finish::Length,
            FinishReason::Cancelled => {
                let error = ApiError::unavailable("the server is shutting down");
                send(PartKind::Failed(error)).await?;
                return Ok(None);
            }
        };
        let rest = text.filter(|_| !is_cut).map_or_else(String::new, TextStream::finish);
        let mut parts = parts_of(&mut reader, rest, None);
        if let Some(reader) = &mut reader {
            parts.extend(reader.finish().into_iter().map(PartKind::from));
        }
        for kind in parts {
            said.hear(&kind);
            send(kind).await?;
        }
        let is_named = self.rules.as_ref().is_some_and(|rules| rules.is_named);
        let has_calls = !is_named && reader.is_some_and(|reader| reader.has_calls());
        let finish = match finish {
            Finish::Stop | Finish::StopString(_) if has_calls => Finish::ToolCalls,
            finish => finish,
        };
        for violation in said.violations(finish) {
            send(PartKind::Warning(violation)).await?;
        }
        send(PartKind::Finished(finish)).await?;
        Ok(Some(finish))
    }
}

/// What an answer has said, where it has to obey a grammar.
struct Said {
    grammar: Option<Arc<Grammar>>,
    text: String,
}

impl Said {
    fn hear(&mut self, kind: &PartKind) {
        if let (Some(_), PartKind::Text { text, .. }) = (&self.grammar, kind) {
            self.text.push_str(text);
        }
    }

    /// What it breaks of its schema. Where it is cut off it is not of it, which its end says.
    fn violations(&self, finish: Finish) -> Vec<String> {
        let grammar = self.grammar.as_ref().filter(|_| finish == Finish::Stop);
        grammar.map_or_else(Vec::new, |grammar| grammar.violations(&self.text))
    }
}

impl From<Piece> for PartKind {
    fn from(piece: Piece) -> Self {
        match piece {
            Piece::Text(text) => PartKind::Text { text, token: None },
            Piece::Reasoning(text) => PartKind::Reasoning { text, token: None },
            Piece::CallBegin { index: call, id, name } => PartKind::CallBegin { call, id, name },
            Piece::CallArguments { index: call, json } => PartKind::CallArguments { call, json },
        }
    }
}

/// Where tokens are in the text.
struct Offsets<'a> {
    /// The text up to here, if anybody wants to know.
    text: Option<TextStream<'a>>,
    num_chars: usize,
}

impl<'a> Offsets<'a> {
    /// Offsets in a text that `continues` that of the prompt, or begins with it.
    fn new(model: &'a Model, are_wanted: bool, continues: bool) -> Self {
        let text = model.text().filter(|_| are_wanted).map(|text| match continues {
            true => TextStream::continuing(&text.tokenizer),
            false => TextStream::new(&text.tokenizer),
        });
        Offsets { text, num_chars: 0 }
    }

    /// The token that comes next.
    fn place(&mut self, id: u32, logprobs: Option<Logprobs>) -> Token {
        let offset = self.num_chars;
        if let Some(text) = &mut self.text {
            self.num_chars += text.push(id).chars().count();
        }
        Token { id, logprobs, offset }
    }
}

/// The parts that `text` brings: without a reader one.
fn parts_of(
    reader: &mut Option<AnswerReader>,
    text: String,
    token: Option<Token>,
) -> Vec<PartKind> {
    let Some(reader) = reader else { return vec![PartKind::Text { text, token }] };
    let was_reasoning = reader.is_reasoning();
    let pieces = reader.push(&text);
    let text = String::new();
    let token = match token {
        None => None,
        // The marks of the reasoning are tokens of it.
        token if was_reasoning || reader.is_reasoning() => {
            Some(PartKind::Reasoning { text, token })
        }
        token => Some(PartKind::Text { text, token }),
    };
    token.into_iter().chain(pieces.into_iter().map(PartKind::from)).collect()
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::super::fields::Fields;
    use super::super::metrics::Metrics;
    use super::super::tools::Tools;
    use super::*;
    use crate::GrammarCompiler;
    use crate::engine::{Engine, EngineOptions, EngineService, Request, ServiceOptions};
    use crate::exec::Device;
    use crate::text::answer::Reasoning;
    use std::sync::OnceLock;

    #[test]
    fn a_reader_that_does_not_read_loses_its_request() {
        let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
        let model = Arc::new(Model::open(golden).unwrap());
        let of_engine = Arc::clone(&model);
        let open = move || {
            Engine::new(of_engine, EngineOptions { device: Device::Cpu, ..Default::default() })
        };
        let service = EngineService::start(ServiceOptions::default(), open).unwrap();
        let request = Request { prompt: vec![1], max_new_tokens: Some(500), ..Default::default() };
        let stream = service.handle().submit(request).unwrap();
        let all = Metrics::default();
        let metrics = Arc::new(all.model("tiny", Arc::new(OnceLock::new())));
        let choice = Choice {
            index: 0,
            stream,
            model,
            metrics: Arc::clone(&metrics),
            stop: Vec::new(),
            rules: None,
            continues: true,
            logprobs: false,
            grammar: None,
            lines: None,
            scored_prompt: None,
            write_timeout: Duration::ZERO,
        };
        let (sender, mut parts) = mpsc::channel(2);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(choice.run(sender));
        let metrics = all.encode().unwrap();
        let aborted = metrics.lines().find(|line| line.contains("\"abort\""));
        assert!(aborted.is_some_and(|line| line.ends_with(" 1")), "{metrics}");
        // Only what there was room for.
        let mut kinds = std::iter::from_fn(|| parts.try_recv().ok().map(|part| part.kind));
        assert!(matches!(kinds.next(), Some(PartKind::Started { cached_tokens: 0 })));
        assert!(matches!(kinds.next(), Some(PartKind::Text { token: Some(_), .. })));
        assert!(kinds.next().is_none());
        service.shutdown();
    }

    /// A model that has to write a call.
    #[test]
    fn a_call_in_the_text_is_a_part_of_its_own() {
        let model = Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it");
        let model = Arc::new(model);
        let text = model.text().unwrap();
        let tools = r#"{"tools": [{"type": "function", "function": {"name": "f"}}]}"#;
        let tools = Tools::take(&mut Fields::parse(tools.as_bytes()).unwrap()).unwrap();
        let rules = tools.rules(text, "", &Reasoning::Auto).unwrap();
        let vocab_size = model.config().vocab_size;
        let compiler = GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens);
        let grammar = compiler
            .unwrap()
            .regex(r#"Wait\. <tool_call>\{"name": "f", "arguments": \{"x": [0-9]\}\}</tool_call>"#);
        let request = Request {
            constraint: Some(Arc::new(grammar.unwrap())),
            ..model.request(text.tokenizer.encode("x", false).unwrap())
        };
        let of_engine = Arc::clone(&model);
        let options =
            EngineOptions { device: Device::Cpu, context: Some(64), ..Default::default() };
        let service = EngineService::start(ServiceOptions::default(), move || {
            Engine::new(of_engine, options)
        });
        let service = service.unwrap();
        let choice = Choice {
            index: 0,
            stream: service.handle().submit(request).unwrap(),
            model,
            metrics: Arc::new(Metrics::default().model("tiny", Arc::new(OnceLock::new()))),
            stop: Vec::new(),
            rules: Some(rules),
            continues: false,
            logprobs: false,
            grammar: None,
            lines: None,
            scored_prompt: None,
            write_timeout: Duration::from_secs(10),
        };
        let (sender, mut parts) = mpsc::channel(1000);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(choice.run(sender));
        let (mut text, mut calls, mut finish) = (String::new(), Vec::new(), None);
        while let Ok(Part { kind, .. }) = parts.try_recv() {
            match kind {
                PartKind::Started { .. } => {}
                PartKind::Text { text: part, .. } => text += &part,
                PartKind::CallBegin { name, .. } => calls.push((name, String::new())),
                PartKind::CallArguments { call, json } => calls[call].1 += &json,
                PartKind::Reasoning { text, .. } => panic!("no reasoning: {text}"),
                PartKind::Finished(end) => finish = Some(end),
                PartKind::Failed(error) => panic!("{error:?}"),
                PartKind::Prompt(_) | PartKind::Warning(_) => panic!("nobody asked for it"),
            }
        }
        assert_eq!((text.as_str(), finish), ("Wait. ", Some(Finish::ToolCalls)));
        assert_eq!(calls.len(), 1);
        assert!(calls[0].0 == "f" && calls[0].1.starts_with("{\"x\":"), "{calls:?}");
        service.shutdown();
    }
}
