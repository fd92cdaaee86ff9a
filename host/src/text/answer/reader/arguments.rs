//! Arguments that are no JSON, as JSON.

use super::super::Piece;
use super::super::json::Found;
use super::super::mark::{Mark, Part, Read};
use super::super::style::{Arguments, Fields, Style};
use super::super::values::{Literals, typed};
use super::{AnswerReader, State};
use serde_json::{Map, Value, json};

/// A parameter whose value is coming.
#[derive(Debug)]
pub(super) struct Open {
    key: String,
    /// What its marks say.
    is_string: Option<bool>,
    /// Up to where no close mark is.
    searched: usize,
}

/// A list of `key: value`.
#[derive(Debug)]
pub(super) struct Members {
    close: char,
    separator: char,
    /// Arguments that were read already.
    whole: Option<String>,
}

impl Members {
    pub fn new(close: char, separator: char) -> Self {
        Members { close, separator, whole: None }
    }

    pub fn whole(json: String) -> Self {
        Members { close: '}', separator: ':', whole: Some(json) }
    }
}

impl AnswerReader {
    fn fields(&self) -> Option<(Fields, Mark)> {
        let calls = self.format.calls.as_ref()?;
        match &calls.style {
            Style::Named { arguments: Arguments::Fields(fields), .. } => {
                Some((fields.clone(), calls.call.1.clone()))
            }
            _ => None,
        }
    }

    /// A parameter of the present call, as JSON.
    fn add(&mut self, key: &str, value: &Value, pieces: &mut Vec<Piece>) {
        let begin = if self.num_members == 0 { "{" } else { ", " };
        self.num_members += 1;
        self.argue(format!("{begin}{}: {value}", json!(key)), pieces);
    }

    /// The end of the present call's arguments.
    fn close(&mut self, pieces: &mut Vec<Piece>) {
        let end = if self.num_members == 0 { "{}" } else { "}" };
        self.num_members = 0;
        self.argue(end.to_owned(), pieces);
    }

    /// Between parameters.
    pub(super) fn parameter(&mut self, pieces: &mut Vec<Piece>, is_end: bool) -> bool {
        let Some((fields, call_close)) = self.fields() else { return self.go(State::Text) };
        let (open, end) = (fields.open.read(&self.held, ""), call_close.read(&self.held, ""));
        // Of the marks each may begin with the other.
        let is_end_mark = matches!(end, Read::Whole { .. }) && !call_close.is_blank();
        if end == Read::More && !is_end {
            return self.wait(State::Parameter);
        }
        if let Read::Whole { len, .. } = open
            && !is_end_mark
        {
            let rest = &self.held[len..];
            // The first letter after the key.
            let end = fields.middle.first_text().chars().find(|c| !c.is_whitespace());
            if let Some(key_len) = rest.find(|c| Some(c) == end).filter(|len| *len < 1024) {
                let key = rest[..key_len].trim().to_owned();
                match fields.middle.read(&rest[key_len..], &key) {
                    Read::Whole { len: middle, is_string, .. } => {
                        self.held.drain(..len + key_len + middle);
                        return self.go(State::Value(Open { key, is_string, searched: 0 }));
                    }
                    Read::More if !is_end => return self.wait(State::Parameter),
                    Read::More | Read::No => {}
                }
            } else if !is_end && rest.len() < 1024 {
                return self.wait(State::Parameter);
            }
        }
        if !is_end_mark && open == Read::More && !is_end {
            return self.wait(State::Parameter);
        }
        self.close(pieces);
        self.go(State::CallEnd)
    }

    /// The value of a parameter, up to a close mark that another parameter or the call's end follows.
    pub(super) fn value(&mut self, mut open: Open, pieces: &mut Vec<Piece>, is_end: bool) -> bool {
        let Some((fields, call_close)) = self.fields() else { return self.go(State::Text) };
        let close = fields.close.filled(&open.key);
        let core = close.trim();
        let mut from = open.searched;
        let mut end = None;
        let mut first = None;
        while let Some(at) = self.held[from..].find(core).map(|at| from + at) {
            let after = &self.held[at + core.len()..];
            first = first.or(Some(at));
            let follows = [fields.open.read(after, ""), call_close.read(after, "")];
            if follows.iter().any(|read| matches!(read, Read::Whole { .. })) {
                end = Some(at);
                break;
            }
            if follows.contains(&Read::More) && !is_end {
                open.searched = at;
                return self.wait(State::Value(open));
            }
            from = at + core.chars().next().map_or(1, char::len_utf8);
        }
        // At the end of the answer marks may be missing.
        match end.or(first.filter(|_| is_end)) {
            Some(at) => {
                let text = &self.held[..at];
                let blank = trailing_white_space(&fields.middle);
                let text = text.strip_prefix(&*blank).unwrap_or(text);
                let blank = &close[..close.len() - close.trim_start().len()];
                let text = text.strip_suffix(blank).unwrap_or(text);
                let schema = self.parameter_schema(&open.key);
                let data = text.strip_prefix("<![CDATA[").and_then(|text| text.strip_suffix("]]>"));
                let value = match data {
                    Some(data) => data.into(),
                    None => elements(text, &fields, schema.as_ref())
                        .unwrap_or_else(|| typed(text, schema.as_ref(), open.is_string)),
                };
                self.held.drain(..at + core.len());
                self.add(&open.key, &value, pieces);
                self.go(State::Parameter)
            }
            // What came of it is no value yet.
            None if is_end => self.wait(State::Value(open)),
            None => {
                let len = self.held.len().saturating_sub(core.len());
                open.searched = self.held.floor_char_boundary(len.max(open.searched));
                self.wait(State::Value(open))
            }
        }
    }

    /// The schema of a parameter of the present call.
    fn parameter_schema(&self, key: &str) -> Option<Value> {
        let name = self.name.as_deref()?;
        let tool = self.tools.iter().find(|tool| tool.name == name)?;
        tool.parameter(key).cloned()
    }

    /// `key: value` of the present call, up to the bracket that ends them.
    pub(super) fn members(
        &mut self,
        members: Members,
        pieces: &mut Vec<Piece>,
        is_end: bool,
    ) -> bool {
        if let Some(json) = members.whole {
            self.argue(json, pieces);
            return self.go(State::ObjectEnd);
        }
        let is_between = |c: char| c.is_whitespace() || c == ',';
        let rest = self.held.trim_start_matches(is_between);
        let skipped = self.held.len() - rest.len();
        if rest.starts_with(members.close) {
            self.held.drain(..=skipped);
            self.close(pieces);
            return self.go(State::CallEnd);
        }
        let quote = match self.format.calls.as_ref().map(|calls| &calls.style) {
            Some(Style::Named { arguments: Arguments::Bare { quote }, .. }) => quote.clone(),
            _ => None,
        };
        match (Literals { quote }).field(rest, members.separator) {
            Found::Whole((key, value), len) => {
                self.held.drain(..skipped + len);
                self.add(&key, &value, pieces);
                self.go(State::Members(members))
            }
            Found::More if !is_end => self.wait(State::Members(members)),
            Found::More => self.wait(State::Members(members)),
            Found::No => {
                self.close(pieces);
                self.go(State::CallEnd)
            }
        }
    }
}

/// Levels of a value at most.
const MAX_DEPTH: usize = 64;

/// A value that is not JSON but elements between the marks of parameters, as MiniMax M3 has it; items are a list.
fn elements(text: &str, fields: &Fields, schema: Option<&Value>) -> Option<Value> {
    let is_string = schema.is_some_and(|schema| schema["type"] == "string");
    let has_key = fields.close.0.contains(&Part::Key);
    if is_string || !has_key || !text.starts_with(fields.open.first_text().trim()) {
        return None;
    }
    let (value, rest) = children(text, fields, MAX_DEPTH)?;
    rest.trim().is_empty().then_some(value)
}

/// Elements one after the other, and what comes after them.
fn children<'a>(mut text: &'a str, fields: &Fields, depth: usize) -> Option<(Value, &'a str)> {
    let open = fields.open.first_text().trim();
    let middle = fields.middle.first_text().trim();
    let (mut object, mut items) = (Map::new(), Vec::new());
    while let Some(rest) = text.trim_start().strip_prefix(open).filter(|_| depth > 0) {
        if rest.starts_with('/') {
            break;
        }
        let (key, rest) = rest.split_once(middle)?;
        let close = fields.close.filled(key);
        let (value, rest) = match rest.strip_prefix(&*close) {
            Some(rest) => (Value::String(String::new()), rest),
            None if rest.trim_start().starts_with(open) => {
                let (value, rest) = children(rest, fields, depth - 1)?;
                (value, rest.trim_start().strip_prefix(close.trim())?)
            }
            None => {
                let (leaf, rest) = rest.split_once(&*close)?;
                (serde_json::from_str(leaf).unwrap_or_else(|_| leaf.into()), rest)
            }
        };
        match key {
            "item" => items.push(value),
            _ => {
                object.insert(key.to_owned(), value);
            }
        }
        text = rest;
    }
    let value = if items.is_empty() { Value::Object(object) } else { Value::Array(items) };
    Some((value, text))
}

impl Mark {
    /// As the template writes it for a parameter.
    fn filled(&self, key: &str) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Key => key.to_owned(),
            _ => String::new(),
        };
        self.0.iter().map(text).collect()
    }
}

fn trailing_white_space(mark: &Mark) -> String {
    match mark.0.last() {
        Some(Part::Text(text)) => text[text.trim_end().len()..].to_owned(),
        _ => String::new(),
    }
}
