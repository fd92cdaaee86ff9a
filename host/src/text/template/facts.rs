//! What a template takes, found by rendering: authors say it nowhere.

use std::borrow::Cow;

use minijinja::Value;
use minijinja::value::Serde;
use serde_json::{Map, Value as Json, json};

use super::json::dumps;
use super::program::Program;
use super::{ChatTemplate, Content, Message, RenderOptions};

/// A text that no template writes by itself.
const NEEDLE: &str = "halfwarp-needle";

/// What a template takes.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The content of a message may be a list of parts.
    pub takes_parts: bool,
    /// It has to be one.
    needs_parts: bool,
    /// A message without content is written as if it had the text `None`, or refused.
    needs_content: bool,
    /// Calls are written only where there is no content at all.
    pub needs_null: bool,
    /// Tools are a field of the system message.
    pub takes_tools_in_system: bool,
}

impl Facts {
    /// Finds them by rendering `program`, one of `template`'s.
    pub fn probe(program: &Program, template: &ChatTemplate) -> Self {
        let render = |messages: &[Message], tools: &[Json]| {
            let options = RenderOptions { tools, ..RenderOptions::default() };
            program.render(template.context(messages, &options), None).ok()
        };
        let writes = |rendered: &Option<String>, text: &str| {
            rendered.as_ref().is_some_and(|rendered| rendered.contains(text))
        };
        let user = |content| [Message { content, ..Message::new("user", "") }];
        let with_text = render(&user(Content::Text(NEEDLE.to_owned())), &[]);
        let with_parts = render(&user(Content::Parts(vec![part(NEEDLE)])), &[]);
        // A list that is written as a list is not taken.
        let takes_parts = writes(&with_parts, NEEDLE)
            && !writes(&with_parts, "'type'")
            && !writes(&with_parts, "\"type\"");
        let takes_text = writes(&with_text, NEEDLE);
        Self {
            takes_parts,
            needs_parts: takes_parts && !takes_text,
            needs_content: needs_content(render),
            needs_null: needs_null(render),
            takes_tools_in_system: takes_tools_in_system(render),
        }
    }

    /// `messages` as the template takes them, with `tools` among them if they belong there.
    pub fn adapt<'a>(&self, messages: &'a [Message], tools: &[Json]) -> Cow<'a, [Message]> {
        let content = |content: &Content| match content {
            Content::Null if self.needs_content => Some(Content::Text(String::new())),
            Content::Text(text) if self.needs_parts => Some(Content::Parts(vec![part(text)])),
            Content::Parts(_) if !self.takes_parts => {
                Some(Content::Text(content.text().into_owned()))
            }
            _ => None,
        };
        let mut messages = Cow::Borrowed(messages);
        for index in 0..messages.len() {
            if let Some(content) = content(&messages[index].content) {
                messages.to_mut()[index].content = content;
            }
        }
        if !tools.is_empty() && self.takes_tools_in_system {
            let messages = messages.to_mut();
            if messages.first().is_none_or(|first| first.role != "system") {
                messages.insert(0, Message::new("system", ""));
            }
            // As in the examples of Phi-4-mini's authors: a text, of the functions alone.
            let functions: Vec<&Json> =
                tools.iter().map(|tool| tool.get("function").unwrap_or(tool)).collect();
            let text = dumps(&Value::from(Serde(&functions))).unwrap_or_default();
            messages[0].fields.insert("tools".to_owned(), text.into());
        }
        messages
    }
}

fn part(text: &str) -> Json {
    json!({"type": "text", "text": text})
}

fn field(name: &str, value: Json) -> Map<String, Json> {
    [(name.to_owned(), value)].into_iter().collect()
}

/// A question, an answer that is `content` and a call, and what comes after it.
fn with_call(
    render: impl Fn(&[Message], &[Json]) -> Option<String>,
    content: &Content,
    after: &[Message],
) -> Option<String> {
    // Some templates take arguments as text only.
    [json!({}), json!("{}")].into_iter().find_map(|arguments| {
        let call = json!([{"id": "call00001", "type": "function",
            "function": {"name": NEEDLE, "arguments": arguments}}]);
        let fields = field("tool_calls", call);
        let assistant = Message { role: "assistant".to_owned(), content: content.clone(), fields };
        render(&[&[Message::new("user", "x"), assistant], after].concat(), &[])
    })
}

/// Whether a call is rendered without content, and is not with an empty text.
fn needs_null(render: impl Fn(&[Message], &[Json]) -> Option<String>) -> bool {
    let writes = |content| {
        with_call(&render, &content, &[]).is_some_and(|rendered| rendered.contains(NEEDLE))
    };
    writes(Content::Null) && !writes(Content::Text(String::new()))
}

/// Whether a call without content renders worse than one with an empty text.
fn needs_content(render: impl Fn(&[Message], &[Json]) -> Option<String>) -> bool {
    let with = |content, after: &[Message]| with_call(&render, &content, after);
    let count = |rendered: &str| rendered.matches("None").count();
    let is_worse = |after: &[Message]| match (
        with(Content::Null, after),
        with(Content::Text(String::new()), after),
    ) {
        (None, Some(_)) => true,
        (Some(null), Some(empty)) => count(&null) > count(&empty),
        (_, None) => false,
    };
    let fields = field("tool_call_id", json!("call00001"));
    let result = Message { fields, ..Message::new("tool", NEEDLE) };
    // Templates have something else for the last message.
    is_worse(&[]) || is_worse(&[result])
}

/// Whether the field `tools` of a system message is written, and the variable is not.
fn takes_tools_in_system(render: impl Fn(&[Message], &[Json]) -> Option<String>) -> bool {
    let tool = json!({"type": "function", "function": {"name": NEEDLE, "description": "",
        "parameters": {"type": "object", "properties": {}}}});
    let mut system = Message::new("system", "x");
    system.fields.insert("tools".to_owned(), format!("[{{\"name\": \"{NEEDLE}\"}}]").into());
    let writes =
        |rendered: Option<String>| rendered.is_some_and(|rendered| rendered.contains(NEEDLE));
    let user = Message::new("user", "x");
    writes(render(&[system, user.clone()], &[])) && !writes(render(&[user], &[tool]))
}
