//! Regular expressions of `tokenizer.json` as Oniguruma reads them.
//!
//! The files are made and published with the library that calls Oniguruma (Ruby syntax, UTF-8);
//! here `fancy-regex` matches, whose syntax looks the same and differs in the small: `^` and `$`,
//! `(?m)`, `a(?i)b|c`, `{2}+`, `\h`, `\pL`, `\w`, POSIX brackets, case folding. So a pattern is
//! parsed by Oniguruma's rules and written again in constructs whose meaning both share: sets of
//! characters, groups, repetitions, lookaround. What has no exact form is refused by name, for
//! token ids that are silently other ones are the worst outcome.
//!
//! Source: `doc/RE` and `regparse.c` of Oniguruma 6.9.10, `OnigSyntaxRuby`.

mod class;
mod fold;
mod parse;
mod print;

use regex_syntax::hir::ClassUnicode;

use super::error::{TextError, one_line};

/// Longest pattern that is read, in bytes. BLOOM's to Kimi's have 40 to 400.
const MAX_PATTERN_BYTES: usize = 1 << 16;

/// Longest pattern that is written: each `\w` becomes 800 ranges of characters.
const MAX_PRINTED_BYTES: usize = 1 << 20;

/// The pattern of `fancy-regex` that matches what `pattern` matches in Oniguruma.
///
/// # Errors
/// [`TextError::Vocabulary`] with the construct that is malformed or has no exact form.
pub(super) fn translate(pattern: &str) -> Result<String, TextError> {
    let printed = print::print(&read(pattern)?);
    if printed.len() > MAX_PRINTED_BYTES {
        let reason = format!("its sets take over {MAX_PRINTED_BYTES} bytes");
        return Err(refusal(pattern, &reason));
    }
    Ok(printed)
}

/// Whether `pattern` may match the empty text.
///
/// # Errors
/// As of [`translate`].
pub(super) fn may_match_nothing(pattern: &str) -> Result<bool, TextError> {
    Ok(read(pattern)?.may_be_empty())
}

fn read(pattern: &str) -> Result<Node, TextError> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(refusal(pattern, &format!("it is over {MAX_PATTERN_BYTES} bytes long")));
    }
    let node = parse::parse(pattern).map_err(|reason| refusal(pattern, &reason))?;
    fold::check(&node).map_err(|reason| refusal(pattern, &reason))?;
    Ok(node)
}

fn refusal(pattern: &str, reason: &str) -> TextError {
    let pattern = one_line(pattern);
    TextError::Vocabulary(format!("the regular expression '{pattern}': {reason}"))
}

/// Whether both patterns are read as the same.
pub(super) fn is_same(left: &str, right: &str) -> bool {
    let (left_read, right_read) = (translate(left), translate(right));
    left == right || matches!((left_read, right_read), (Ok(left), Ok(right)) if left == right)
}

/// A parsed pattern.
#[derive(Debug)]
enum Node {
    /// A character, in any case with `ignore_case`.
    Char {
        char: char,
        ignore_case: bool,
    },
    /// A character of a set.
    Set(ClassUnicode),
    /// A place between characters.
    Anchor(Anchor),
    /// `\R`: a line break of any kind, `\r\n` as one.
    LineBreak,
    /// `(?=..)`, `(?<!..)` and the like.
    Look {
        behind: bool,
        negative: bool,
        node: Box<Node>,
    },
    /// `(?>..)`: what matched is kept.
    Atomic(Box<Node>),
    /// `(..)`: a group that captures, which keeps repetitions in and around it apart.
    Capture(Box<Node>),
    /// `min` to `max` times; `None` is without end.
    Repeat {
        node: Box<Node>,
        min: u32,
        max: Option<u32>,
        mode: Mode,
    },
    Concat(Vec<Node>),
    Alternate(Vec<Node>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    LineStart,
    LineEnd,
    TextStart,
    TextEnd,
    /// `\Z`: the end, or a newline before it.
    LastLineEnd,
    WordBoundary,
    NoWordBoundary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Greedy,
    Lazy,
    Possessive,
}

impl Node {
    /// Whether the empty text matches.
    fn may_be_empty(&self) -> bool {
        match self {
            Self::Char { .. } | Self::Set(_) | Self::LineBreak => false,
            Self::Anchor(_) | Self::Look { .. } => true,
            Self::Atomic(node) | Self::Capture(node) => node.may_be_empty(),
            Self::Repeat { node, min, .. } => *min == 0 || node.may_be_empty(),
            Self::Concat(nodes) => nodes.iter().all(Self::may_be_empty),
            Self::Alternate(nodes) => nodes.iter().any(Self::may_be_empty),
        }
    }
}

#[cfg(test)]
mod tests;
