//! Chat templates: Jinja, with what transformers puts beside it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use minijinja::Value;
use minijinja::value::Serde;
use serde_json::{Map, Value as Json};

use super::answer::AnswerFormat;
use super::error::TextError;

mod args;
mod collections;
mod environment;
mod facts;
mod filters;
mod format;
mod json;
mod message;
mod program;
mod python;
mod source;
mod strings;
#[cfg(test)]
mod tests;
mod told;

pub(super) use json::dumps;
pub use message::{Content, Message};
use program::Program;
pub(super) use python::repr;
use told::Told;

/// What marks the end of a message that is to be continued; the space shows whether the template trims it.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// What a prompt is made of beside the messages; see transformers' `apply_chat_template`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenderOptions<'a> {
    /// Tools that the model may call: each is `{"type": "function", "function": ..}` of the OpenAI API. A template that
    /// knows no tools leaves them out.
    pub tools: &'a [Json],
    /// Puts in words what the template leaves out: tools after the system text, the calls of earlier answers into their
    /// text, as the model writes them.
    pub fills_in_tools: bool,
    /// What the model should answer from: each an object with `title` and `text`.
    pub documents: Option<&'a [Json]>,
    /// Opens the answer of the assistant.
    pub add_generation_prompt: bool,
    /// Leaves the last message open, for the model to continue it. Not with `add_generation_prompt`.
    pub continue_final_message: bool,
    /// Other variables of the template, such as `enable_thinking`. They take the place of special tokens and of
    /// `tools`, `documents` and `add_generation_prompt`, but not of `messages`.
    pub variables: Option<&'a Map<String, Json>>,
    /// The time that the template tells as today's; the present one by default.
    pub now: Option<SystemTime>,
    /// Takes control tokens that messages, tools, documents and variables spell out for the tokens themselves, as other
    /// software does. Who writes such a text then writes whatever turns they like.
    pub parse_special_in_content: bool,
}

/// The name of the template of a model that has one.
pub(super) const DEFAULT: &str = "default";

/// How a conversation becomes the prompt of a model: a Jinja template, run as transformers'
/// `apply_chat_template` runs it. A model may have several by name: `tool_use` is taken where tools are offered, `rag`
/// where documents are given, and `default` elsewhere.
///
/// A template is a program by the author of the model. Its length, its instructions and the text that it writes are
/// bounded, and it reaches neither files nor network; the memory of a string on the way (`x ~ x` doubles it) is not.
#[derive(Clone)]
pub struct ChatTemplate {
    programs: Vec<Program>,
    /// The special tokens as variables: `bos_token` and others.
    special: BTreeMap<String, String>,
    /// How answers are written, once it is known.
    answers: Arc<OnceLock<AnswerFormat>>,
}

impl ChatTemplate {
    /// Template of sources with their names; `None` if there is none.
    pub(super) fn new(
        sources: impl IntoIterator<Item = (String, String)>,
        special: BTreeMap<String, String>,
    ) -> Option<Self> {
        let programs = sources.into_iter().map(|(name, source)| Program::new(name, source));
        let programs: Vec<Program> = programs.collect();
        let answers = Arc::default();
        (!programs.is_empty()).then_some(Self { programs, special, answers })
    }

    /// A template with the special tokens of Llama 2.
    #[cfg(any(test, feature = "server"))]
    pub(crate) fn from_source(source: &str) -> Self {
        let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let tokens = tokens.map(|(name, token)| (name.to_owned(), token.to_owned()));
        let program = Program::new(DEFAULT.to_owned(), source.to_owned());
        Self { programs: vec![program], special: tokens.into(), answers: Arc::default() }
    }

    /// This template with `change` made of each text that it writes by itself: the texts of its source, and the special
    /// tokens.
    pub(super) fn with_texts(&self, mut change: impl FnMut(&str) -> String) -> Self {
        let programs = self.programs.iter().map(|program| {
            let source = source::with_texts(&program.source, &mut change);
            Program::new(program.name.clone(), source)
        });
        let programs = programs.collect();
        let special = self.special.iter().map(|(name, token)| (name.clone(), change(token)));
        let special = special.collect();
        let answers = self.answer_format().with_texts(&mut change);
        Self { programs, special, answers: Arc::new(answers.into()) }
    }

    /// The sources of all its templates.
    pub(super) fn sources(&self) -> String {
        self.programs.iter().map(|program| &program.source[..]).collect()
    }

    /// How the model writes answers, as the template shows it.
    pub fn answer_format(&self) -> &AnswerFormat {
        self.answers.get_or_init(|| AnswerFormat::of(self))
    }

    /// The template itself; of several that for messages alone, else the first.
    pub fn source(&self) -> &str {
        self.source_for(false)
    }

    /// The template for messages with tools, or without them.
    pub fn source_for(&self, has_tools: bool) -> &str {
        &self.select(has_tools, false).unwrap_or(&self.programs[0]).source
    }

    /// What the template knows as `bos_token`.
    pub fn bos_token(&self) -> Option<&str> {
        self.special.get("bos_token").map(String::as_str)
    }

    /// What the template knows as `eos_token`.
    pub fn eos_token(&self) -> Option<&str> {
        self.special.get("eos_token").map(String::as_str)
    }

    /// Whether the template takes the content of a message as a list of parts. One that doesn't gets their text.
    pub fn takes_parts(&self) -> bool {
        self.programs[0].facts(self).takes_parts
    }

    /// Whether tools are a field of the system message, and no variable of the template, as with Phi-4-mini. Rendering
    /// with tools puts them there.
    pub fn takes_tools_in_system_message(&self) -> bool {
        self.select(true, false).is_ok_and(|program| program.facts(self).takes_tools_in_system)
    }

    /// The program for a conversation.
    fn select(&self, has_tools: bool, has_documents: bool) -> Result<&Program, TextError> {
        let find = |name: &str| self.programs.iter().find(|program| program.name == name);
        let special = [("tool_use", has_tools), ("rag", has_documents)];
        let special = special.into_iter().filter(|(_, is_wanted)| *is_wanted);
        let found = special.map(|(name, _)| name).chain([DEFAULT]).find_map(find);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.programs.iter().map(|program| &*program.name).collect();
            let names = names.join("', '");
            TextError::Template(format!("the model has no template 'default', but '{names}'"))
        })
    }

    /// The text of the prompt, to be encoded without adding special tokens.
    /// `add_generation_prompt` opens the answer of the assistant.
    ///
    /// # Errors
    /// As [`ChatTemplate::render_with`].
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TextError> {
        let options = RenderOptions { add_generation_prompt, ..RenderOptions::default() };
        self.render_with(messages, &options)
    }

    /// The text of the prompt, to be encoded without adding special tokens.
    ///
    /// # Errors
    /// [`TextError::Template`] if the template is malformed, refuses the messages
    /// (`raise_exception`) or exceeds its limit of instructions.
    pub fn render_with(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<String, TextError> {
        let Some(Told { messages, after, is_described }) = self.told(messages, options) else {
            return self.render_continued(messages, options);
        };
        let tools = if is_described { &[] } else { options.tools };
        let rendered = self.render_continued(&messages, &RenderOptions { tools, ..*options })?;
        Ok(match after {
            Some((own, words)) => rendered.replacen(&own, &format!("{own}{words}"), 1),
            None => rendered,
        })
    }

    /// The text of the prompt, with the last message left open if it is to be continued.
    fn render_continued(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<String, TextError> {
        if !options.continue_final_message {
            return self.render_once(messages, options);
        }
        let wrong =
            |what: &str| Err(TextError::Template(format!("continue_final_message: {what}")));
        if options.add_generation_prompt {
            return wrong("not together with add_generation_prompt");
        }
        let Some((last, before)) = messages.split_last() else {
            return wrong("there is no message to continue");
        };
        let Some((tagged, text)) = last.with_tag(CONTINUE_TAG) else {
            return wrong("the last message has no text to continue");
        };
        let messages: Vec<Message> = before.iter().cloned().chain([tagged]).collect();
        let mut rendered = self.render_once(&messages, options)?;
        let tag = rendered.rfind(CONTINUE_TAG.trim_end());
        let Some(tag) = tag.filter(|_| rendered.contains(text.trim())) else {
            return wrong("the template doesn't write the last message as it is");
        };
        let keeps_spaces = rendered[tag..].starts_with(CONTINUE_TAG);
        rendered.truncate(tag);
        if !keeps_spaces {
            rendered.truncate(rendered.trim_end().len());
        }
        Ok(rendered)
    }

    /// The text of the prompt, whose messages are as the template takes them.
    pub(super) fn render_once(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<String, TextError> {
        let variable = |name: &str| {
            options
                .variables
                .is_some_and(|variables| variables.get(name).is_some_and(|value| !value.is_null()))
        };
        let has_tools = !options.tools.is_empty() || variable("tools");
        let has_documents = options.documents.is_some() || variable("documents");
        let program = self.select(has_tools, has_documents)?;
        let messages = program.facts(self).adapt(messages, options.tools);
        program.render(self.context(&messages, options), options.now)
    }

    /// The variables of the template.
    fn context(&self, messages: &[Message], options: &RenderOptions<'_>) -> Value {
        let list = |list: &[Json]| Value::from(Serde(list));
        // A token that the model doesn't have stays undefined, as with transformers.
        let special = self.special.iter().map(|(name, token)| (&name[..], Value::from(token)));
        let mut context: BTreeMap<&str, Value> = special.collect();
        let tools = Some(options.tools).filter(|tools| !tools.is_empty());
        context.insert("tools", tools.map_or(Value::from(()), list));
        context.insert("documents", options.documents.map_or(Value::from(()), list));
        context.insert("add_generation_prompt", options.add_generation_prompt.into());
        let variables = options.variables.into_iter().flatten();
        context.extend(variables.map(|(name, value)| (&name[..], Value::from(Serde(value)))));
        context.insert("messages", messages.iter().map(Message::to_value).collect());
        context.into()
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("special", &self.special).finish_non_exhaustive()
    }
}
