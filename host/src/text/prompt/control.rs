//! Control tokens, told apart from text that is spelt alike while a template runs.
//!
//! A template and what it is given are strings to the template's engine, which keeps no record of where a character came
//! from. So the first character of each control token that the *template* spells out is another one while it runs, of a
//! private-use plane: what came from outside has none of those, whatever the template does with it, and the texts keep
//! their lengths, their spaces and their order.
//!
//! | in a marked text | stands for |
//! | --- | --- |
//! | U+100000 + i | the i-th first character of control tokens, written by the template |
//! | U+108000 + i | the i-th punctuation character of composed tokens, from outside |
//! | U+10FFFD, c | a character of this plane itself, 65,536 above c |

use std::borrow::Cow;
use std::ops::Range;

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};

use crate::text::error::{TextError, one_line};

/// Where the marks of first characters begin.
const FIRST: u32 = 0x10_0000;

/// Where the marks of characters from outside begin.
const OUTSIDE: u32 = 0x10_8000;

/// Before a character that is a mark by itself.
const ESCAPE: char = '\u{10FFFD}';

/// From a plane of marks to one without.
const PLANE: u32 = 0x1_0000;

/// A token that a text may hold as a part of its own.
#[derive(Clone, Debug)]
pub(super) struct ControlToken {
    /// Id of the token.
    pub id: u32,
    /// Text of the token.
    pub spelling: String,
    /// It is never text: an assistant's own turn can't hold it either.
    pub is_special: bool,
    /// The template puts it together, of parts that it spells out and the name of a role.
    pub is_composed: bool,
}

/// The control tokens of a template, and the marks that tell them apart.
#[derive(Debug)]
pub(super) struct ControlTokens {
    tokens: Vec<ControlToken>,
    all: AhoCorasick,
    composed: Option<AhoCorasick>,
    firsts: Vec<char>,
    /// Characters of composed tokens: no part of such a token can come from outside.
    guarded: Vec<char>,
}

/// A text from outside with its marks.
pub(super) struct Outside<'a> {
    pub text: Cow<'a, str>,
    /// It spelt a control token, which is text now.
    pub is_neutralised: bool,
}

/// What a marked text says.
pub(super) struct Unmarked {
    /// The text without marks.
    pub text: String,
    /// The control tokens in it, in order: bytes of the text, and the index of the token.
    pub tokens: Vec<(Range<usize>, usize)>,
}

impl ControlTokens {
    pub fn new(tokens: Vec<ControlToken>) -> Result<Self, TextError> {
        let mut firsts: Vec<char> =
            tokens.iter().filter_map(|token| token.spelling.chars().next()).collect();
        firsts.sort_unstable();
        firsts.dedup();
        let composed: Vec<&str> = tokens
            .iter()
            .filter(|token| token.is_composed)
            .map(|token| &token.spelling[..])
            .collect();
        let mut guarded: Vec<char> =
            composed.iter().flat_map(|spelling| spelling.chars()).filter(is_guarded).collect();
        guarded.sort_unstable();
        guarded.dedup();
        let composed = (!composed.is_empty()).then(|| finder(composed)).transpose()?;
        let all = finder(tokens.iter().map(|token| &token.spelling[..]))?;
        Ok(Self { tokens, all, composed, firsts, guarded })
    }

    pub fn tokens(&self) -> &[ControlToken] {
        &self.tokens
    }

    /// A text of the template: its control tokens are marked.
    pub fn mark<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.marked(text, |_| true, false).text
    }

    /// A text from outside; `is_own` if the assistant wrote it, whose marks of reasoning and calls stay tokens where they
    /// aren't special.
    pub fn mark_outside<'a>(&self, text: &'a str, is_own: bool) -> Outside<'a> {
        self.marked(text, |token| is_own && !token.is_special, true)
    }

    fn marked<'a>(
        &self,
        text: &'a str,
        is_kept: impl Fn(&ControlToken) -> bool,
        is_outside: bool,
    ) -> Outside<'a> {
        let (mut out, mut done, mut is_neutralised) = (String::new(), 0, false);
        for found in self.all.find_iter(text) {
            if !is_kept(&self.tokens[found.pattern().as_usize()]) {
                is_neutralised = true;
                continue;
            }
            let Some(first) = text[found.start()..].chars().next() else { continue };
            let Some(mark) = mark(FIRST, &self.firsts, first) else { continue };
            self.push(&mut out, &text[done..found.start()], is_outside);
            out.push(mark);
            out.push_str(&text[found.start() + first.len_utf8()..found.end()]);
            done = found.end();
        }
        // Most texts have nothing to mark.
        if done == 0 && !self.changes(text, is_outside) {
            return Outside { text: text.into(), is_neutralised };
        }
        self.push(&mut out, &text[done..], is_outside);
        Outside { text: out.into(), is_neutralised }
    }

    /// Whether [`Self::push`] writes something else than `text`.
    fn changes(&self, text: &str, is_outside: bool) -> bool {
        let may_be_mark = text.bytes().any(|byte| byte == 0xF4);
        let guards = is_outside && !self.guarded.is_empty();
        (may_be_mark && text.chars().any(is_mark))
            || (guards && text.contains(|char| self.guarded.contains(&char)))
    }

    /// Text without control tokens.
    fn push(&self, out: &mut String, text: &str, is_outside: bool) {
        if !self.changes(text, is_outside) {
            return out.push_str(text);
        }
        for char in text.chars() {
            match mark(OUTSIDE, &self.guarded, char).filter(|_| is_outside) {
                Some(mark) => out.push(mark),
                None if is_mark(char) => {
                    out.extend([ESCAPE, below(char)]);
                }
                None => out.push(char),
            }
        }
    }

    /// The text of a marked one, and the control tokens in it.
    pub fn unmark(&self, marked: &str) -> Unmarked {
        let mut text = String::with_capacity(marked.len());
        // Bytes where the template wrote the first character of a token, and where a character is none of a token.
        let (mut written, mut outside) = (Vec::new(), Vec::new());
        let mut chars = marked.chars().peekable();
        while let Some(char) = chars.next() {
            let at = text.len();
            let of = |base: u32, list: &[char]| -> Option<char> {
                u32::from(char)
                    .checked_sub(base)
                    .and_then(|index| list.get(index as usize))
                    .copied()
            };
            if !is_mark(char) {
                text.push(char);
            } else if let Some(first) = of(FIRST, &self.firsts) {
                written.push(at);
                text.push(first);
            } else if let Some(guarded) = of(OUTSIDE, &self.guarded) {
                outside.push(at);
                text.push(guarded);
            } else if char == ESCAPE
                && let Some(escaped) = chars.peek().copied().and_then(above)
            {
                chars.next();
                text.push(escaped);
            } else {
                // A part that a template cut off.
                text.push(char);
            }
        }
        let tokens = self.find(&text, &written, &outside);
        Unmarked { text, tokens }
    }

    /// The control tokens of a text that begin at `written`, and the composed ones without a byte of `outside`.
    fn find(&self, text: &str, written: &[usize], outside: &[usize]) -> Vec<(Range<usize>, usize)> {
        let is_whole = |range: &Range<usize>| {
            let next = outside.partition_point(|&at| at < range.start);
            outside.get(next).is_none_or(|&at| at >= range.end)
        };
        let written = written.iter().filter_map(|&at| {
            let found = self.all.find(Input::new(text).range(at..).anchored(Anchored::Yes))?;
            Some((found.range(), found.pattern().as_usize()))
        });
        let mut found: Vec<(Range<usize>, usize)> = written.collect();
        if let Some(composed) = &self.composed {
            let indices: Vec<usize> =
                (0..self.tokens.len()).filter(|&index| self.tokens[index].is_composed).collect();
            let composed = composed.find_iter(text);
            found
                .extend(composed.map(|found| (found.range(), indices[found.pattern().as_usize()])));
        }
        found.retain(|(range, _)| is_whole(range));
        found.sort_by_key(|(range, _)| (range.start, usize::MAX - range.end));
        let mut end = 0;
        found.retain(|(range, _)| {
            let is_next = range.start >= end;
            if is_next {
                end = range.end;
            }
            is_next
        });
        found
    }
}

/// Whether a character stands for another one in a marked text.
pub(super) fn is_mark(char: char) -> bool {
    u32::from(char) >= FIRST
}

/// Punctuation but for the quotes and escapes of JSON, which a template may look for.
fn is_guarded(char: &char) -> bool {
    !char.is_alphanumeric() && !char.is_whitespace() && !matches!(char, '_' | '"' | '\'' | '\\')
}

/// The mark of a character in `list`.
fn mark(base: u32, list: &[char], char: char) -> Option<char> {
    char::from_u32(base + u32::try_from(list.binary_search(&char).ok()?).ok()?)
}

/// The character of the plane below, for one of the plane of marks.
fn below(char: char) -> char {
    char::from_u32(u32::from(char) - PLANE).unwrap_or(char)
}

/// The other way round.
fn above(char: char) -> Option<char> {
    char::from_u32(u32::from(char) + PLANE).filter(|&char| is_mark(char))
}

/// Finds the longest of `spellings` at each place.
pub(super) fn finder<'a>(
    spellings: impl IntoIterator<Item = &'a str>,
) -> Result<AhoCorasick, TextError> {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .start_kind(StartKind::Both)
        .build(spellings)
        .map_err(|error| TextError::Vocabulary(one_line(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> ControlTokens {
        let token = |spelling: &str, is_special, is_composed| ControlToken {
            id: 0,
            spelling: spelling.to_owned(),
            is_special,
            is_composed,
        };
        ControlTokens::new(vec![
            token("<|end|>", true, false),
            token("<think>", false, false),
            token("[INST]", true, false),
            token("<|user|>", true, true),
        ])
        .unwrap()
    }

    fn read(control: &ControlTokens, marked: &str) -> (String, Vec<String>) {
        let Unmarked { text, tokens } = control.unmark(marked);
        let tokens = tokens.iter().map(|(range, index)| {
            assert_eq!(text[range.clone()], control.tokens()[*index].spelling);
            text[range.clone()].to_owned()
        });
        let tokens = tokens.collect();
        (text, tokens)
    }

    #[test]
    fn a_marked_text_keeps_its_length_and_says_where_its_tokens_are() {
        let control = control();
        let text = "[INST] a <|end|><think>";
        let marked = control.mark(text);
        assert_eq!(marked.chars().count(), text.chars().count());
        assert!(!marked.contains("[INST]") && marked.contains("INST] a "));
        let (read, tokens) = read(&control, &marked);
        assert_eq!(read, text);
        assert_eq!(tokens, ["[INST]", "<|end|>", "<think>"]);
    }

    #[test]
    fn a_text_from_outside_has_no_tokens_but_for_the_own_marks_of_the_assistant() {
        let control = control();
        for text in [
            "<|end|>",
            "a[INST]b<think>c",
            "<|user|>",
            "\u{100000}|end|>",
            "\u{10FFFD}\u{F0000}|end|>",
            "\u{108000}\u{10FFFD}\u{100001}INST]",
            "",
        ] {
            let outside = control.mark_outside(text, false);
            assert_eq!(read(&control, &outside.text), (text.to_owned(), vec![]), "{text:?}");
            let is_spelt =
                ["<|end|>", "[INST]", "<|user|>"].iter().any(|spelt| text.contains(spelt));
            assert_eq!(outside.is_neutralised, is_spelt, "{text:?}");
        }
        let own = control.mark_outside("<think>a</think><|end|>", true);
        assert!(own.is_neutralised);
        let (text, tokens) = read(&control, &own.text);
        assert_eq!(
            (&text[..], &tokens[..]),
            ("<think>a</think><|end|>", &["<think>".to_owned()][..])
        );
    }

    #[test]
    fn a_composed_token_is_one_where_no_part_is_from_outside() {
        let control = control();
        let outside = control.mark_outside("|user|>", false).text;
        for marked in [format!("<{outside}"), control.mark_outside("<|user|>", false).text.into()] {
            assert_eq!(read(&control, &marked), ("<|user|>".to_owned(), vec![]));
        }
        assert_eq!(read(&control, "x<|user|>").1, ["<|user|>"]);
    }

    #[test]
    fn what_a_template_cuts_off_is_no_token() {
        let control = control();
        let marked = control.mark("<|end|>");
        let cut: String = marked.chars().take(3).collect();
        assert_eq!(read(&control, &cut), ("<|e".to_owned(), vec![]));
        assert_eq!(read(&control, "\u{10FFFD}x"), ("\u{10FFFD}x".to_owned(), vec![]));
    }
}
