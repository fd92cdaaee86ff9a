//! The answer of `/v1/responses`: an object with one message, and the events that it comes in.
//!
//! Source: <https://platform.openai.com/docs/api-reference/responses-streaming>.

use super::{Answer, Asked, Usage, Writer};
use crate::server::app::new_id;
use crate::server::choice::{Finish, PartKind};
use crate::server::error::ApiError;
use axum::response::sse::Event;
use serde_json::{Value, json};

/// What a request said, which the object repeats.
#[derive(Debug)]
pub(in crate::server) struct Settings {
    pub instructions: Option<String>,
    pub max_output_tokens: Option<usize>,
    pub temperature: f32,
    pub top_p: f32,
    /// The form of the text.
    pub format: Value,
    pub metadata: Value,
}

/// Writes a response.
#[derive(Debug)]
pub(in crate::server) struct Response {
    asked: Asked,
    settings: Settings,
    /// Of the one message.
    item_id: String,
    /// What has come of its text.
    text: String,
    finish: Finish,
    num_events: usize,
    /// What the text breaks of its schema.
    warnings: Vec<String>,
}

impl Response {
    pub fn new(asked: Asked, settings: Settings) -> Self {
        let (item_id, text, finish) = (new_id("msg"), String::new(), Finish::Stop);
        Response { asked, settings, item_id, text, finish, num_events: 0, warnings: Vec::new() }
    }

    /// The status of what has ended.
    fn status(&self) -> &'static str {
        if self.finish == Finish::Length { "incomplete" } else { "completed" }
    }

    fn object(&self, status: &str, output: Vec<Value>, usage: Option<Usage>) -> Value {
        let (Asked { id, created, model, .. }, settings) = (&self.asked, &self.settings);
        let usage = usage.map(|usage| {
            json!({
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": { "cached_tokens": usage.cached_tokens },
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
                "total_tokens": usage.total_tokens(),
            })
        });
        let why = (status == "incomplete").then(|| json!({ "reason": "max_output_tokens" }));
        json!({
            "id": id,
            "object": "response",
            "created_at": created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": why,
            "instructions": settings.instructions,
            "max_output_tokens": settings.max_output_tokens,
            "model": model,
            "output": output,
            "parallel_tool_calls": true,
            "previous_response_id": null,
            "reasoning": { "effort": null, "summary": null },
            "store": false,
            "temperature": decimal(settings.temperature),
            "text": { "format": settings.format },
            "tool_choice": "auto",
            "tools": [],
            "top_p": decimal(settings.top_p),
            "truncation": "disabled",
            "usage": usage,
            "metadata": settings.metadata,
        })
    }

    fn item(&self, status: &str, content: Vec<Value>) -> Value {
        json!({ "id": self.item_id, "type": "message", "status": status, "role": "assistant",
                "content": content })
    }

    fn content(&self) -> Value {
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
    }

    fn event(&mut self, kind: &str, fields: Value) -> Event {
        let mut data = json!({ "type": kind, "sequence_number": self.num_events });
        self.num_events += 1;
        if let (Value::Object(data), Value::Object(fields)) = (&mut data, fields) {
            data.extend(fields);
        }
        Event::default().event(kind).data(data.to_string())
    }

    /// An event of the message's one text.
    fn text_event(&mut self, kind: &str, field: &str, value: Value) -> Event {
        let id = self.item_id.clone();
        let mut place =
            json!({ "item_id": id, "output_index": 0, "content_index": 0, field: value });
        if kind.starts_with("response.output_text") {
            place["logprobs"] = json!([]);
        }
        self.event(kind, place)
    }
}

impl Writer for Response {
    fn asked(&self) -> &Asked {
        &self.asked
    }

    fn whole(mut self, answers: Vec<Answer>, usage: Usage) -> Value {
        for answer in answers {
            self.text = answer.text;
            self.finish = answer.finish;
        }
        let item = self.item(self.status(), vec![self.content()]);
        self.object(self.status(), vec![item], Some(usage))
    }

    fn begin(&mut self) -> Vec<Event> {
        let object = json!({ "response": self.object("in_progress", Vec::new(), None) });
        let item = json!({ "output_index": 0, "item": self.item("in_progress", Vec::new()) });
        vec![
            self.event("response.created", object.clone()),
            self.event("response.in_progress", object),
            self.event("response.output_item.added", item),
            self.text_event("response.content_part.added", "part", self.content()),
        ]
    }

    fn part(&mut self, _: usize, kind: PartKind) -> Vec<Event> {
        match kind {
            PartKind::Text { text, .. } if !text.is_empty() => {
                self.text.push_str(&text);
                vec![self.text_event("response.output_text.delta", "delta", text.into())]
            }
            PartKind::Finished(finish) => {
                self.finish = finish;
                Vec::new()
            }
            // Without tools there are no calls.
            _ => Vec::new(),
        }
    }

    fn warn(&mut self, warnings: Vec<String>) {
        self.warnings = warnings;
    }

    fn end(&mut self, usage: Usage) -> Vec<Event> {
        let item = self.item(self.status(), vec![self.content()]);
        let mut object = self.object(self.status(), vec![item.clone()], Some(usage));
        if !self.warnings.is_empty() {
            object["warnings"] = json!(self.warnings);
        }
        let kind = format!("response.{}", self.status());
        vec![
            self.text_event("response.output_text.done", "text", self.text.clone().into()),
            self.text_event("response.content_part.done", "part", self.content()),
            self.event("response.output_item.done", json!({ "output_index": 0, "item": item })),
            self.event(&kind, json!({ "response": object })),
        ]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        let error = error.to_json()["error"].take();
        let fields = json!({ "code": error["code"], "message": error["message"],
                             "param": error["param"], "error": error });
        vec![self.event("error", fields)]
    }
}

/// The shortest decimal number that is this one: 0.9, not 0.8999999761581421.
fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(value.into())
}
