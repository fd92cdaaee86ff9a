//! The grammar of an answer that has to be a call, or that may have some: what the model writes, around JSON of a tool's
//! schema.
//!
//! In llguidance's variant of Lark's syntax. Marks that are special tokens of the model are tokens in it.

mod arguments;
mod channels;

use super::mark::{Mark, Part};
use super::style::Style;
use super::{AnswerFormat, Calls, Opened};
use crate::text::Tokenizer;
use serde_json::{Value, json};

/// What a grammar of calls is for.
#[derive(Clone, Copy, Debug)]
pub struct RequiredCalls<'a> {
    /// Tools of which one has to be called, each `{"type": "function", "function": ..}`.
    pub tools: &'a [&'a Value],
    /// Whether there is one call and no more.
    pub is_single: bool,
    /// The prompt that is answered, or its end.
    pub prompt: &'a str,
}

/// A grammar that holds from the first mark of a call to the end of the calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionalCalls {
    /// Texts that begin calls.
    pub triggers: Vec<String>,
    /// Whether nothing but white space may stand before them in an answer.
    pub is_first: bool,
    /// Lark of the calls, with what a token may have before the trigger.
    pub lark: String,
    /// What the prompt has of the first trigger, and Lark of the calls where that is it.
    pub begun: Option<(String, String)>,
}

/// Rules of a grammar that is being written.
struct Rules<'a> {
    tokenizer: &'a Tokenizer,
    text: String,
    num_texts: usize,
}

/// How the first call of an answer begins.
#[derive(Clone, Copy)]
enum Head<'a> {
    /// With all of its marks.
    Whole,
    /// With what is left of them after this text.
    After(&'a str),
}

impl AnswerFormat {
    /// Lark of an answer, after its reasoning, that is one call of the tools, or several. `None` if
    /// the model's way to call is not known.
    pub fn required(&self, calls: RequiredCalls<'_>, tokenizer: &Tokenizer) -> Option<String> {
        let rules = Rules::new(tokenizer);
        if self.is_harmony {
            return Some(rules.channels(calls));
        }
        let format = self.calls.as_ref()?;
        let opened = self.opened(calls.prompt);
        let head = match &opened {
            Opened::Mark(begun) => Head::After(begun),
            Opened::No | Opened::Reasoning => Head::Whole,
        };
        Some(rules.calls(format, calls, head, ""))
    }

    /// The grammar of the calls of an answer that may have some. `None` if the model's way to call
    /// is not known, or begins like text.
    pub fn optional(
        &self,
        calls: RequiredCalls<'_>,
        tokenizer: &Tokenizer,
    ) -> Option<OptionalCalls> {
        if self.is_harmony {
            return Some(Rules::optional_channels(tokenizer, calls));
        }
        let format = self.calls.as_ref()?;
        let triggers = self.triggers(format, calls.tools)?;
        let is_first = format.is_bare();
        let first = triggers.first()?.chars().next()?;
        let lead = match is_first {
            true => "/\\s{1,16}/".to_owned(),
            false => lead(first),
        };
        let opened = self.opened(calls.prompt);
        let lark = |head, lead: &str| Rules::new(tokenizer).calls(format, calls, head, lead);
        let begun = match &opened {
            Opened::Mark(begun) => Some((begun.clone(), lark(Head::After(begun), ""))),
            Opened::No | Opened::Reasoning => None,
        };
        Some(OptionalCalls { triggers, is_first, lark: lark(Head::Whole, &lead), begun })
    }

    /// Texts that begin calls and nothing else: the first tag, or all up to the name where text
    /// begins with that tag too.
    fn triggers(&self, format: &Calls, tools: &[&Value]) -> Option<Vec<String>> {
        let open = format.open();
        let cue = format.trigger();
        let begins_text = !self.begun.is_empty() || self.content.open.starts_with(&*cue);
        if !cue.is_empty() && !begins_text {
            return Some(vec![cue]);
        }
        let up_to_name = |tool: &&Value| {
            let name = tool["function"]["name"].as_str()?;
            let mut text = String::new();
            for part in &open.0 {
                match part {
                    Part::Text(literal) => text += literal,
                    Part::Name => return Some(text + name),
                    _ => return None,
                }
            }
            match &format.style {
                Style::Named { .. } => Some(text + name),
                Style::Object { before_name, .. } => match before_name.0.as_slice() {
                    [Part::Text(before)] => Some(format!("{text}{before}{}", json!(name))),
                    _ => None,
                },
            }
        };
        tools.iter().map(up_to_name).collect()
    }
}

/// A text without the character that a trigger begins with: what the token of it may have before
/// it.
fn lead(first: char) -> String {
    format!("/[^\\x{{{:x}}}]{{1,16}}/", u32::from(first))
}

impl Calls {
    /// All marks before the first call.
    fn open(&self) -> Mark {
        self.section.0.clone().then(&self.call.0)
    }
}

impl Mark {
    /// What is left of it after `text`; all of it where it begins otherwise.
    fn after(&self, text: &str) -> Mark {
        let mut rest = self.clone();
        if let Some(Part::Text(first)) = rest.0.first_mut()
            && let Some(after) = first.strip_prefix(text)
        {
            *first = after.to_owned();
        }
        rest
    }
}

impl<'a> Rules<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        Rules { tokenizer, text: String::new(), num_texts: 0 }
    }

    /// A text in Lark, which is one of JSON; special tokens in it are tokens.
    fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(char) = rest.chars().next() {
            let len = self.special_at(rest).map_or(char.len_utf8(), |(len, id)| {
                if !plain.is_empty() {
                    parts.push(json!(plain).to_string());
                    plain.clear();
                }
                parts.push(format!("<[{id}]>"));
                len
            });
            if self.special_at(rest).is_none() {
                plain.push(char);
            }
            rest = &rest[len..];
        }
        if !plain.is_empty() {
            parts.push(json!(plain).to_string());
        }
        parts.join(" ")
    }

    /// The special token at the beginning of `text`: its length and its id.
    fn special_at(&self, text: &str) -> Option<(usize, u32)> {
        let ends = text.char_indices().map(|(at, char)| at + char.len_utf8()).take(64);
        let ends: Vec<usize> = ends.collect();
        ends.into_iter().rev().find_map(|len| {
            let id = self.tokenizer.token_to_id(&text[..len])?;
            let (_, is_special) = self.tokenizer.token_bytes(id)?;
            is_special.then_some((len, id))
        })
    }

    /// A mark, with the name of a function and what says the kind of a value.
    fn mark(&self, mark: &Mark, word: &str, kind: &str) -> String {
        let parts = mark.0.iter().map(|part| match part {
            Part::Text(text) => self.literal(text),
            Part::Number(_) => "/[0-9]+/".to_owned(),
            Part::Id => "/[a-zA-Z0-9]{9}/".to_owned(),
            Part::Name | Part::Key => self.literal(word),
            Part::Kind(_) => self.literal(kind),
        });
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// A rule of any text before `close`, and of `close` itself.
    fn text_until(&mut self, close: &Mark, max_length: Option<u64>) -> String {
        let close: String = close
            .0
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                _ => "",
            })
            .collect();
        let name = format!("text_{}", self.num_texts);
        self.num_texts += 1;
        let text = match max_length {
            Some(most) => format!("/(?s:.{{0,{most}}})/"),
            None => "/(?s:.*)/".to_owned(),
        };
        let starts_special = self.special_at(close.trim_start()).is_some();
        let rule = match starts_special {
            // No text has a special token in it.
            true => {
                let rule = format!("{name}: {text}\n");
                self.text += &rule;
                return format!("{name} {}", self.literal(close.trim_start()));
            }
            false => format!("{name}[suffix={}]: {text}\n", json!(close)),
        };
        self.text += &rule;
        name
    }

    /// The whole grammar: `lead` may stand before the first call, which begins with `head`.
    fn calls(
        mut self,
        format: &Calls,
        calls: RequiredCalls<'_>,
        head: Head<'_>,
        lead: &str,
    ) -> String {
        let [list, list_end] = if format.is_list { ["\"[\"", "\"]\""] } else { ["", ""] };
        let (mut firsts, mut others) = (Vec::new(), Vec::new());
        for (index, tool) in calls.tools.iter().enumerate() {
            let (rule, function) = (format!("function_{index}"), &tool["function"]);
            let name = function["name"].as_str().unwrap_or_default();
            self.function(&rule, function, format);
            let (open, close) =
                (self.mark(&format.call.0, name, ""), self.mark(&format.call.1, name, ""));
            let head = match head {
                Head::Whole => format!("{} {list} {open}", self.mark(&format.section.0, name, "")),
                Head::After(begun) => self.mark(&format.open().after(begun), name, ""),
            };
            let rules = format!(
                "first_{index}: {head} {rule} {close}\ncall_{index}: {open} {rule} {close}\n"
            );
            self.text += &rules;
            firsts.push(format!("first_{index}"));
            others.push(format!("call_{index}"));
        }
        let more = match calls.is_single || !format.is_parallel {
            true => String::new(),
            false => format!("({} ({}))*", self.literal(&format.separator), others.join(" | ")),
        };
        let start = self.start(lead);
        let (firsts, close) = (firsts.join(" | "), self.mark(&format.section.1, "", ""));
        format!("{start} ({firsts}) {more} {list_end} {close}\n{}", self.text)
    }

    /// The beginning of the rule that a grammar starts with.
    fn start(&mut self, lead: &str) -> &'static str {
        if lead.is_empty() {
            return "start:";
        }
        self.text += &format!("lead: {lead}\n");
        "start: lead?"
    }
}

#[cfg(all(test, feature = "grammar"))]
pub(super) mod tests;
