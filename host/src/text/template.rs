//! Chat templates: Jinja, with what transformers puts beside it.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::time::SystemTime;
use std::{fmt, io, thread};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use serde_json::{Map, Value as Json};

use super::error::{TextError, one_line};
use super::strftime::strftime;

mod message;

pub use message::{Content, Message};

/// Instructions that a template may run: the longest real ones take some hundreds a message.
const FUEL: u64 = 5_000_000;

/// Bytes of a template at most: the longest real ones have 20,000.
const MAX_SOURCE: usize = 1 << 16;

/// Stack for the deepest nesting that a template of [`MAX_SOURCE`] bytes can have (`1-1-1-1...`), which minijinja
/// follows by recursion. Only what is used is ever touched.
const STACK: usize = 1 << 28;

/// Bytes of a prompt at most: more than any context takes.
const MAX_PROMPT: usize = 1 << 24;

/// What marks the end of a message that is to be continued; the space shows whether the template trims it.
const CONTINUE_TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// What a prompt is made of beside the messages; see transformers' `apply_chat_template`.
#[derive(Clone, Copy, Debug, Default)]
pub struct RenderOptions<'a> {
    /// Tools that the model may call: each is `{"type": "function", "function": ..}` of the OpenAI API. A template that
    /// knows no tools leaves them out.
    pub tools: &'a [Json],
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
}

/// The special tokens that a template names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SpecialTokens {
    pub bos_token: Option<String>,
    pub eos_token: Option<String>,
}

/// How a conversation becomes the prompt of a model: a Jinja template, run as transformers'
/// `apply_chat_template` runs it.
///
/// A template is a program by the author of the model. Its length, its instructions and the text that it writes are
/// bounded, and it reaches neither files nor network; the memory of a string on the way (`x ~ x` doubles it) is not.
#[derive(Clone, PartialEq, Eq)]
pub struct ChatTemplate {
    source: String,
    special: SpecialTokens,
}

impl ChatTemplate {
    pub(super) fn new(source: &str, special: SpecialTokens) -> Self {
        let source = join_continued_lines(&source.replace("\r\n", "\n"));
        Self { source: without_generation_marks(&source), special }
    }

    /// The template itself.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What the template knows as `bos_token`.
    pub fn bos_token(&self) -> Option<&str> {
        self.special.bos_token.as_deref()
    }

    /// What the template knows as `eos_token`.
    pub fn eos_token(&self) -> Option<&str> {
        self.special.eos_token.as_deref()
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
        if !options.continue_final_message {
            return self.render_source(messages, options);
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
        let mut rendered = self.render_source(&messages, options)?;
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

    fn render_source(
        &self,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<String, TextError> {
        if self.source.len() > MAX_SOURCE {
            let len = self.source.len();
            return Err(TextError::Template(format!("{len} bytes, over {MAX_SOURCE}")));
        }
        let context = self.context(messages, options);
        let render =
            || self.run(context, options.now).map_err(|error| TextError::Template(one_line(error)));
        thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, render);
            let thread = thread.map_err(|error| TextError::Template(one_line(error)))?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// The variables of the template.
    fn context(&self, messages: &[Message], options: &RenderOptions<'_>) -> Value {
        let list = |list: &[Json]| Value::from(Serde(list));
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        // A token that the model doesn't have stays undefined, as with transformers.
        context.extend(self.special.bos_token.as_ref().map(|token| ("bos_token", token.into())));
        context.extend(self.special.eos_token.as_ref().map(|token| ("eos_token", token.into())));
        let tools = Some(options.tools).filter(|tools| !tools.is_empty());
        context.insert("tools", tools.map_or(Value::from(()), list));
        context.insert("documents", options.documents.map_or(Value::from(()), list));
        context.insert("add_generation_prompt", options.add_generation_prompt.into());
        let variables = options.variables.into_iter().flatten();
        context.extend(variables.map(|(name, value)| (&name[..], Value::from(Serde(value)))));
        context.insert("messages", messages.iter().map(Message::to_value).collect());
        context.into()
    }

    fn run(&self, context: Value, now: Option<SystemTime>) -> Result<String, Error> {
        let environment = environment(now)?;
        let template = environment.template_from_str(&self.source)?;
        let mut prompt = Prompt(Vec::new());
        // Dropped here: what a template has made can be nested as deep as the template.
        let rendered = template.render_captured_to(context, &mut prompt).map(drop);
        rendered.map_err(|error| match error.kind() {
            ErrorKind::WriteFailure => {
                let reason = format!("it writes more than {} MiB", MAX_PROMPT >> 20);
                Error::new(ErrorKind::WriteFailure, reason)
            }
            _ => error,
        })?;
        Ok(String::from_utf8_lossy(&prompt.0).into_owned())
    }
}

/// What a template writes.
struct Prompt(Vec<u8>);

impl io::Write for Prompt {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        if self.0.len() + text.len() > MAX_PROMPT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("special", &self.special).finish_non_exhaustive()
    }
}

/// Joins lines inside a tag's strings at a backslash, as Python's strings do and minijinja's don't.
fn join_continued_lines(source: &str) -> String {
    let mut joined = String::with_capacity(source.len());
    let mut in_tag = false;
    let mut open_quote = None;
    let mut chars = source.chars().peekable();
    while let Some(char) = chars.next() {
        let next = chars.peek().copied();
        match (open_quote, char, next) {
            (Some(_), '\\', Some(escaped)) => {
                chars.next();
                if escaped != '\n' {
                    joined.extend([char, escaped]);
                }
                continue;
            }
            (Some(quote), ..) if quote == char => open_quote = None,
            (None, '\'' | '"', _) if in_tag => open_quote = Some(char),
            (None, '{', Some('{' | '%')) => in_tag = true,
            (None, '}' | '%', Some('}')) => in_tag = false,
            _ => {}
        }
        joined.push(char);
    }
    joined
}

/// Makes blocks that minijinja knows of `{% generation %}`, which marks for training what the assistant said.
fn without_generation_marks(source: &str) -> String {
    let mut tags = source.split("{%");
    let mut unmarked = tags.next().unwrap_or_default().to_owned();
    for tag in tags {
        let statement = tag.split("%}").next().unwrap_or_default();
        unmarked.push_str("{%");
        match statement.trim_matches(|c: char| c.is_whitespace() || matches!(c, '+' | '-')) {
            "generation" => unmarked.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => unmarked.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => unmarked.push_str(tag),
        }
    }
    unmarked
}

fn environment(now: Option<SystemTime>) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", move |format: &str| {
        strftime(format, now.unwrap_or_else(SystemTime::now))
    });
    environment.add_filter("tojson", tojson);
    environment.set_fuel(Some(FUEL));
    environment.set_debug(false);
    Ok(environment)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    if kwargs.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        let reason = "tojson(ensure_ascii=true) is not supported";
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    kwargs.assert_all_used()?;
    let mut json = Vec::new();
    let written = match indent.map(|indent| " ".repeat(indent.min(16))) {
        Some(indent) => {
            let formatter = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, formatter))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut json, PythonFormatter)),
    };
    written
        .map_err(|error| error.to_string())
        .and_then(|()| String::from_utf8(json).map_err(|error| error.to_string()))
        .map_err(|reason| Error::new(ErrorKind::BadSerialization, reason))
}

/// JSON with Python's separators: `", "` and `": "`.
struct PythonFormatter;

impl Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(
        &mut self,
        writer: &mut W,
    ) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}
