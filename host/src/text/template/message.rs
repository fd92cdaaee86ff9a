//! Messages as chat templates read them.

use std::borrow::Cow;

use minijinja::Value;
use minijinja::value::Serde;
use serde_json::{Map, Value as Json};

/// Names of a message's reasoning; the first is the one that most templates read.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`; a template may know others.
    pub role: String,
    /// What was said.
    pub content: Content,
    /// Other fields that a template may read, as transformers has them: `tool_calls` and `reasoning_content` of the
    /// assistant, `tool_call_id` and `name` of a tool's answer.
    pub fields: Map<String, Json>,
}

impl Message {
    /// A message of `role` whose content is a text.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content::Text(content.into()), fields: Map::new() }
    }

    /// With its fields in this order: templates write messages as JSON.
    pub(super) fn to_value(&self) -> Value {
        let content = match &self.content {
            Content::Null => Value::from(()),
            Content::Text(text) => Value::from(text),
            Content::Parts(parts) => Value::from(Serde(parts)),
        };
        let mut pairs = vec![("role", Value::from(&self.role)), ("content", content)];
        pairs
            .extend(self.fields.iter().map(|(name, value)| (&name[..], Value::from(Serde(value)))));
        let is_given = |name| self.fields.get(name).filter(|value: &&Json| !value.is_null());
        // As transformers: templates differ in the name that they read.
        if let Some(reasoning) = REASONING_FIELDS.into_iter().find_map(is_given) {
            pairs.retain(|&(name, _)| name != "reasoning_content");
            pairs.push(("reasoning_content", Value::from(Serde(reasoning))));
            if !self.fields.contains_key("thinking") {
                pairs.insert(0, ("thinking", Value::from(Serde(reasoning))));
            }
        }
        Value::from_pairs(pairs)
    }

    /// This message with `tag` after its text, and the text; `None` if it has none.
    pub(super) fn with_tag(&self, tag: &str) -> Option<(Self, &str)> {
        let (content, text) = match &self.content {
            Content::Null => return None,
            Content::Text(text) => (Content::Text(format!("{text}{tag}")), &text[..]),
            Content::Parts(parts) => {
                let last = parts.iter().rposition(|part| part["text"].is_string())?;
                let text = parts[last]["text"].as_str()?;
                let mut parts = parts.clone();
                parts[last]["text"] = format!("{text}{tag}").into();
                (Content::Parts(parts), text)
            }
        };
        Some((Self { content, ..self.clone() }, text))
    }
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// None, beside calls of tools.
    Null,
    /// A text.
    Text(String),
    /// Parts of the OpenAI API: `{"type": "text", "text": ..}` and others that the template knows.
    Parts(Vec<Json>),
}

impl Content {
    /// The text: parts of text are lines, and no content is empty.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Null => Cow::Borrowed(""),
            Self::Text(text) => Cow::Borrowed(text),
            Self::Parts(parts) => {
                let texts: Vec<&str> =
                    parts.iter().filter_map(|part| part["text"].as_str()).collect();
                Cow::Owned(texts.join("\n"))
            }
        }
    }
}
