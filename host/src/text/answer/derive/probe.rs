//! Conversations of words that no template has, rendered.

use crate::text::answer::mark::segments;
use crate::text::{ChatTemplate, Content, Message, RenderOptions};
use serde_json::{Map, Value, json};

pub(super) const QUESTION: &str = "QuestionOfUser";
pub(super) const TEXT: &str = "TextOfAnswer";
pub(super) const THOUGHT: &str = "ThoughtOfAnswer";
pub(super) const NAMES: [&str; 2] = ["probe_first", "probe_other"];
pub(super) const KEYS: [&str; 2] = ["keyuno", "keydue"];
pub(super) const VALUES: [&str; 2] = ["ValueUno", "ValueDue"];
/// Nine letters and digits: Mistral's templates take no others.
const IDS: [&str; 2] = ["aB3dE5gH7", "iJ2kL4mN6"];

/// Stand for what was called in a rendered text: letters of private use, so that JSON stays JSON.
pub(super) const ID: &str = "\u{E001}";
pub(super) const NAME: &str = "\u{E002}";
pub(super) const KEY: &str = "\u{E003}";

/// How a template wants calls.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wants {
    /// Arguments as text.
    pub text: bool,
    /// Ids that are the name and the number of a call, as Kimi's.
    pub numbered_ids: bool,
}

/// A template that is being tried.
pub(super) struct Probe<'a> {
    template: &'a ChatTemplate,
    tools: Vec<Value>,
}

impl<'a> Probe<'a> {
    pub fn new(template: &'a ChatTemplate) -> Self {
        let tool = |name| {
            let string = |_| json!({"type": "string", "description": "d"});
            let properties: Map<String, Value> =
                KEYS.iter().map(|key| ((*key).to_owned(), string(key))).collect();
            json!({"type": "function", "function": {"name": name, "description": "d",
                "parameters": {"type": "object", "properties": properties, "required": []}}})
        };
        Probe { template, tools: NAMES.map(tool).to_vec() }
    }

    /// The template itself.
    pub fn source(&self) -> &str {
        self.template.source_for(true)
    }

    fn render(&self, messages: &[Message], tools: &[Value], opens: bool) -> Option<String> {
        let options =
            RenderOptions { tools, add_generation_prompt: opens, ..RenderOptions::default() };
        self.template.render_once(messages, &options).ok()
    }

    /// Whether the template tells the model of tools.
    pub fn knows_tools(&self) -> bool {
        if !self.template.source_for(true).contains("tools") {
            return false;
        }
        let question = [Message::new("user", QUESTION)];
        let with = self.render(&question, &self.tools, true);
        with.is_some() && with != self.render(&question, &[], true)
    }

    /// What opens an answer.
    pub fn generation_prompt(&self) -> String {
        let question = [Message::new("user", QUESTION)];
        // Some templates are for chats with tools alone.
        let render = |opens| {
            let plain = self.render(&question, &[], opens);
            plain.or_else(|| self.render(&question, &self.tools, opens)).unwrap_or_default()
        };
        let prompt = render(true);
        let before = render(false);
        match prompt.strip_prefix(&*before) {
            Some(opened) if !opened.is_empty() => opened.to_owned(),
            _ => prompt.rsplit_once(QUESTION).map(|(_, after)| after.to_owned()).unwrap_or(prompt),
        }
    }

    /// An answer that is a text.
    pub fn text(&self) -> Option<String> {
        self.answer(TEXT, Map::new())
    }

    /// The mark after an answer that a question follows.
    pub fn turn_end(&self) -> Option<String> {
        let question = Message::new("user", QUESTION);
        let messages = [question.clone(), Message::new("assistant", TEXT), question];
        let rendered = self.render(&messages, &self.tools, false)?;
        let (_, after) = rendered.split_once(TEXT)?;
        let first = segments(after.trim()).first().copied();
        first.filter(|mark| mark.starts_with('<')).map(str::to_owned)
    }

    /// An answer with reasoning before its text.
    pub fn reasoning(&self) -> Option<String> {
        let fields = ["reasoning_content", "reasoning", "thinking", "thinking_content"];
        let thought = |name: &str| [(name.to_owned(), THOUGHT.into())].into_iter().collect();
        let with_field = fields.into_iter().filter_map(|name| self.answer(TEXT, thought(name)));
        let rendered = with_field.into_iter().find(|rendered| rendered.contains(THOUGHT));
        rendered.or_else(|| {
            // Mistral's: parts.
            let parts = vec![
                json!({"type": "thinking", "thinking": THOUGHT, "closed": true}),
                json!({"type": "text", "text": TEXT}),
            ];
            let content = Content::Parts(parts);
            let rendered = self.answer_with(content, Map::new())?;
            (rendered.contains(THOUGHT)
                && !rendered.contains("thinking\"")
                && !rendered.contains("thinking'"))
            .then_some(rendered)
        })
    }

    /// An answer with calls; each of an index of a name and of its arguments.
    pub fn calls(
        &self,
        text: &str,
        calls: &[(usize, Map<String, Value>)],
        wants: Wants,
    ) -> Option<String> {
        let calls = calls.iter().enumerate().map(|(number, (index, arguments))| {
            let id = match wants.numbered_ids {
                true => format!("functions.{}:{number}", NAMES[*index]),
                false => IDS[number].to_owned(),
            };
            let arguments = Value::Object(arguments.clone());
            let arguments = if wants.text { arguments.to_string().into() } else { arguments };
            json!({"id": id, "type": "function",
                "function": {"name": NAMES[*index], "arguments": arguments}})
        });
        let calls = Value::Array(calls.collect());
        let fields: Map<String, Value> = [("tool_calls".to_owned(), calls)].into_iter().collect();
        let rendered = self.answer(text, fields.clone());
        let is_whole = |rendered: &String| {
            rendered.rsplit(QUESTION).next().is_some_and(|answer| answer.contains(NAME))
        };
        match text.is_empty() && !rendered.as_ref().is_some_and(is_whole) {
            // Some templates render calls only where there is no text at all.
            true => self.answer_with(Content::Null, fields),
            false => rendered,
        }
    }

    fn answer(&self, text: &str, fields: Map<String, Value>) -> Option<String> {
        self.answer_with(Content::Text(text.to_owned()), fields)
    }

    fn answer_with(&self, content: Content, fields: Map<String, Value>) -> Option<String> {
        let mut answer = Message::new("assistant", "");
        (answer.content, answer.fields) = (content, fields);
        let messages = [Message::new("user", QUESTION), answer];
        let rendered = self.render(&messages, &self.tools, false)?;
        Some(with_holes(&rendered))
    }
}

/// With one letter for each id, name and key.
fn with_holes(rendered: &str) -> String {
    let mut text = rendered.to_owned();
    for (words, hole) in [(IDS, ID), (NAMES, NAME), (KEYS, KEY)] {
        for word in words {
            text = text.replace(word, hole);
        }
    }
    text
}
