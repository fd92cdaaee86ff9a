//! A template as it is run: in a thread with a stack for its nesting, within its limits.

use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::time::SystemTime;
use std::{io, thread};

use minijinja::{Error, ErrorKind, Value};

use super::ChatTemplate;
use super::environment::environment;
use super::facts::Facts;
use super::source::rewritten;
use crate::text::error::{TextError, one_line};

/// Characters of a template at most: the longest real ones have 20,000.
const MAX_SOURCE: usize = 1 << 16;

/// Stack for the deepest nesting that a template of [`MAX_SOURCE`] characters can have (`1-1-1-1...`), which minijinja
/// follows by recursion. Only what is used is ever touched.
const STACK: usize = 1 << 28;

/// Bytes of a prompt at most: more than any context takes.
const MAX_PROMPT: usize = 1 << 24;

/// A template with its name.
#[derive(Clone)]
pub(super) struct Program {
    pub name: String,
    pub source: String,
    facts: OnceLock<Facts>,
}

impl Program {
    pub fn new(name: String, source: String) -> Self {
        Self { name, source, facts: OnceLock::new() }
    }

    /// What the template takes, found at the first use. It belongs to `template`.
    pub fn facts(&self, template: &ChatTemplate) -> &Facts {
        self.facts.get_or_init(|| Facts::probe(self, template))
    }

    /// The text that the template writes.
    pub fn render(&self, context: Value, now: Option<SystemTime>) -> Result<String, TextError> {
        // A source with marks has more bytes.
        let len = self.source.chars().count();
        if len > MAX_SOURCE {
            return Err(TextError::Template(format!("{len} characters, over {MAX_SOURCE}")));
        }
        let render =
            || self.run(context, now).map_err(|error| TextError::Template(one_line(error)));
        thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, render);
            let thread = thread.map_err(|error| TextError::Template(one_line(error)))?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    fn run(&self, context: Value, now: Option<SystemTime>) -> Result<String, Error> {
        let environment = environment(now)?;
        let source = rewritten(&self.source);
        let template = environment.template_from_str(&source)?;
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
