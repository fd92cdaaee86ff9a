//! gpt-oss' answers: messages in channels.
//!
//! `<|channel|>analysis<|message|>..<|end|><|start|>assistant<|channel|>final<|message|>..<|return|>`; a call is a
//! message in the channel `commentary` to a recipient `functions.NAME`, which stands before or after the channel.

use super::Piece;
use super::json::Scan;
use super::reader::{AnswerReader, partial, push_reasoning, push_text};

/// Special tokens of the format.
pub(super) const MARKS: [&str; 7] = [
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
];

/// What ends the text of a message.
const ENDS: [&str; 5] = ["<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"];

/// Whether a template writes this format.
pub(super) fn is_of(source: &str) -> bool {
    ["<|channel|>", "<|message|>", "<|start|>", "analysis"].iter().all(|mark| source.contains(mark))
}

/// Where an answer is.
#[derive(Debug)]
pub(super) struct Channels {
    part: Part,
    /// Whether what is thought is set apart.
    reasons: bool,
}

#[derive(Debug)]
enum Part {
    /// Before the text of a message.
    Header,
    Reasoning,
    Text,
    /// Before the arguments of a call.
    Call {
        name: String,
    },
    Arguments(Scan),
    /// After them.
    Rest,
}

impl Channels {
    pub fn new(reasons: bool) -> Self {
        Channels { part: Part::Header, reasons }
    }

    pub fn is_reasoning(&self) -> bool {
        matches!(self.part, Part::Reasoning)
    }

    /// Whether there may be more.
    pub fn step(
        &mut self,
        reader: &mut AnswerReader,
        pieces: &mut Vec<Piece>,
        is_end: bool,
    ) -> bool {
        match &mut self.part {
            Part::Header => self.header(reader, is_end),
            Part::Reasoning | Part::Text | Part::Rest => self.body(reader, pieces, is_end),
            Part::Call { name } => {
                let text = reader.held.trim_start();
                if text.starts_with('{') {
                    let name = std::mem::take(name);
                    reader.held = text.to_owned();
                    reader.begin_call(name, None, pieces);
                    self.part = Part::Arguments(Scan::default());
                } else if text.is_empty() {
                    return false;
                } else {
                    self.part = Part::Text;
                }
                true
            }
            Part::Arguments(scan) => {
                let mut json = String::new();
                let (len, is_whole) = scan.push(&reader.held, &mut json);
                reader.held.drain(..len);
                reader.argue(json, pieces);
                if is_whole {
                    self.part = Part::Rest;
                    reader.end_if_single();
                }
                is_whole
            }
        }
    }

    /// Up to `<|message|>`: the channel and the recipient.
    fn header(&mut self, reader: &mut AnswerReader, is_end: bool) -> bool {
        let held = &reader.held;
        let text = held.trim_start();
        let begins =
            ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "assistant", "to="];
        let may_be = begins.iter().any(|begin| text.starts_with(begin) || begin.starts_with(text));
        let end = held.find("<|message|>");
        let Some(end) = end.filter(|end| may_be && *end < 1024) else {
            if may_be && !is_end && held.len() < 1024 {
                return false;
            }
            // No header: what is said, as it is.
            if is_end && text.is_empty() {
                reader.held.clear();
                return false;
            }
            self.part = Part::Text;
            return true;
        };
        let header = &held[..end];
        let word = |after: &str| {
            let (_, rest) = header.split_once(after)?;
            rest.split(|c: char| c.is_whitespace() || c == '<').next()
        };
        let recipient = word("to=").unwrap_or_default();
        let name = recipient.strip_prefix("functions.").unwrap_or(recipient).to_owned();
        self.part = match (reader.tool(&name), word("<|channel|>")) {
            (true, _) => Part::Call { name },
            (false, Some("analysis")) if self.reasons => Part::Reasoning,
            _ => Part::Text,
        };
        reader.held.drain(..end + "<|message|>".len());
        true
    }

    /// The text of a message.
    fn body(&mut self, reader: &mut AnswerReader, pieces: &mut Vec<Piece>, is_end: bool) -> bool {
        let found = ENDS.iter().filter_map(|end| Some((reader.held.find(end)?, *end)));
        let found = found.min();
        let len = match found {
            Some((at, _)) => at,
            None if is_end => reader.held.len(),
            None => {
                let partial = ENDS.iter().map(|end| partial(&reader.held, end)).max();
                reader.held.len() - partial.unwrap_or(0)
            }
        };
        let text: String = reader.held.drain(..len).collect();
        match self.part {
            Part::Reasoning => push_reasoning(pieces, text),
            Part::Text => push_text(pieces, text),
            _ => {}
        }
        let Some((_, end)) = found else { return false };
        // A channel is the next header's own beginning.
        if !matches!(end, "<|start|>" | "<|channel|>") {
            reader.held.drain(..end.len());
        }
        self.part = Part::Header;
        true
    }
}

impl AnswerReader {
    fn tool(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }
}
