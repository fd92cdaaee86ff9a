//! The beginning of a call, up to its arguments.

use super::super::json::{self, Found, Scan};
use super::super::mark::{Mark, Part, Read, segments};
use super::super::style::{Arguments, Style};
use super::super::{Calls, Tool};
use super::arguments::Members;
use super::{AnswerReader, State};

/// What stands at the beginning of a text.
#[derive(Debug)]
pub(super) enum Head {
    /// A call of a tool, up to its arguments.
    Call {
        name: String,
        id: Option<String>,
        len: usize,
        in_section: bool,
        next: State,
    },
    /// What may become one.
    More,
    No,
}

impl Calls {
    /// Whether calls have no mark before them: such an answer begins with an object.
    pub(in super::super) fn is_bare(&self) -> bool {
        self.section.0.is_blank() && self.call.0.is_blank()
    }

    pub(super) fn has_short_ids(&self) -> bool {
        let mut marks = [&self.section.0, &self.call.0].into_iter();
        marks.any(|mark| mark.first_text().contains("[TOOL_CALLS]"))
    }

    /// The text that begins calls, and nothing else: their first tag, or all of the mark where that is a word, or ends turns
    /// too. Empty if there is none.
    #[cfg(feature = "grammar")]
    pub(in super::super) fn trigger(&self) -> String {
        let open = self.section.0.clone().then(&self.call.0);
        let text = open.first_text().trim();
        let first = first_mark(text);
        let is_tag = first.starts_with(['<', '[', ']']) && !self.opens_with_turn_end;
        if is_tag { first.to_owned() } else { text.to_owned() }
    }

    /// What texts with calls in them have at the beginnings of calls.
    pub(super) fn cues(&self) -> Vec<String> {
        let mut cues: Vec<String> = Vec::new();
        let opens = self.opens(false);
        let texts = opens.iter().map(|(mark, _)| mark.first_text());
        for text in texts {
            let cue = first_mark(text).to_owned();
            if !cue.is_empty() && !cues.contains(&cue) {
                cues.push(cue);
            }
        }
        cues
    }

    /// Marks that calls begin with, and whether each opens the section.
    fn opens(&self, in_section: bool) -> Vec<(Mark, bool)> {
        let (section, call) = (&self.section.0, &self.call.0);
        let mut opens = Vec::new();
        if in_section {
            opens.push((call.clone(), true));
        } else {
            let is_section = !section.is_blank() || self.is_bare();
            opens.push((section.clone().then(call), is_section));
            if let Some(mark) = self.optional_open {
                opens.push((Mark::text(mark).then(call), true));
            }
            // Models leave the outer marks out.
            if !section.is_blank() && !call.is_blank() {
                opens.push((call.clone(), false));
            }
        }
        if let Some(last) = last_mark(call) {
            opens.push((last, in_section));
        }
        opens
    }
}

/// The first tag of a mark, or its first word.
fn first_mark(text: &str) -> &str {
    let text = text.trim();
    let word = text.split(char::is_whitespace).next().unwrap_or_default();
    let tag = segments(word).first().copied().unwrap_or_default();
    if tag.len() >= 4 && tag.len() < word.len() { tag } else { word }
}

/// The last tag before a name, where others stand before it: `<function=`.
fn last_mark(call: &Mark) -> Option<Mark> {
    let [Part::Text(text)] = call.0.as_slice() else { return None };
    let segments = segments(text);
    let last = segments.last()?;
    (segments.len() > 1 && last.len() >= 4 && last.starts_with('<'))
        .then(|| Mark::text(last.trim_end()))
}

impl AnswerReader {
    /// The beginning of a call at that of `text`.
    pub(super) fn head(&self, text: &str, in_section: bool) -> Head {
        let Some(calls) = &self.format.calls else { return Head::No };
        let mut may_come = false;
        for (mark, is_section) in calls.opens(in_section) {
            let (len, id) = match mark.read(text, "") {
                _ if mark.0.contains(&Part::Name) => match self.read_named(&mark, text) {
                    Some(Read::Whole { len, id, .. }) => (len, id),
                    Some(_) => {
                        may_come = true;
                        continue;
                    }
                    None => continue,
                },
                Read::Whole { len, id, .. } => (len, id),
                Read::More => {
                    may_come = true;
                    continue;
                }
                Read::No => continue,
            };
            let mut rest = text[len..].trim_start();
            if calls.is_list {
                rest = rest.strip_prefix('[').unwrap_or(rest).trim_start();
            }
            let skipped = text.len() - rest.len();
            let head = match &calls.style {
                Style::Object { name_key, arguments_key, .. } => {
                    self.object(rest, name_key.as_deref(), arguments_key)
                }
                Style::Named { middle, arguments } => self.named(rest, middle, arguments, calls),
            };
            match head {
                Head::Call { name, id: inner, len, next, .. } => {
                    let (id, len) = (inner.or(id), skipped + len);
                    let in_section = is_section || in_section;
                    return Head::Call { name, id, len, in_section, next };
                }
                Head::More => may_come = true,
                Head::No => {}
            }
        }
        if may_come { Head::More } else { Head::No }
    }

    /// A mark that has the name of the function itself.
    fn read_named(&self, mark: &Mark, text: &str) -> Option<Read> {
        let mut reads = self.tools.iter().map(|tool| mark.read(text, &tool.name));
        let reads: Vec<Read> = reads.by_ref().filter(|read| *read != Read::No).collect();
        reads.iter().find(|read| **read != Read::More).or(reads.first()).cloned()
    }

    /// A name, and what is between it and its arguments.
    fn named(&self, text: &str, middle: &Mark, arguments: &Arguments, calls: &Calls) -> Head {
        let mut may_come = text.is_empty();
        for tool in &self.tools {
            let Some(after) = text.strip_prefix(&*tool.name) else {
                may_come |= tool.name.starts_with(text);
                continue;
            };
            match self.after_name(after, tool, middle, arguments, calls) {
                Head::Call { name, id, len, in_section, next } => {
                    let len = tool.name.len() + len;
                    return Head::Call { name, id, len, in_section, next };
                }
                Head::More => may_come = true,
                Head::No => {}
            }
        }
        if may_come { Head::More } else { Head::No }
    }

    fn after_name(
        &self,
        text: &str,
        tool: &Tool,
        middle: &Mark,
        arguments: &Arguments,
        calls: &Calls,
    ) -> Head {
        let mut middles = vec![middle.clone()];
        if middle.0.len() > 1 {
            // Without the id.
            middles.extend(middle.0.last().map(|last| Mark(vec![last.clone()])));
        }
        if *arguments == Arguments::Json && !middle.is_blank() {
            middles.push(Mark::default());
        }
        let call = |id, len, next| {
            let name = tool.name.clone();
            Head::Call { name, id, len, in_section: false, next }
        };
        let mut may_come = text.is_empty();
        for middle in middles {
            let (len, id) = match middle.read(text, &tool.name) {
                Read::Whole { len, id, .. } => (len, id),
                Read::More => {
                    may_come = true;
                    continue;
                }
                Read::No => continue,
            };
            let rest = text[len..].trim_start();
            let at = text.len() - rest.len();
            match arguments {
                Arguments::Json if rest.starts_with('{') => {
                    return call(id, at, State::Json(Scan::default()));
                }
                Arguments::Bare { .. } if rest.starts_with('{') => {
                    return call(id, at + 1, State::Members(Members::new('}', ':')));
                }
                Arguments::Json | Arguments::Bare { .. } => may_come |= rest.is_empty(),
                Arguments::Python => {
                    return call(id, len, State::Members(Members::new(')', '=')));
                }
                Arguments::Fields(fields) => {
                    let open = fields.open.read(rest, "");
                    let close = calls.call.1.read(rest, "");
                    if [&open, &close].iter().any(|read| matches!(read, Read::Whole { .. })) {
                        return call(id, len, State::Parameter);
                    }
                    may_come |= open == Read::More || close == Read::More;
                }
            }
        }
        if may_come { Head::More } else { Head::No }
    }

    /// An object up to its arguments; all of it if they stand before the name.
    fn object(&self, text: &str, name_key: Option<&str>, arguments_key: &str) -> Head {
        let mut rest = match text.strip_prefix('{') {
            Some(rest) => rest,
            None if text.is_empty() => return Head::More,
            None => return Head::No,
        };
        let (mut name, mut id): (Option<String>, Option<String>) = (None, None);
        let mut arguments: Option<&str> = None;
        loop {
            rest = rest.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
            if rest.starts_with('}') {
                let is_whole = name.is_some() && arguments.is_some();
                let arguments = arguments.filter(|_| is_whole).and_then(object_of);
                return match (self.known(name), arguments) {
                    (Some(name), Some(json)) => {
                        let len = text.len() - rest.len();
                        Head::Call { name, id, len, in_section: false, next: State::whole(json) }
                    }
                    _ => Head::No,
                };
            }
            let (key, len) = match json::string(rest) {
                Found::Whole(key, len) => (key, len),
                Found::More => return Head::More,
                Found::No => return Head::No,
            };
            rest = rest[len..].trim_start();
            rest = match rest.strip_prefix(':') {
                Some(rest) => rest.trim_start(),
                None if rest.is_empty() => return Head::More,
                None => return Head::No,
            };
            let is_name = match name_key {
                Some(name_key) => key == name_key || key == "name",
                None => false,
            };
            let is_arguments = match name_key {
                Some(_) => key == arguments_key || matches!(&*key, "arguments" | "parameters"),
                // The name is the key.
                None => {
                    name = Some(key.clone());
                    true
                }
            };
            if is_arguments && name.is_some() && rest.starts_with('{') {
                let len = text.len() - rest.len();
                return match self.known(name) {
                    Some(name) => {
                        let next = State::Json(Scan::default());
                        Head::Call { name, id, len, in_section: false, next }
                    }
                    None => Head::No,
                };
            }
            let len = match json::value(rest) {
                Found::Whole((), len) => len,
                Found::More => return Head::More,
                Found::No => return Head::No,
            };
            let value = &rest[..len];
            rest = &rest[len..];
            if is_name {
                match serde_json::from_str::<String>(value) {
                    Ok(value) if self.known(Some(value.clone())).is_some() => name = Some(value),
                    _ => return Head::No,
                }
            } else if is_arguments {
                arguments = Some(value);
            } else if key == "id" {
                id = serde_json::from_str::<String>(value).ok().filter(|id| !id.is_empty());
            }
        }
    }

    /// The name of a tool.
    pub(super) fn known(&self, name: Option<String>) -> Option<String> {
        name.filter(|name| self.tools.iter().any(|tool| tool.name == *name))
    }
}

impl State {
    /// Arguments that are there already, before the end of the call's object.
    fn whole(json: String) -> Self {
        State::Members(Members::whole(json))
    }
}

/// Arguments that are an object, or the text of one.
fn object_of(arguments: &str) -> Option<String> {
    if arguments.starts_with('{') {
        return Some(arguments.to_owned());
    }
    let text: String = serde_json::from_str(arguments).ok()?;
    let is_object = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text);
    is_object.is_ok().then_some(text)
}
