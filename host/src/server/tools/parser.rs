//! The calls in an answer, found as its text comes.

use super::format::Format;
use rand::RngExt;
use rand::distr::Alphanumeric;
use serde_json::{Value, json};

/// A part of an answer, as it comes.
#[derive(Clone, Debug, PartialEq)]
pub(in super::super) enum Piece {
    Text(String),
    /// Text of the reasoning before the answer.
    Reasoning(String),
    /// Call number `index` of the answer begins.
    CallBegin {
        index: usize,
        id: String,
        name: String,
    },
    /// More of the JSON of a call's arguments.
    CallArguments {
        index: usize,
        json: String,
    },
}

/// A call as it stands in an answer: a name, and JSON.
#[derive(Debug)]
struct Function {
    name: String,
    arguments: String,
}

/// Finds the calls in the text of an answer as it comes.
#[derive(Debug)]
pub(in super::super) struct ToolParser {
    format: Format,
    /// Text that may be the beginning of a mark, or that of calls.
    held: String,
    in_calls: bool,
    /// Whether what comes after the first call is left out.
    is_single: bool,
    num_calls: usize,
    /// Whether nothing but white space has come, in all or since the last call.
    is_start: bool,
}

impl ToolParser {
    /// At the beginning of an answer.
    pub fn new(format: Format, is_single: bool) -> Self {
        ToolParser {
            format,
            held: String::new(),
            in_calls: false,
            is_single,
            num_calls: 0,
            is_start: true,
        }
    }

    /// Whether there was a call.
    pub fn has_calls(&self) -> bool {
        self.num_calls > 0
    }

    /// Whether the answer is complete, whatever comes.
    pub fn is_done(&self) -> bool {
        self.is_single && self.has_calls()
    }

    /// Adds text; returns what is complete.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while !self.is_done() && self.take_piece(&mut pieces) {}
        pieces
    }

    /// Ends the answer: what is left of it.
    pub fn finish(&mut self) -> Vec<Piece> {
        let held = std::mem::take(&mut self.held);
        let mut pieces = Vec::new();
        if self.is_done() {
            return pieces;
        }
        if self.in_calls {
            self.take_calls(&held, &mut pieces);
        } else if !(self.has_calls() && held.trim().is_empty()) {
            push_text(&mut pieces, held);
        }
        pieces
    }

    /// Whether there may be more.
    fn take_piece(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let (open, close) = self.format.marks();
        if self.in_calls {
            let Some(end) = close.and_then(|close| Some((self.held.find(close)?, close.len())))
            else {
                return false;
            };
            let calls: String = self.held.drain(..end.0).collect();
            self.held.drain(..end.1);
            self.in_calls = false;
            self.take_calls(&calls, pieces);
            return true;
        }
        if self.is_start {
            let text = self.held.trim_start();
            if text.is_empty() {
                return false;
            }
            self.is_start = false;
            if self.has_calls() {
                // White space after a call is none of the text.
                self.held = self.held.trim_start().to_owned();
                return true;
            }
            // Llama 3 leaves the mark out as a rule.
            if self.format == Format::Llama3 && text.starts_with('{') {
                self.in_calls = true;
                return false;
            }
        }
        if let Some(start) = self.held.find(open) {
            let text: String = self.held.drain(..start).collect();
            self.held.drain(..open.len());
            self.in_calls = true;
            if !text.trim().is_empty() {
                push_text(pieces, text.trim_end().to_owned());
            }
            return true;
        }
        // The longest end of the text that may be the beginning of the mark, and white space before it, which is not
        // part of the text if it is.
        let lengths = (1..open.len()).rev();
        let mark = lengths
            .filter(|&len| open.is_char_boundary(len))
            .find(|&len| self.held.ends_with(&open[..len]));
        let before = self.held.len() - mark.unwrap_or(0);
        let kept = self.held[..before].trim_end().len();
        push_text(pieces, self.held.drain(..kept).collect());
        false
    }

    /// The calls of `text`; the text itself if it has none.
    fn take_calls(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        match parse(text) {
            Some(calls) => {
                let most = if self.is_single { 1 } else { calls.len() };
                for function in calls.into_iter().take(most) {
                    let (index, id) = (self.num_calls, new_id(self.format));
                    let Function { name, arguments: json } = function;
                    pieces.push(Piece::CallBegin { index, id, name });
                    pieces.push(Piece::CallArguments { index, json });
                    self.num_calls += 1;
                }
                self.is_start = self.format.marks().1.is_some();
            }
            None => push_text(pieces, text.to_owned()),
        }
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: String) {
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
}

/// An object, a list of objects, or several of either with `;` between them: each a call.
fn parse(text: &str) -> Option<Vec<Function>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        let value = values.next()?.ok()?;
        rest = rest[values.byte_offset()..].trim_start_matches([';', ' ', '\n', '\r', '\t']);
        match value {
            Value::Array(list) => {
                calls.extend(list.into_iter().map(call).collect::<Option<Vec<_>>>()?)
            }
            value => calls.push(call(value)?),
        }
    }
    (!calls.is_empty()).then_some(calls)
}

fn call(value: Value) -> Option<Function> {
    let Value::Object(mut fields) = value else { return None };
    let Some(Value::String(name)) = fields.remove("name") else { return None };
    let arguments = fields.remove("arguments").or_else(|| fields.remove("parameters"));
    let arguments = match arguments.unwrap_or_else(|| json!({})) {
        Value::String(json) => json,
        arguments => arguments.to_string(),
    };
    Some(Function { name, arguments })
}

/// A name that no other call has. Mistral's templates take nine letters and digits.
fn new_id(format: Format) -> String {
    let (prefix, len) = if format == Format::Mistral { ("", 9) } else { ("call_", 24) };
    let letters = rand::rng().sample_iter(Alphanumeric).take(len).map(char::from);
    prefix.chars().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text and calls of an answer that comes in pieces of `len` characters.
    fn parts(format: Format, answer: &str, len: usize) -> (String, Vec<(String, String)>) {
        read(ToolParser::new(format, false), answer, len)
    }

    fn read(mut parser: ToolParser, answer: &str, len: usize) -> (String, Vec<(String, String)>) {
        let letters: Vec<char> = answer.chars().collect();
        let mut pieces: Vec<Piece> = letters
            .chunks(len)
            .flat_map(|chunk| parser.push(&chunk.iter().collect::<String>()))
            .collect();
        pieces.extend(parser.finish());
        let (mut text, mut calls) = (String::new(), Vec::new());
        for piece in pieces {
            match piece {
                Piece::Text(piece) => text += &piece,
                Piece::Reasoning(text) => panic!("{text}"),
                Piece::CallBegin { index, name, .. } => {
                    assert_eq!(index, calls.len());
                    calls.push((name, String::new()));
                }
                Piece::CallArguments { index, json } => calls[index].1 += &json,
            }
        }
        assert_eq!(parser.has_calls(), !calls.is_empty());
        (text, calls)
    }

    #[test]
    fn every_format_has_its_calls() {
        let (f, g) = (("f", r#"{"x":1}"#), ("g", "{}"));
        for (format, answer, text, calls) in [
            (
                Format::Hermes,
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>",
                "",
                &[f][..],
            ),
            (
                Format::Hermes,
                "I look it up.\n<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>\n<tool_call>\n{\"name\": \"g\"}\n</tool_call>",
                "I look it up.",
                &[f, g],
            ),
            (Format::Hermes, "<tool_call>{\"name\": \"g\"}</tool_call> So.", "So.", &[g]),
            (Format::Hermes, "a < b <tool> c \n", "a < b <tool> c \n", &[]),
            (
                Format::Hermes,
                "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\":1}\"}",
                "",
                &[f],
            ),
            (Format::Hermes, "<tool_call>no JSON</tool_call> more", "no JSON more", &[]),
            (Format::Llama3, "{\"name\": \"f\", \"parameters\": {\"x\": 1}}", "", &[f]),
            (
                Format::Llama3,
                "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"x\": 1}}; {\"name\": \"g\", \"parameters\": {}}",
                "",
                &[f, g],
            ),
            (Format::Llama3, "{not a call}", "{not a call}", &[]),
            (Format::Llama3, "Yes: {\"a\": 1}", "Yes: {\"a\": 1}", &[]),
            (
                Format::Mistral,
                "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": \"g\"}]",
                "",
                &[f, g],
            ),
            (
                Format::Phi4,
                "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"x\": 1}}]<|/tool_call|>",
                "",
                &[f],
            ),
        ] {
            let calls: Vec<_> =
                calls.iter().map(|(name, json)| (name.to_string(), json.to_string())).collect();
            for len in [1, 2, 3, 7, 1000] {
                assert_eq!(
                    parts(format, answer, len),
                    (text.to_owned(), calls.clone()),
                    "{answer} by {len}"
                );
            }
        }
    }

    #[test]
    fn one_call_is_the_first() {
        for (format, answer, text) in [
            (
                Format::Hermes,
                "A. <tool_call>{\"name\": \"f\"}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call> B.",
                "A.",
            ),
            (Format::Llama3, "{\"name\": \"f\"}; {\"name\": \"g\"}", ""),
            (Format::Mistral, "[TOOL_CALLS][{\"name\": \"f\"}, {\"name\": \"g\"}]", ""),
            (
                Format::Phi4,
                "<|tool_call|>[{\"name\": \"f\"}, {\"name\": \"g\"}]<|/tool_call|> B.",
                "",
            ),
        ] {
            for len in [1, 4, 1000] {
                let got = read(ToolParser::new(format, true), answer, len);
                assert_eq!(got, (text.to_owned(), vec![("f".to_owned(), "{}".to_owned())]));
            }
        }
    }
}
