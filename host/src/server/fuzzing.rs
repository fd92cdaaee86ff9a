//! What fuzzing reaches of the server: bodies of requests, and calls in answers, without an engine or a connection.

use super::ServerOptions;
use super::app::App;
use super::embeddings;
use super::request::{ChatRequest, CompletionRequest, MessagesRequest, ResponseRequest};
use super::scores;
use super::tokens;
use super::tools::{Format, Piece, ToolParser};
use crate::Model;
use std::sync::Arc;

/// The parsers of a server.
pub struct Parsers(App);

impl Parsers {
    /// For a model with a tokenizer and a chat template.
    ///
    /// # Panics
    /// If the system has no thread left.
    pub fn new(model: Arc<Model>) -> Self {
        Parsers(App::new(model, ServerOptions::default()).expect("a thread"))
    }

    /// Whether each path would take `body`.
    pub fn take(&self, body: &[u8]) -> [bool; 9] {
        let Parsers(app) = self;
        let chat = ChatRequest::parse(body, &app.model).and_then(|request| {
            let text = app.text()?;
            request.conversation.tools.form(text)?;
            request.conversation.encode(app)
        });
        let response = ResponseRequest::parse(body, &app.model, &app.store)
            .and_then(|request| request.conversation.encode(app));
        let messages = MessagesRequest::parse(body, &app.model)
            .and_then(|request| request.conversation.encode(app));
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
        ]
    }
}

/// The text and the calls (names and arguments) of an answer that comes in `parts`, in format number `format`.
pub fn calls<'a>(
    format: usize,
    is_single: bool,
    parts: impl IntoIterator<Item = &'a str>,
) -> (String, Vec<(String, String)>) {
    const FORMATS: [Format; 4] = [Format::Hermes, Format::Llama3, Format::Mistral, Format::Phi4];
    let mut parser = ToolParser::new(FORMATS[format % FORMATS.len()], is_single);
    let mut pieces: Vec<Piece> = parts.into_iter().flat_map(|part| parser.push(part)).collect();
    pieces.extend(parser.finish());
    let (mut text, mut calls) = (String::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Text(part) => text += &part,
            Piece::Reasoning(_) => {}
            Piece::CallBegin { name, .. } => calls.push((name, String::new())),
            Piece::CallArguments { index, json } => calls[index].1 += &json,
        }
    }
    (text, calls)
}
