//! The answer of `/v1/responses`: an object of items, and the events that it comes in.
//!
//! Source: <https://platform.openai.com/docs/api-reference/responses-streaming>.

use super::{Asked, Usage, Writer, drain, logprobs};
use crate::Model;
use crate::server::app::new_id;
use crate::server::choice::{Finish, Part, PartKind, Token};
use crate::server::error::ApiError;
use crate::server::store::Store;
use axum::response::sse::Event;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What a request said.
#[derive(Debug)]
pub(in crate::server) struct Settings {
    /// The fields of it that the object repeats.
    pub echo: Value,
    /// The namespaces of functions that are in one.
    pub namespaces: HashMap<String, String>,
    /// Whether the texts come with log-probabilities.
    pub logprobs: bool,
}

/// Where a response goes when it is complete.
#[derive(Debug)]
pub(in crate::server) struct Destination {
    pub store: Arc<Store>,
    /// The items of the request, as JSON.
    pub input: String,
}

/// Writes a response.
#[derive(Debug)]
pub(in crate::server) struct ResponseObject {
    asked: Asked,
    model: Arc<Model>,
    settings: Settings,
    destination: Option<Destination>,
    items: Vec<Item>,
    /// Whether the last item may go on.
    is_open: bool,
    /// Tokens whose text has not come yet.
    tokens: Vec<Token>,
    finish: Option<Finish>,
    num_events: usize,
    /// What the text breaks of its schema.
    warnings: Vec<String>,
}

/// An item of the output.
#[derive(Debug)]
struct Item {
    id: String,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Reasoning(String),
    /// With its log-probabilities.
    Message(String, Vec<Value>),
    Call {
        call_id: String,
        name: String,
        namespace: Option<String>,
        arguments: String,
    },
}

impl Content {
    /// The one part of the item, in which its text is; a call has none.
    fn part(&self) -> Option<Value> {
        match self {
            Content::Reasoning(text) => Some(json!({ "type": "reasoning_text", "text": text })),
            Content::Message(text, logprobs) => Some(json!({
                "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs,
            })),
            Content::Call { .. } => None,
        }
    }

    /// What the ids of such items begin with, and the events of their texts.
    fn names(&self) -> (&'static str, &'static str) {
        match self {
            Content::Reasoning(_) => ("rs_", "response.reasoning_text"),
            Content::Message(..) => ("msg_", "response.output_text"),
            Content::Call { .. } => ("fc_", "response.function_call_arguments"),
        }
    }

    fn text(&mut self) -> &mut String {
        match self {
            Content::Reasoning(text) | Content::Message(text, _) => text,
            Content::Call { arguments, .. } => arguments,
        }
    }

    fn is_same_kind(&self, other: &Content) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl Item {
    fn to_json(&self, status: &str) -> Value {
        // Where nothing has come there is no part yet.
        let parts: Vec<Value> = match status {
            "in_progress" => Vec::new(),
            _ => self.content.part().into_iter().collect(),
        };
        let mut item = match &self.content {
            Content::Reasoning(_) => json!({
                "type": "reasoning", "summary": [], "content": parts, "encrypted_content": null,
            }),
            Content::Message(..) => json!({
                "type": "message", "role": "assistant", "content": parts,
            }),
            Content::Call { call_id, name, namespace, arguments } => {
                let mut call = json!({
                    "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments,
                });
                if let Some(namespace) = namespace {
                    call["namespace"] = namespace.as_str().into();
                }
                call
            }
        };
        item["id"] = self.id.as_str().into();
        item["status"] = status.into();
        item
    }
}

impl ResponseObject {
    pub fn new(
        asked: Asked,
        model: Arc<Model>,
        settings: Settings,
        destination: Option<Destination>,
    ) -> Self {
        ResponseObject {
            asked,
            model,
            settings,
            destination,
            items: Vec::new(),
            is_open: false,
            tokens: Vec::new(),
            finish: None,
            num_events: 0,
            warnings: Vec::new(),
        }
    }

    /// The status of what has ended.
    fn status(&self) -> &'static str {
        if self.finish == Some(Finish::Length) { "incomplete" } else { "completed" }
    }

    fn object(&self, status: &str, usage: Option<Usage>) -> Value {
        let Asked { id, created, model, .. } = &self.asked;
        let usage = usage.map(|usage| {
            json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": usage.cached_tokens,
                    "cache_write_tokens": 0,
                },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
                "total_tokens": usage.total_tokens(),
            })
        });
        let why = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        let last = self.items.len().saturating_sub(1);
        // Only the last item can be cut.
        let of_last = match self.finish {
            None | Some(Finish::Length) => "incomplete",
            Some(_) => "completed",
        };
        let output =
            self.items.iter().enumerate().map(|(index, item)| {
                item.to_json(if index == last { of_last } else { "completed" })
            });
        let mut object = json!({
            "id": id,
            "object": "response",
            "created_at": created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": why,
            "model": model,
            "output": output.collect::<Vec<_>>(),
            "service_tier": "default",
            "truncation": "disabled",
            "usage": usage,
        });
        if let (Value::Object(object), Value::Object(echo)) = (&mut object, &self.settings.echo) {
            object.extend(echo.clone());
        }
        object
    }

    /// The object of an answer that has ended, which is stored if it is to be.
    fn complete(&mut self, usage: Usage) -> Value {
        let mut object = self.object(self.status(), Some(usage));
        if !self.warnings.is_empty() {
            object["warnings"] = json!(self.warnings);
        }
        if let Some(Destination { store, input }) = self.destination.take() {
            let previous = self.settings.echo["previous_response_id"].as_str();
            store.put(previous.map(str::to_owned), input, &object);
        }
        object
    }

    fn event(&mut self, kind: &str, mut fields: Value) -> Event {
        fields["type"] = kind.into();
        fields["sequence_number"] = self.num_events.into();
        self.num_events += 1;
        Event::default().event(kind).data(fields.to_string())
    }

    /// An event of the last item's text.
    fn item_event(&mut self, kind: &str, mut fields: Value) -> Event {
        let index = self.items.len() - 1;
        fields["item_id"] = self.items[index].id.as_str().into();
        fields["output_index"] = index.into();
        if self.items[index].content.part().is_some() {
            fields["content_index"] = 0.into();
        }
        self.event(kind, fields)
    }

    fn open(&mut self, content: Content) -> Vec<Event> {
        let mut events = self.close("completed");
        let item = Item { id: new_id(content.names().0), content };
        let added =
            json!({ "output_index": self.items.len(), "item": item.to_json("in_progress") });
        let part = item.content.part();
        self.items.push(item);
        self.is_open = true;
        events.push(self.event("response.output_item.added", added));
        if let Some(part) = part {
            events.push(self.item_event("response.content_part.added", json!({ "part": part })));
        }
        events
    }

    fn close(&mut self, status: &str) -> Vec<Event> {
        if !std::mem::take(&mut self.is_open) {
            return Vec::new();
        }
        let Some(item) = self.items.last() else { return Vec::new() };
        let (whole, part) = (item.to_json(status), item.content.part());
        let done = format!("{}.done", item.content.names().1);
        let fields = match &item.content {
            Content::Reasoning(text) => json!({ "text": text }),
            Content::Message(text, logprobs) => json!({ "text": text, "logprobs": logprobs }),
            Content::Call { name, arguments, .. } => {
                json!({ "name": name, "arguments": arguments })
            }
        };
        let mut events = vec![self.item_event(&done, fields)];
        if let Some(part) = part {
            events.push(self.item_event("response.content_part.done", json!({ "part": part })));
        }
        let done = json!({ "output_index": self.items.len() - 1, "item": whole });
        events.push(self.event("response.output_item.done", done));
        events
    }

    /// More of an item's text; `empty` is what it begins as if it is not the last one.
    fn text(&mut self, text: String, empty: Content) -> Vec<Event> {
        let goes_on = |item: &Item| item.content.is_same_kind(&empty);
        let mut events = match self.is_open && self.items.last().is_some_and(goes_on) {
            true => Vec::new(),
            false => self.open(empty),
        };
        let Some(item) = self.items.last_mut() else { return events };
        item.content.text().push_str(&text);
        let kind = format!("{}.delta", item.content.names().1);
        let mut fields = json!({ "delta": text });
        if let Content::Message(_, logprobs) = &mut item.content {
            let entries = logprobs::text_logprobs(self.model.text(), &self.tokens);
            logprobs.extend(entries.as_array().cloned().unwrap_or_default());
            fields["logprobs"] = entries;
        }
        self.tokens.clear();
        events.push(self.item_event(&kind, fields));
        events
    }

    fn call(&mut self, call_id: String, name: String) -> Vec<Event> {
        self.tokens.clear();
        let namespace = self.settings.namespaces.get(&name).cloned();
        self.open(Content::Call { call_id, name, namespace, arguments: String::new() })
    }

    /// More of the arguments of the last call.
    fn arguments(&mut self, json: String) -> Vec<Event> {
        if let Some(Item { content: Content::Call { arguments, .. }, .. }) = self.items.last_mut() {
            arguments.push_str(&json);
        }
        vec![self.item_event("response.function_call_arguments.delta", json!({ "delta": json }))]
    }

    fn finish(&mut self, finish: Finish) -> Vec<Event> {
        self.finish = Some(finish);
        // An answer of nothing is a message of nothing.
        let mut events = match self.items.is_empty() {
            true => self.open(Content::Message(String::new(), Vec::new())),
            false => Vec::new(),
        };
        events.extend(self.close(self.status()));
        events
    }
}

impl Writer for ResponseObject {
    type Item = Event;

    fn asked(&self) -> &Asked {
        &self.asked
    }

    async fn whole(mut self, parts: mpsc::Receiver<Part>) -> Result<Value, ApiError> {
        let usage = drain(&mut self, parts).await?;
        Ok(self.complete(usage))
    }

    fn begin(&mut self) -> Vec<Event> {
        let object = json!({ "response": self.object("in_progress", None) });
        ["response.created", "response.in_progress"]
            .map(|kind| self.event(kind, object.clone()))
            .into()
    }

    fn part(&mut self, _: usize, kind: PartKind) -> Vec<Event> {
        match kind {
            PartKind::Text { text, token } => {
                self.tokens.extend(token.filter(|_| self.settings.logprobs));
                match text.is_empty() {
                    true => Vec::new(),
                    false => self.text(text, Content::Message(String::new(), Vec::new())),
                }
            }
            PartKind::Reasoning { text, .. } if !text.is_empty() => {
                self.text(text, Content::Reasoning(String::new()))
            }
            PartKind::CallBegin { id, name, .. } => self.call(id, name),
            PartKind::CallArguments { json, .. } => self.arguments(json),
            PartKind::Warning(warning) => {
                self.warnings.push(warning);
                Vec::new()
            }
            PartKind::Finished(finish) => self.finish(finish),
            _ => Vec::new(),
        }
    }

    fn end(&mut self, usage: Usage) -> Vec<Event> {
        let kind = format!("response.{}", self.status());
        let object = self.complete(usage);
        vec![self.event(&kind, json!({ "response": object }))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        let code = match error.status.as_u16() {
            429 => "rate_limit_exceeded",
            500.. => "server_error",
            _ => "invalid_prompt",
        };
        let mut object = self.object("failed", None);
        let error = error.to_json()["error"].take();
        object["error"] = json!({ "code": code, "message": error["message"] });
        let fields = json!({ "code": error["code"], "message": error["message"],
                             "param": error["param"], "error": error });
        let failed = self.event("response.failed", json!({ "response": object }));
        // Last, as openai-python reads nothing after it.
        vec![failed, self.event("error", fields)]
    }
}

#[cfg(test)]
mod tests;
