//! An answer taken apart as it comes.

mod arguments;
mod head;

use super::harmony::Channels;
use super::json::Scan;
use super::mark::Read;
use super::style::Style;
use super::{AnswerFormat, Calls, Marks, Opened, Piece, Tool};
use head::Head;
use rand::RngExt;
use rand::distr::Alphanumeric;
use serde_json::Value;

/// Bytes of a call before its arguments at most.
const MAX_HEAD: usize = 1 << 20;

/// What an answer is read by.
#[derive(Clone, Copy, Debug)]
pub struct ReaderOptions<'a> {
    /// Tools of the request, each `{"type": "function", "function": ..}`; without any a call is text.
    pub tools: &'a [Value],
    /// Whether the answer ends with its first call.
    pub is_single: bool,
    /// The prompt that is answered, or its end: it may have opened the reasoning.
    pub prompt: &'a str,
}

/// Takes an answer apart as it comes: its reasoning, its text and its calls.
///
/// The text that is neither comes back byte for byte. What has been announced can't be taken back, so a call is
/// announced when its name is known, is that of a tool, and its arguments have begun.
#[derive(Debug)]
pub struct AnswerReader {
    format: AnswerFormat,
    pub(super) tools: Vec<Tool>,
    is_single: bool,
    /// What is not decided yet.
    pub(super) held: String,
    state: State,
    /// gpt-oss' answers.
    channels: Option<Channels>,
    num_calls: usize,
    /// Whether nothing but white space was said, in all or since the last call.
    is_blank: bool,
    /// Whether a call of the present section was read.
    in_section: bool,
    ids: Vec<String>,
    /// Name of the function of the last call.
    name: Option<String>,
    /// Parameters of it that were read.
    num_members: usize,
}

/// What comes next.
#[derive(Debug)]
enum State {
    /// The reasoning, if there is any, else text.
    Begin,
    Reasoning,
    /// Up to so many ends of lines, which belong to a mark.
    Lines(u8, Box<State>),
    Text,
    /// The rest of the JSON of arguments.
    Json(Scan),
    /// Other fields of a call's object.
    ObjectEnd,
    Parameter,
    Value(arguments::Open),
    /// `key: value` up to a bracket.
    Members(arguments::Members),
    CallEnd,
    Between,
    Done,
}

/// Whether a mark of the text was found.
enum Cue<'a> {
    Call,
    /// One around the text.
    Around(&'a str),
}

impl AnswerReader {
    /// At the beginning of an answer.
    pub fn new(format: &AnswerFormat, options: ReaderOptions<'_>) -> Self {
        let mut format = format.clone();
        let mut tools: Vec<Tool> = options.tools.iter().map(Tool::of).collect();
        // The longest name first: one may begin with another.
        tools.sort_by_key(|tool| std::cmp::Reverse(tool.name.len()));
        if tools.is_empty() {
            format.calls = None;
        }
        let channels = format.is_harmony.then(|| Channels::new(format.has_reasoning()));
        let (state, held) = match format.opened(options.prompt) {
            // What the prompt closed: the ends of lines after it are its own.
            Opened::No if format.closes_reasoning(options.prompt) => {
                (State::Lines(2, Box::new(State::Begin)), String::new())
            }
            Opened::No => (State::Begin, String::new()),
            Opened::Reasoning => (State::Lines(2, Box::new(State::Reasoning)), String::new()),
            Opened::Mark(mark) => (State::Begin, mark),
        };
        let is_single = options.is_single;
        AnswerReader {
            format,
            tools,
            is_single,
            held,
            state,
            channels,
            num_calls: 0,
            is_blank: true,
            in_section: false,
            ids: Vec::new(),
            name: None,
            num_members: 0,
        }
    }

    /// Whether there was a call.
    pub fn has_calls(&self) -> bool {
        self.num_calls > 0
    }

    /// Whether the answer is complete, whatever comes.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Whether the reasoning goes on.
    pub fn is_reasoning(&self) -> bool {
        match (&self.channels, &self.state) {
            (Some(channels), _) => channels.is_reasoning(),
            (None, State::Reasoning) => true,
            (None, State::Lines(_, next)) => matches!(**next, State::Reasoning),
            _ => false,
        }
    }

    /// Adds text; returns what is decided.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.read(text, false)
    }

    /// Ends the answer: what is left of it.
    pub fn finish(&mut self) -> Vec<Piece> {
        self.read("", true)
    }

    fn read(&mut self, text: &str, is_end: bool) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.is_done() {
            return pieces;
        }
        self.held.push_str(text);
        if let Some(mut channels) = self.channels.take() {
            while !self.is_done() && channels.step(self, &mut pieces, is_end) {}
            self.channels = Some(channels);
            return pieces;
        }
        while !self.is_done() && self.step(&mut pieces, is_end) {}
        pieces
    }

    /// Whether there may be more.
    fn step(&mut self, pieces: &mut Vec<Piece>, is_end: bool) -> bool {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Begin => self.begin(is_end),
            State::Lines(most, next) => self.lines(most, next, is_end),
            State::Reasoning => self.reasoning(pieces, is_end),
            State::Text => self.text(pieces, is_end),
            State::Json(scan) => self.json(scan, pieces),
            State::ObjectEnd => self.object_end(is_end),
            State::Parameter => self.parameter(pieces, is_end),
            State::Value(open) => self.value(open, pieces, is_end),
            State::Members(members) => self.members(members, pieces, is_end),
            State::CallEnd => self.call_end(is_end),
            State::Between => self.between(pieces, is_end),
            State::Done => {
                self.state = State::Done;
                false
            }
        }
    }

    /// Waits for more.
    fn wait(&mut self, state: State) -> bool {
        self.state = state;
        false
    }

    fn go(&mut self, state: State) -> bool {
        self.state = state;
        true
    }

    fn begin(&mut self, is_end: bool) -> bool {
        let Some(Marks { open, .. }) = &self.format.reasoning else {
            return self.go(State::Text);
        };
        let (open, text) = (open.trim(), self.held.trim_start());
        if !open.is_empty() && text.starts_with(open) {
            let len = self.held.len() - text.len() + open.len();
            self.held.drain(..len);
            return self.go(State::Lines(2, Box::new(State::Reasoning)));
        }
        match open.starts_with(text) && !is_end {
            true => self.wait(State::Begin),
            false => self.go(State::Text),
        }
    }

    fn lines(&mut self, most: u8, next: Box<State>, is_end: bool) -> bool {
        match self.held.starts_with('\n') && most > 0 {
            true => {
                self.held.remove(0);
                self.go(State::Lines(most - 1, next))
            }
            false if self.held.is_empty() && most > 0 && !is_end => {
                self.wait(State::Lines(most, next))
            }
            false => self.go(*next),
        }
    }

    fn reasoning(&mut self, pieces: &mut Vec<Piece>, is_end: bool) -> bool {
        let close = self.format.reasoning.as_ref().map_or("", |marks| marks.close.trim());
        if let Some(at) = self.held.find(close).filter(|_| !close.is_empty()) {
            let end = at + close.len();
            let text = &self.held[..at];
            let text = text.strip_suffix('\n').unwrap_or(text);
            let text = text.strip_suffix('\n').unwrap_or(text).to_owned();
            self.held.drain(..end);
            push_reasoning(pieces, text);
            return self.go(State::Lines(2, Box::new(State::Text)));
        }
        let kept = match is_end {
            true => self.held.len(),
            false => {
                let before = self.held.len() - partial(&self.held, close);
                let text = &self.held[..before];
                let text = text.strip_suffix('\n').unwrap_or(text);
                text.strip_suffix('\n').unwrap_or(text).len()
            }
        };
        push_reasoning(pieces, self.held.drain(..kept).collect());
        self.wait(State::Reasoning)
    }

    /// Texts that may begin a call, or stand around the text.
    fn cues(&self) -> Vec<(String, Cue<'_>)> {
        let mut cues: Vec<(String, Cue<'_>)> = Vec::new();
        if let Some(calls) = &self.format.calls {
            cues.extend(calls.cues().into_iter().map(|cue| (cue, Cue::Call)));
        }
        let Marks { open, close } = &self.format.content;
        let around = [(open, self.is_blank), (close, true)];
        let around = around.into_iter().filter(|(mark, is_wanted)| *is_wanted && !mark.is_empty());
        cues.extend(around.map(|(mark, _)| (mark.trim().to_owned(), Cue::Around(mark.trim()))));
        cues
    }

    fn text(&mut self, pieces: &mut Vec<Piece>, is_end: bool) -> bool {
        let cues = self.cues();
        let found = cues.iter().filter_map(|(word, cue)| Some((self.held.find(&**word)?, cue)));
        let is_bare = self.format.calls.as_ref().is_some_and(Calls::is_bare);
        let start = self.held.len() - self.held.trim_start().len();
        let bare = self.is_blank && is_bare && self.held[start..].starts_with(['{', '[']);
        let bare = bare.then_some((start, &Cue::Call));
        // Of two at one place the mark around the text is the longer one.
        let first = found.chain(bare).min_by_key(|(at, cue)| (*at, matches!(cue, Cue::Call)));
        let Some((at, cue)) = first else {
            let held = cues.iter().map(|(word, _)| partial(&self.held, word)).max().unwrap_or(0);
            return self.said(held, pieces, is_end);
        };
        if let Cue::Around(mark) = cue {
            let end = at + mark.len();
            let text: String = self.held[..at].to_owned();
            self.held.drain(..end);
            self.say(text, pieces);
            return self.go(State::Lines(2, Box::new(State::Text)));
        }
        let may_be_around = cues
            .iter()
            .any(|(word, cue)| matches!(cue, Cue::Around(_)) && word.starts_with(&self.held[at..]));
        match self.head(&self.held[at..], false) {
            Head::No if may_be_around && !is_end => self.wait(State::Text),
            Head::Call { name, id, len, in_section, next } => {
                let gap = self.format.calls.as_ref().map_or("", |calls| &calls.gap);
                let before = &self.held[..at];
                let is_blank = self.is_blank && before.trim().is_empty();
                let before = match is_blank {
                    true => String::new(),
                    false => before.strip_suffix(gap).unwrap_or(before).to_owned(),
                };
                self.held.drain(..at + len);
                self.say(before, pieces);
                self.in_section = in_section;
                self.begin_call(name, id, pieces);
                self.go(next)
            }
            Head::More if !is_end && self.held.len() - at < MAX_HEAD => {
                let kept = self.held[..at].trim_end().len();
                let text = self.held.drain(..kept).collect();
                self.say(text, pieces);
                self.wait(State::Text)
            }
            Head::More | Head::No => {
                let first = self.held[at..].chars().next().map_or(0, char::len_utf8);
                let text = self.held.drain(..at + first).collect();
                self.say(text, pieces);
                self.go(State::Text)
            }
        }
    }

    /// Gives the text but for its last `held` bytes and the white space before them, which may belong to a call.
    fn said(&mut self, held: usize, pieces: &mut Vec<Piece>, is_end: bool) -> bool {
        let kept = match is_end {
            true if self.num_calls > 0 && self.is_blank && self.held.trim().is_empty() => 0,
            true => self.held.len(),
            false => self.held[..self.held.len() - held].trim_end().len(),
        };
        let text = self.held.drain(..kept).collect();
        self.say(text, pieces);
        self.wait(State::Text)
    }

    fn say(&mut self, text: String, pieces: &mut Vec<Piece>) {
        self.is_blank &= text.trim().is_empty();
        push_text(pieces, text);
    }

    /// Announces a call.
    pub(super) fn begin_call(&mut self, name: String, id: Option<String>, pieces: &mut Vec<Piece>) {
        let index = self.num_calls;
        self.num_calls += 1;
        let numbered = self.format.calls.as_ref().is_some_and(|calls| calls.has_numbered_ids);
        let id = match id.filter(|id| !self.ids.contains(id)) {
            Some(id) => id,
            None if numbered => format!("functions.{name}:{index}"),
            None => new_id(&self.format),
        };
        self.ids.push(id.clone());
        (self.name, self.num_members) = (Some(name.clone()), 0);
        pieces.push(Piece::CallBegin { index, id, name });
    }

    /// More of the arguments of the present call.
    pub(super) fn argue(&self, json: String, pieces: &mut Vec<Piece>) {
        let index = self.num_calls - 1;
        if json.is_empty() {
            return;
        }
        match pieces.last_mut() {
            Some(Piece::CallArguments { index: last, json: before }) if *last == index => {
                before.push_str(&json);
            }
            _ => pieces.push(Piece::CallArguments { index, json }),
        }
    }

    /// After a call: the answer may have no other.
    pub(super) fn end_if_single(&mut self) {
        if self.is_single {
            self.state = State::Done;
        }
    }

    fn call_end(&mut self, is_end: bool) -> bool {
        let Some(calls) = &self.format.calls else { return self.go(State::Text) };
        match calls.call.1.read(&self.held, "") {
            Read::Whole { len, .. } => {
                self.held.drain(..len);
            }
            Read::More if !is_end => return self.wait(State::CallEnd),
            // The answer ends inside of the mark.
            Read::More => self.held.clear(),
            Read::No => {}
        }
        self.is_blank = true;
        match self.is_single {
            true => self.go(State::Done),
            false => self.go(State::Between),
        }
    }

    /// After a call: what the template has between two, if a call comes next.
    fn separated(&mut self, pieces: &mut Vec<Piece>, is_end: bool) -> bool {
        let separator = self.format.calls.as_ref().map_or("", |calls| calls.separator.trim());
        let rest = self.held.trim_start();
        let skipped = self.held.len() - rest.len();
        let Some(rest) = rest.strip_prefix(separator) else {
            return match separator.starts_with(rest) && !is_end {
                true => self.wait(State::Between),
                false => self.go(State::Text),
            };
        };
        match self.head(rest, false) {
            Head::Call { name, id, len, in_section, next } => {
                self.held.drain(..skipped + separator.len() + len);
                self.in_section = in_section;
                self.begin_call(name, id, pieces);
                self.go(next)
            }
            Head::More if !is_end && rest.len() < MAX_HEAD => self.wait(State::Between),
            Head::More | Head::No => self.go(State::Text),
        }
    }

    /// After a call of a section: another one, or its end.
    fn between(&mut self, pieces: &mut Vec<Piece>, is_end: bool) -> bool {
        let is_mark = |calls: &Calls| calls.separator.contains(['<', '[']);
        if !self.in_section && self.format.calls.as_ref().is_some_and(is_mark) {
            return self.separated(pieces, is_end);
        }
        let Some(calls) = self.format.calls.as_ref().filter(|_| self.in_section) else {
            return self.go(State::Text);
        };
        let is_separator = |c: char| c.is_whitespace() || matches!(c, ',' | ';');
        let mut rest = self.held.trim_start_matches(is_separator);
        let is_list_end = calls.is_list && rest.starts_with(']');
        if is_list_end {
            rest = rest[1..].trim_start();
        }
        let skipped = self.held.len() - rest.len();
        let close = match calls.section.1.is_blank() {
            // The list is all of it.
            true if is_list_end => Read::Whole { len: 0, id: None, is_string: None },
            true => Read::No,
            false => calls.section.1.read(rest, ""),
        };
        if let Read::Whole { len, .. } = close {
            self.held.drain(..skipped + len);
            self.in_section = false;
            return self.go(State::Text);
        }
        if rest.is_empty() && !is_end {
            return self.wait(State::Between);
        }
        // The end of the turn stands in place of the rest of it.
        if close == Read::More && is_end {
            self.held.clear();
            return self.wait(State::Text);
        }
        match self.head(rest, true) {
            Head::Call { name, id, len, next, .. } => {
                self.held.drain(..skipped + len);
                self.begin_call(name, id, pieces);
                self.go(next)
            }
            Head::More if !is_end && rest.len() < MAX_HEAD => self.wait(State::Between),
            _ if close == Read::More && !is_end => self.wait(State::Between),
            Head::More | Head::No => {
                self.in_section = false;
                self.go(State::Text)
            }
        }
    }

    /// The end of what an object has beside its name and its arguments.
    fn object_end(&mut self, is_end: bool) -> bool {
        match super::json::object_end(&self.held) {
            Some(end) => {
                self.held.drain(..end);
                self.go(State::CallEnd)
            }
            None if !is_end && self.held.len() < MAX_HEAD => self.wait(State::ObjectEnd),
            None => self.go(State::CallEnd),
        }
    }

    /// The arguments as they come.
    fn json(&mut self, mut scan: Scan, pieces: &mut Vec<Piece>) -> bool {
        let mut json = String::new();
        let (len, is_whole) = scan.push(&self.held, &mut json);
        self.held.drain(..len);
        self.argue(json, pieces);
        let is_object = |calls: &Calls| matches!(calls.style, Style::Object { .. });
        match is_whole {
            true if self.format.calls.as_ref().is_some_and(is_object) => self.go(State::ObjectEnd),
            true => self.go(State::CallEnd),
            false => self.wait(State::Json(scan)),
        }
    }
}

/// Bytes at the end of `text` that `word` may begin with, but not all of it.
pub(super) fn partial(text: &str, word: &str) -> usize {
    let lens = (1..word.len()).rev().filter(|&len| word.is_char_boundary(len));
    lens.into_iter().find(|&len| text.ends_with(&word[..len])).unwrap_or(0)
}

pub(super) fn push_text(pieces: &mut Vec<Piece>, text: String) {
    if text.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(Piece::Text(last)) => last.push_str(&text),
        _ => pieces.push(Piece::Text(text)),
    }
}

pub(super) fn push_reasoning(pieces: &mut Vec<Piece>, text: String) {
    if text.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(Piece::Reasoning(last)) => last.push_str(&text),
        _ => pieces.push(Piece::Reasoning(text)),
    }
}

/// An id of a call; Mistral's templates take only those of nine letters and digits.
fn new_id(format: &AnswerFormat) -> String {
    let is_short = format.calls.as_ref().is_some_and(Calls::has_short_ids);
    let random = |len| rand::rng().sample_iter(Alphanumeric).take(len).map(char::from);
    match is_short {
        true => random(9).collect(),
        false => format!("call_{}", random(24).collect::<String>()),
    }
}

#[cfg(test)]
mod tests;
