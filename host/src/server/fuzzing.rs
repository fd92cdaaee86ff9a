//! What fuzzing reaches of the server: bodies of requests, and calls in answers, without an engine or a connection.

use super::app::App;
use super::common::Common;
use super::embeddings;
use super::request::{
    ChatRequest, CompletionRequest, InfillRequest, MessagesRequest, NativeRequest, OllamaEmbed,
    OllamaRequest, ResponseRequest,
};
use super::scores;
use super::tokens;
use super::{ModelSettings, ServerOptions};
use crate::Model;
use crate::text::ChatTemplate;
use crate::text::answer::{AnswerFormat, AnswerReader, Piece, ReaderOptions, Reasoning};
use serde_json::json;
use std::sync::Arc;

/// The parsers of a server.
pub struct Parsers(App);

impl Parsers {
    /// For a model with a tokenizer and a chat template.
    ///
    /// # Panics
    /// If the system has no thread left.
    pub fn new(model: Arc<Model>) -> Self {
        let common = Common::new(ServerOptions::default(), false).expect("a thread");
        Parsers(App::new(&Arc::new(common), model, ModelSettings::default()))
    }

    /// Whether each path would take `body`.
    pub fn take(&self, body: &[u8]) -> [bool; 14] {
        let Parsers(app) = self;
        let chat = ChatRequest::parse(body, &app.model).and_then(|request| {
            let prompt = request.conversation.prompt(app)?;
            let tools = &request.conversation.tools;
            tools.form(app.text()?, prompt.text(), &Reasoning::Auto);
            tools.optional(app.text()?, prompt.text(), &Reasoning::Auto);
            request.conversation.encode(app, &prompt)
        });
        let response = ResponseRequest::parse(body, &app.model, &app.common.store)
            .and_then(|request| request.conversation.prompt(app));
        let messages = MessagesRequest::parse(body, &app.model)
            .and_then(|request| request.conversation.prompt(app));
        [
            chat.is_ok(),
            CompletionRequest::parse(body, &app.model).is_ok(),
            response.is_ok(),
            messages.is_ok(),
            embeddings::parse(app, body).is_ok(),
            scores::parse_rerank(app, body).is_ok(),
            scores::parse_score(app, body).is_ok(),
            tokens::tokenize(app, body).is_ok(),
            tokens::detokenize(app, body).is_ok(),
            NativeRequest::parse(body, &app.model).and_then(|it| it.encode(app)).is_ok(),
            InfillRequest::parse(body, &app.model).is_ok(),
            OllamaRequest::parse_chat(body, &app.model).is_ok(),
            OllamaRequest::parse_generate(body, &app.model).is_ok(),
            OllamaEmbed::parse(body).is_ok(),
        ]
    }
}

/// How answers are written by each of these chat templates, and Hermes' way.
pub fn formats(templates: &[&str]) -> Vec<AnswerFormat> {
    let of = |source: &&str| ChatTemplate::from_source(source).answer_format().clone();
    let known = templates.iter().map(of).filter(AnswerFormat::has_calls);
    known.chain([AnswerFormat::default().or_hermes()]).collect()
}

/// Text, reasoning and calls (names and arguments) of an answer.
pub type Answer = (String, String, Vec<(String, String)>);

/// What an answer has that comes in `parts`, where the request has the tools `f` and `get_weather`.
pub fn answer<'a>(
    format: &AnswerFormat,
    is_single: bool,
    parts: impl IntoIterator<Item = &'a str>,
) -> Answer {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tools = ["f", "get_weather"].map(
        |name| json!({"type": "function", "function": {"name": name, "parameters": parameters}}),
    );
    let options = ReaderOptions { tools: &tools, is_single, prompt: "" };
    let mut reader = AnswerReader::new(format, options);
    let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|part| reader.push(part)).collect();
    pieces.extend(reader.finish());
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Text(part) => text += &part,
            Piece::Reasoning(part) => reasoning += &part,
            Piece::CallBegin { name, .. } => calls.push((name, String::new())),
            Piece::CallArguments { index, json } => calls[index].1 += &json,
        }
    }
    (text, reasoning, calls)
}
