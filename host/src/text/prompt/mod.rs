//! Prompts of conversations, in which a control token is one that the chat template wrote.
//!
//! Elsewhere the rendered text is parsed for control tokens, and a message that spells `<|im_end|>` out ends its turn.
//! Here the template runs with marks in place of its own control tokens ([`control`]), what it is given has none, and only
//! what is marked is encoded as a control token ([`placeholders`]); any other text of that spelling is text.

mod control;
mod origin;
mod placeholders;
#[cfg(test)]
mod tests;

use std::ops::Range;

use serde_json::{Map, Value as Json, json};
use tokenizers::AddedToken;

use super::error::TextError;
use super::template::{ChatTemplate, Content, Message, RenderOptions};
use super::tokenizer::Tokenizer;
use control::{ControlToken, ControlTokens, Unmarked, finder};
use origin::Foreign;
use placeholders::{Encoded, Placeholders};

/// Names of roles, which templates put into control tokens.
const ROLES: [&str; 8] =
    ["system", "user", "assistant", "tool", "developer", "function", "ipython", "environment"];

/// The prompt of a conversation.
#[derive(Clone, Debug)]
pub struct ChatPrompt {
    text: String,
    /// Bytes of the text that are control tokens, and the index of each; `None` if the text is parsed for them.
    tokens: Option<Vec<(Range<usize>, usize)>>,
    num_neutralised: usize,
}

impl ChatPrompt {
    /// Prompt of a text that is parsed for control tokens.
    pub(super) fn parsed(text: String) -> Self {
        Self { text, tokens: None, num_neutralised: 0 }
    }

    /// The text, control tokens as they are spelt.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Messages that spell control tokens out, which are text here.
    pub fn num_neutralised(&self) -> usize {
        self.num_neutralised
    }

    /// Whether control tokens that are spelt out in the text are all control tokens.
    pub(super) fn is_parsed(&self) -> bool {
        self.tokens.is_none()
    }
}

/// What tells the control tokens of a template from text.
#[derive(Debug)]
pub(crate) struct Guard {
    /// The template with its control tokens marked.
    template: ChatTemplate,
    control: ControlTokens,
    placeholders: Placeholders,
}

impl Guard {
    pub fn new(tokenizer: &Tokenizer, template: &ChatTemplate) -> Result<Self, TextError> {
        let added: Vec<(u32, AddedToken)> =
            tokenizer.added_tokens().into_iter().filter(|(_, token)| is_mark(token)).collect();
        let all = finder(added.iter().map(|(_, token)| &token.content[..]))?;
        let mut is_written = vec![false; added.len()];
        drop(template.with_texts(|text| {
            all.find_iter(text).for_each(|found| is_written[found.pattern().as_usize()] = true);
            text.to_owned()
        }));
        let control = |is_composed: &[bool]| {
            let tokens = added.iter().zip(&is_written).zip(is_composed);
            let tokens = tokens.filter(|(((_, token), is_written), is_composed)| {
                token.special || **is_written || **is_composed
            });
            let tokens = tokens.map(|(((id, token), _), &is_composed)| ControlToken {
                id: *id,
                spelling: token.content.clone(),
                is_special: token.special,
                is_composed,
            });
            ControlTokens::new(tokens.collect())
        };
        let written = control(&vec![false; added.len()])?;
        let marked = template.with_texts(|text| written.mark(text).into_owned());
        let mut is_composed = vec![false; added.len()];
        for text in probes(&marked) {
            let Unmarked { text, tokens } = written.unmark(&text);
            let mut start = 0;
            for (range, _) in tokens.into_iter().chain([(text.len()..text.len(), 0)]) {
                let found = all.find_iter(&text[start..range.start]);
                found.for_each(|found| is_composed[found.pattern().as_usize()] = true);
                start = range.end;
            }
        }
        let control = control(&is_composed)?;
        let placeholders = Placeholders::new(tokenizer, control.tokens())?;
        let template = template.with_texts(|text| control.mark(text).into_owned());
        Ok(Self { template, control, placeholders })
    }

    /// The prompt of a conversation.
    pub fn prompt(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<ChatPrompt, TextError> {
        let mut num_neutralised = 0;
        let rendered = self.render(messages, options, None, &mut num_neutralised)?;
        let Unmarked { text, tokens } = self.control.unmark(&rendered);
        Ok(ChatPrompt { text, tokens: Some(tokens), num_neutralised })
    }

    /// The marked text of a conversation; `foreign` changes what is from outside.
    fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
        foreign: Option<&Foreign>,
        num_neutralised: &mut usize,
    ) -> Result<String, TextError> {
        let mut marker = Marker { control: &self.control, foreign, is_neutralised: false };
        let mut marked = Vec::with_capacity(messages.len());
        for message in messages {
            marker.is_neutralised = false;
            marked.push(marker.message(message));
            *num_neutralised += usize::from(marker.is_neutralised);
        }
        let mut list = |list: &[Json]| list.iter().map(|json| marker.value(json, false)).collect();
        let tools: Vec<Json> = list(options.tools);
        let documents: Option<Vec<Json>> = options.documents.map(list);
        let variables = options.variables.map(|variables| marker.fields(variables, false));
        let options = RenderOptions {
            tools: &tools,
            documents: documents.as_deref(),
            variables: variables.as_ref(),
            ..*options
        };
        self.template.render_with(&marked, &options).map_err(|error| match error {
            TextError::Template(why) => TextError::Template(self.control.unmark(&why).text),
            error => error,
        })
    }

    /// The token ids of a prompt of this template, without those that a tokenizer adds around a text.
    pub fn ids(&self, tokenizer: &Tokenizer, prompt: &ChatPrompt) -> Result<Vec<u32>, TextError> {
        let encoded = self.encode(tokenizer, prompt, false)?;
        Ok(encoded.into_iter().map(|(id, _)| id).collect())
    }

    /// The tokens of such a prompt, and the bytes of its text that each is of.
    pub(super) fn places(
        &self,
        tokenizer: &Tokenizer,
        prompt: &ChatPrompt,
    ) -> Result<Encoded, TextError> {
        self.encode(tokenizer, prompt, true)
    }

    fn encode(
        &self,
        tokenizer: &Tokenizer,
        prompt: &ChatPrompt,
        with_places: bool,
    ) -> Result<Encoded, TextError> {
        let tokens = prompt.tokens.as_deref().unwrap_or_default();
        self.placeholders.encode(tokenizer, &prompt.text, tokens, with_places)
    }
}

/// Encodes texts in which no control token is meant.
#[derive(Debug)]
pub(crate) struct PlainText(Placeholders);

impl PlainText {
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let added = tokenizer.added_tokens().into_iter();
        let control = added.filter(|(_, token)| is_mark(token)).map(|(id, token)| ControlToken {
            id,
            spelling: token.content,
            is_special: token.special,
            is_composed: false,
        });
        Placeholders::new(tokenizer, &control.collect::<Vec<_>>()).map(Self)
    }

    /// The token ids of `text`.
    pub fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, TextError> {
        let encoded = self.0.encode(tokenizer, text, &[], false)?;
        Ok(encoded.into_iter().map(|(id, _)| id).collect())
    }
}

/// Whether an added token is a mark, and not a run of spaces or, where it isn't special, a word.
fn is_mark(token: &AddedToken) -> bool {
    let is_blank = |char: char| char.is_whitespace() || char == '▁';
    let is_text = |char: char| is_blank(char) || (!token.special && char.is_alphanumeric());
    !token.content.chars().all(is_text)
}

/// Marks what comes from outside.
struct Marker<'a> {
    control: &'a ControlTokens,
    foreign: Option<&'a Foreign>,
    is_neutralised: bool,
}

impl Marker<'_> {
    fn message(&mut self, message: &Message) -> Message {
        let is_own = message.role == "assistant";
        let role = match ROLES.contains(&&message.role[..]) {
            true => message.role.clone(),
            false => self.text(&message.role, false),
        };
        let content = match &message.content {
            Content::Null => Content::Null,
            Content::Text(text) => Content::Text(self.text(text, is_own)),
            Content::Parts(parts) => {
                Content::Parts(parts.iter().map(|part| self.value(part, is_own)).collect())
            }
        };
        Message { role, content, fields: self.fields(&message.fields, false) }
    }

    fn text(&mut self, text: &str, is_own: bool) -> String {
        let outside = self.control.mark_outside(text, is_own);
        self.is_neutralised |= outside.is_neutralised;
        match self.foreign {
            None => outside.text.into_owned(),
            Some(foreign) => foreign.text(&outside.text),
        }
    }

    fn name(&mut self, name: &str) -> String {
        match self.foreign.is_some_and(|foreign| foreign.knows_name(name)) {
            true => name.to_owned(),
            false => self.text(name, false),
        }
    }

    fn value(&mut self, json: &Json, is_own: bool) -> Json {
        match json {
            Json::String(text) => Json::String(self.text(text, is_own)),
            Json::Array(items) => items.iter().map(|item| self.value(item, is_own)).collect(),
            Json::Object(fields) => Json::Object(self.fields(fields, is_own)),
            Json::Null | Json::Bool(_) | Json::Number(_) => json.clone(),
        }
    }

    fn fields(&mut self, fields: &Map<String, Json>, is_own: bool) -> Map<String, Json> {
        let mut marked = Map::new();
        for (name, value) in fields {
            marked.insert(self.name(name), self.value(value, is_own));
        }
        marked
    }
}

/// What a template writes of harmless conversations.
fn probes(template: &ChatTemplate) -> Vec<String> {
    let fields = |fields: Json| match fields {
        Json::Object(fields) => fields,
        _ => Map::new(),
    };
    let tool = json!({"type": "function", "function": {"name": "f", "description": "x",
        "parameters": {"type": "object", "properties": {"y": {"type": "string"}}}}});
    let call = json!({"tool_calls": [{"id": "call00001", "type": "function",
        "function": {"name": "f", "arguments": {"y": "x"}}}]});
    let call = Message { fields: fields(call), ..Message::new("assistant", "x") };
    let thought = json!({"reasoning_content": "x"});
    let thought = Message { fields: fields(thought), ..Message::new("assistant", "x") };
    let of_result = fields(json!({"tool_call_id": "call00001", "name": "f"}));
    let result = |role: &str| Message { fields: of_result.clone(), ..Message::new(role, "x") };
    let [system, user, assistant] =
        ["system", "user", "assistant"].map(|role| Message::new(role, "x"));
    let mut chats = vec![
        vec![user.clone()],
        vec![system.clone(), user.clone(), assistant, user.clone()],
        vec![system, user.clone(), thought, user.clone()],
    ];
    for role in ["tool", "function", "ipython", "environment"] {
        chats.push(vec![user.clone(), call.clone(), result(role)]);
    }
    chats.push(vec![Message::new("developer", "x"), user]);
    let mut texts = Vec::new();
    for messages in &chats {
        for tools in [&[][..], &[tool.clone()][..]] {
            for add_generation_prompt in [false, true] {
                let options = RenderOptions { tools, add_generation_prompt, ..Default::default() };
                texts.extend(template.render_with(messages, &options));
            }
        }
    }
    texts
}
