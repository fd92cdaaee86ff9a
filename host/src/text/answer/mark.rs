//! Texts that a template writes around what is called, with holes.

use std::fmt;

/// A part of a [`Mark`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Text(String),
    /// Digits that count, from this number on.
    Number(usize),
    /// The id of the call.
    Id,
    /// The name of the function once more.
    Name,
    /// The name of the parameter once more.
    Key,
    /// Whether the value is a string: the word that says so.
    Kind(String),
}

/// A text with holes. White space in it is as the template has it, and is passed by in what a model writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark(pub Vec<Part>);

/// What stands at the beginning of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// The mark, of so many bytes.
    Whole {
        len: usize,
        id: Option<String>,
        is_string: Option<bool>,
    },
    /// The text may become it.
    More,
    No,
}

/// Bytes of an id at most.
const MAX_ID: usize = 128;

impl Mark {
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.is_empty() { Mark::default() } else { Mark(vec![Part::Text(text)]) }
    }

    /// Mark of a rendered text: `id`, `name` and `key` in it become holes.
    pub fn of(text: &str, holes: &[(&str, Part)]) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let first = holes.iter().filter(|(word, _)| !word.is_empty());
            let first = first.filter_map(|(word, part)| Some((rest.find(word)?, word, part)));
            let Some((at, word, part)) = first.min_by_key(|(at, ..)| *at) else { break };
            if at > 0 {
                parts.push(Part::Text(rest[..at].to_owned()));
            }
            parts.push(part.clone());
            rest = &rest[at + word.len()..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Mark(parts)
    }

    /// Whether there is nothing but white space.
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(|part| matches!(part, Part::Text(text) if text.trim().is_empty()))
    }

    /// The text before the first hole.
    pub fn first_text(&self) -> &str {
        match self.0.first() {
            Some(Part::Text(text)) => text,
            _ => "",
        }
    }

    pub fn then(mut self, other: &Mark) -> Mark {
        for part in &other.0 {
            match (self.0.last_mut(), part) {
                (Some(Part::Text(last)), Part::Text(text)) => last.push_str(text),
                _ => self.0.push(part.clone()),
            }
        }
        self
    }

    /// With a number for digits that `other`, the same mark of another call, has otherwise.
    pub fn counting(self, other: &Mark) -> Mark {
        if self == *other {
            return self;
        }
        let split = |mark: &Mark| {
            let mut parts = Vec::new();
            for part in &mark.0 {
                match part {
                    Part::Text(text) => parts.extend(digits_apart(text)),
                    hole => parts.push(hole.clone()),
                }
            }
            parts
        };
        let (mine, others) = (split(&self), split(other));
        if mine.len() != others.len() {
            return self;
        }
        let is_number = |part: &Part| matches!(part, Part::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit()));
        let mut counting = Mark::default();
        for (mine, other) in mine.into_iter().zip(others) {
            let part = match &mine {
                _ if mine == other => mine,
                Part::Text(first) if is_number(&mine) && is_number(&other) => {
                    Part::Number(first.parse().unwrap_or_default())
                }
                _ => return self,
            };
            counting = counting.then(&Mark(vec![part]));
        }
        counting
    }

    /// Reads it at the beginning of `text`, where `word` is what its holes for a name or a key have.
    pub fn read(&self, text: &str, word: &str) -> Read {
        let (mut at, mut id, mut is_string) = (0, None, None);
        for (index, part) in self.0.iter().enumerate() {
            let run = |ends: &dyn Fn(char) -> bool| {
                let len = text[at..].find(|c: char| ends(c))?;
                Some((at..at + len, at + len))
            };
            let next = || match self.0.get(index + 1) {
                Some(Part::Text(text)) => text.chars().find(|c| !c.is_whitespace()),
                _ => None,
            };
            let read = match part {
                Part::Text(literal) => literal_end(&text[at..], literal),
                Part::Name | Part::Key => literal_end(&text[at..], word),
                Part::Number(_) => match run(&|c| !c.is_ascii_digit()) {
                    Some((range, _)) if range.is_empty() => Read::No,
                    Some((range, _)) => whole(range.len()),
                    None => Read::More,
                },
                Part::Id | Part::Kind(_) => {
                    let end = next();
                    let run = run(&|c| Some(c) == end || c.is_whitespace() || c == '{');
                    match run {
                        Some((range, _)) if !(1..=MAX_ID).contains(&range.len()) => Read::No,
                        Some((range, _)) => {
                            let word = text[range].to_owned();
                            let len = word.len();
                            match part {
                                Part::Kind(string) => is_string = Some(word == *string),
                                _ => id = Some(word),
                            }
                            whole(len)
                        }
                        None if text.len() - at > MAX_ID => Read::No,
                        None => Read::More,
                    }
                }
            };
            match read {
                Read::Whole { len, .. } => at += len,
                other => return other,
            }
        }
        Read::Whole { len: at, id, is_string }
    }
}

fn whole(len: usize) -> Read {
    Read::Whole { len, id: None, is_string: None }
}

/// `literal` at the beginning of `text`, with other white space or none.
fn literal_end(text: &str, literal: &str) -> Read {
    let mut at = 0;
    for wanted in literal.chars().filter(|c| !c.is_whitespace()) {
        let rest = text[at..].trim_start();
        let Some(found) = rest.chars().next() else { return Read::More };
        if found != wanted {
            return Read::No;
        }
        at = text.len() - rest.len() + found.len_utf8();
    }
    whole(at)
}

/// Runs of digits, and what is between them.
fn digits_apart(text: &str) -> Vec<Part> {
    let mut parts: Vec<String> = Vec::new();
    let mut was_digit = None;
    for char in text.chars() {
        let is_digit = char.is_ascii_digit();
        match parts.last_mut() {
            Some(last) if was_digit == Some(is_digit) => last.push(char),
            _ => parts.push(char.to_string()),
        }
        was_digit = Some(is_digit);
    }
    parts.into_iter().map(Part::Text).collect()
}

/// As a template would write it; for tables.
impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.0 {
            match part {
                Part::Text(text) => f.write_str(&text.replace('\n', "\\n"))?,
                Part::Number(first) => write!(f, "{{number from {first}}}")?,
                Part::Id => f.write_str("{id}")?,
                Part::Name => f.write_str("{name}")?,
                Part::Key => f.write_str("{key}")?,
                Part::Kind(string) => write!(f, "{{is {string}}}")?,
            }
        }
        Ok(())
    }
}

/// Text in pieces that no mark is cut in: tags `<..>` and `[..]`, and what is between them.
pub(super) fn segments(text: &str) -> Vec<&str> {
    let mut segments = Vec::new();
    let mut start = 0;
    let mut open: Option<(usize, char)> = None;
    for (at, char) in text.char_indices() {
        match (char, open) {
            _ if at < start => {}
            // MiniMax's mark, whose brackets are the wrong way round.
            (']', None) if text[at..].starts_with("]<]") => {
                let len = text[at..].find("[>[").map_or(1, |len| len + 3);
                segments.extend([&text[start..at], &text[at..at + len]]);
                start = at + len;
            }
            ('<' | '[', None) => {
                if at > start {
                    segments.push(&text[start..at]);
                }
                (start, open) = (at, Some((at, char)));
            }
            // One that was not closed.
            ('<', Some((from, _))) if at > from => {
                segments.push(&text[start..at]);
                (start, open) = (at, Some((at, char)));
            }
            ('>', Some((_, '<'))) | (']', Some((_, '['))) => {
                segments.push(&text[start..=at]);
                (start, open) = (at + 1, None);
            }
            _ => {}
        }
    }
    if start < text.len() {
        segments.push(&text[start..]);
    }
    segments.retain(|segment| !segment.is_empty());
    // White space stands apart: templates differ in it.
    segments.into_iter().flat_map(white_space_apart).collect()
}

fn white_space_apart(segment: &str) -> Vec<&str> {
    if segment.starts_with(['<', '[']) {
        return vec![segment];
    }
    let inner = segment.trim();
    let before = segment.len() - segment.trim_start().len();
    let parts = match inner.is_empty() {
        true => [segment, "", ""],
        false => [&segment[..before], inner, &segment[before + inner.len()..]],
    };
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

/// Bytes that both texts begin with, in whole segments.
pub(super) fn common_prefix(a: &str, b: &str) -> usize {
    let pairs = segments(a).into_iter().zip(segments(b));
    pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len()).sum()
}

/// Bytes that both texts end with, in whole segments.
pub(super) fn common_suffix(a: &str, b: &str) -> usize {
    let (a, b) = (segments(a), segments(b));
    let pairs = a.into_iter().rev().zip(b.into_iter().rev());
    pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_read_with_any_white_space() {
        let mark = Mark::of("<call>\n<f=", &[]);
        assert_eq!(mark.read("<call><f=x", ""), whole(9));
        assert_eq!(mark.read("<call>\n\n <f=x", ""), whole(12));
        assert_eq!(mark.read("<call>\n", ""), Read::More);
        assert_eq!(mark.read("<call>\nf", ""), Read::No);
    }

    #[test]
    fn holes_are_read() {
        let mark = Mark::of("#ID>f:", &[("ID", Part::Id)]);
        let got = mark.read("#abc>f:1", "");
        assert_eq!(got, Read::Whole { len: 7, id: Some("abc".to_owned()), is_string: None });
        let counting = Mark::text(":0<x>").counting(&Mark::text(":1<x>"));
        assert_eq!(counting.to_string(), ":{number from 0}<x>");
        assert_eq!(counting.read(":12<x>", ""), whole(6));
        assert_eq!(counting.read(":12", ""), Read::More);
        assert_eq!(Mark::text("a1").counting(&Mark::text("b2")), Mark::text("a1"));
    }

    #[test]
    fn segments_keep_tags_whole() {
        assert_eq!(segments(">\n<p=k>v</p>\n"), [">", "\n", "<p=k>", "v", "</p>", "\n"]);
        assert_eq!(common_prefix("<|a|><|b|>", "<|a|><|c|>"), 5);
        assert_eq!(common_suffix(">\n<p=", "</p>\n<p="), 4);
    }
}
