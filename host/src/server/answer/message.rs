//! The answer of `/v1/messages`: a message of blocks, and the events that it comes in.
//!
//! Source: <https://docs.anthropic.com/en/api/messages>, <https://docs.anthropic.com/en/docs/build-with-claude/streaming>.

use super::{Asked, Usage, Writer, drain};
use crate::server::choice::{Finish, Part, PartKind};
use crate::server::error::ApiError;
use axum::response::sse::Event;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Stands where Anthropic proves that the thoughts are its own: clients send it back, and nobody looks at it.
const SIGNATURE: &str = "halfwarp";

/// Writes a message.
#[derive(Debug)]
pub(in crate::server) struct MessageObject {
    asked: Asked,
    /// The request's stop sequences.
    stops: Vec<String>,
    blocks: Vec<Block>,
    /// Whether the last block may go on.
    is_open: bool,
    finish: Option<Finish>,
}

#[derive(Debug)]
enum Block {
    Thinking(String),
    Text(String),
    /// With the JSON of its input.
    ToolUse {
        id: String,
        name: String,
        input: String,
    },
}

impl Block {
    /// Before anything of it has come.
    fn empty(&self) -> Value {
        match self {
            Block::Thinking(_) => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            Block::Text(_) => json!({ "type": "text", "text": "" }),
            Block::ToolUse { id, name, .. } => {
                json!({ "type": "tool_use", "id": id, "name": name, "input": {} })
            }
        }
    }

    fn whole(&self) -> Value {
        let mut block = self.empty();
        match self {
            Block::Thinking(text) => {
                block["thinking"] = text.as_str().into();
                block["signature"] = SIGNATURE.into();
            }
            Block::Text(text) => block["text"] = text.as_str().into(),
            Block::ToolUse { input, .. } => {
                // One that is cut is no JSON.
                let input = serde_json::from_str(input).ok().filter(Value::is_object);
                block["input"] = input.unwrap_or_else(|| json!({}));
            }
        }
        block
    }
}

impl MessageObject {
    pub fn new(asked: Asked, stops: Vec<String>) -> Self {
        let (blocks, is_open) = (Vec::new(), false);
        MessageObject { asked, stops, blocks, is_open, finish: None }
    }

    fn object(&self, content: Vec<Value>, usage: Usage) -> Value {
        let Asked { id, model, .. } = &self.asked;
        let (stop_reason, stop_sequence) = self.stop();
        json!({
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": usage_body(usage),
        })
    }

    /// Why it ended, if it has, and the stop sequence that ended it.
    fn stop(&self) -> (Option<&'static str>, Option<&str>) {
        let has_calls = self.blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        match self.finish {
            None => (None, None),
            Some(Finish::Length) => (Some("max_tokens"), None),
            Some(_) if has_calls => (Some("tool_use"), None),
            Some(Finish::StopString(index)) => {
                (Some("stop_sequence"), self.stops.get(index).map(String::as_str))
            }
            Some(Finish::Stop | Finish::ToolCalls) => (Some("end_turn"), None),
        }
    }

    fn open(&mut self, block: Block) -> Vec<Event> {
        let mut events = self.close();
        let start = json!({ "index": self.blocks.len(), "content_block": block.empty() });
        events.push(event("content_block_start", start));
        self.blocks.push(block);
        self.is_open = true;
        events
    }

    /// More of the last block.
    fn delta(&self, delta: Value) -> Event {
        let index = self.blocks.len().saturating_sub(1);
        event("content_block_delta", json!({ "index": index, "delta": delta }))
    }

    fn close(&mut self) -> Vec<Event> {
        if !std::mem::take(&mut self.is_open) {
            return Vec::new();
        }
        let index = self.blocks.len() - 1;
        let mut events = Vec::new();
        if matches!(self.blocks.last(), Some(Block::Thinking(_))) {
            let signature = json!({ "type": "signature_delta", "signature": SIGNATURE });
            events.push(self.delta(signature));
        }
        events.push(event("content_block_stop", json!({ "index": index })));
        events
    }

    fn text(&mut self, text: String) -> Vec<Event> {
        let mut events = match self.blocks.last() {
            Some(Block::Text(_)) if self.is_open => Vec::new(),
            _ => self.open(Block::Text(String::new())),
        };
        if let Some(Block::Text(whole)) = self.blocks.last_mut() {
            whole.push_str(&text);
        }
        events.push(self.delta(json!({ "type": "text_delta", "text": text })));
        events
    }

    fn thinking(&mut self, text: String) -> Vec<Event> {
        let mut events = match self.blocks.last() {
            Some(Block::Thinking(_)) if self.is_open => Vec::new(),
            _ => self.open(Block::Thinking(String::new())),
        };
        if let Some(Block::Thinking(whole)) = self.blocks.last_mut() {
            whole.push_str(&text);
        }
        events.push(self.delta(json!({ "type": "thinking_delta", "thinking": text })));
        events
    }

    fn input(&mut self, json: String) -> Vec<Event> {
        if let Some(Block::ToolUse { input, .. }) = self.blocks.last_mut() {
            input.push_str(&json);
        }
        vec![self.delta(json!({ "type": "input_json_delta", "partial_json": json }))]
    }
}

impl Writer for MessageObject {
    type Item = Event;

    fn asked(&self) -> &Asked {
        &self.asked
    }

    async fn whole(mut self, parts: mpsc::Receiver<Part>) -> Result<Value, ApiError> {
        let usage = drain(&mut self, parts).await?;
        let content = self.blocks.iter().map(Block::whole).collect();
        Ok(self.object(content, usage))
    }

    /// Nothing before the request has left the queue: the first event says how much of the prompt was in the cache.
    fn begin(&mut self) -> Vec<Event> {
        Vec::new()
    }

    fn part(&mut self, _: usize, kind: PartKind) -> Vec<Event> {
        match kind {
            PartKind::Started { cached_tokens } => {
                let usage = Usage { cached_tokens, ..self.asked.usage() };
                let message = self.object(Vec::new(), usage);
                vec![
                    event("message_start", json!({ "message": message })),
                    event("ping", json!({})),
                ]
            }
            PartKind::Text { text, .. } if !text.is_empty() => self.text(text),
            PartKind::Reasoning { text, .. } if !text.is_empty() => self.thinking(text),
            PartKind::CallBegin { id, name, .. } => {
                self.open(Block::ToolUse { id, name, input: String::new() })
            }
            PartKind::CallArguments { json, .. } => self.input(json),
            PartKind::Finished(finish) => {
                self.finish = Some(finish);
                self.close()
            }
            _ => Vec::new(),
        }
    }

    fn end(&mut self, usage: Usage) -> Vec<Event> {
        let (stop_reason, stop_sequence) = self.stop();
        let delta = json!({ "stop_reason": stop_reason, "stop_sequence": stop_sequence });
        let delta = json!({ "delta": delta, "usage": usage_body(usage) });
        vec![event("message_delta", delta), event("message_stop", json!({}))]
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        vec![Event::default().event("error").data(error.to_anthropic().to_string())]
    }
}

/// Anthropic counts what was in the cache apart.
fn usage_body(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    })
}

/// An event with its name among its fields.
fn event(kind: &str, mut fields: Value) -> Event {
    fields["type"] = kind.into();
    Event::default().event(kind).data(fields.to_string())
}

#[cfg(test)]
mod tests;
