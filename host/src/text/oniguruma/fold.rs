//! Letter case where one character is several in another case: with `(?i)`, Oniguruma matches `ß`
//! with `ss` and `ﬁ` with `fi`. `fancy-regex` never does, so such patterns are refused.

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

use super::{Node, class};

/// The characters whose full case folding is a sequence: status F of `CaseFolding.txt`.
const TO_SEQUENCE: &[(char, char)] = &[
    ('\u{DF}', '\u{DF}'),
    ('\u{130}', '\u{130}'),
    ('\u{149}', '\u{149}'),
    ('\u{1F0}', '\u{1F0}'),
    ('\u{390}', '\u{390}'),
    ('\u{3B0}', '\u{3B0}'),
    ('\u{587}', '\u{587}'),
    ('\u{1E96}', '\u{1E9A}'),
    ('\u{1E9E}', '\u{1E9E}'),
    ('\u{1F50}', '\u{1F57}'),
    ('\u{1F80}', '\u{1FAF}'),
    ('\u{1FB2}', '\u{1FFC}'),
    ('\u{FB00}', '\u{FB06}'),
    ('\u{FB13}', '\u{FB17}'),
];

/// The second characters of those sequences that follow no ASCII letter, or any.
const SECOND: [char; 14] = [
    '\u{2BE}', '\u{307}', '\u{308}', '\u{30A}', '\u{30C}', '\u{313}', '\u{331}', '\u{342}',
    '\u{3B9}', '\u{565}', '\u{56B}', '\u{56D}', '\u{576}', '\u{582}',
];

/// The sequences that begin with these two characters: `ss`, `st`, `ff`, `fi`, `fl`, `ʼn`.
const PAIRS: [(char, char); 6] =
    [('s', 's'), ('s', 't'), ('f', 'f'), ('f', 'i'), ('f', 'l'), ('\u{2BC}', 'n')];

/// `set` with the other cases of its characters.
pub(super) fn any_case(mut set: ClassUnicode) -> ClassUnicode {
    set.case_fold_simple();
    set
}

/// `char` in every case.
pub(super) fn cases_of(char: char) -> ClassUnicode {
    any_case(class::set(&[(char, char)]))
}

/// Whether a character of `set` is a sequence in another case.
pub(super) fn has_sequence(set: &ClassUnicode) -> bool {
    let mut common = class::set(TO_SEQUENCE);
    common.intersect(set);
    !common.ranges().is_empty()
}

/// Refuses letters of any case that make such a sequence, or are one in another case.
pub(super) fn check(node: &Node) -> Result<(), String> {
    match node {
        Node::Char { char, ignore_case: true } if has_sequence(&cases_of(*char)) => {
            Err(format!("(?i) with '{char}', which has several characters in another case"))
        }
        Node::Char { .. } | Node::Set(_) | Node::Anchor(_) | Node::LineBreak => Ok(()),
        Node::Look { node, .. } | Node::Atomic(node) | Node::Capture(node) => check(node),
        Node::Repeat { node, .. } => {
            check_joint(node, node)?;
            check(node)
        }
        Node::Alternate(nodes) => nodes.iter().try_for_each(check),
        Node::Concat(nodes) => {
            nodes.windows(2).try_for_each(|pair| check_joint(&pair[0], &pair[1]))?;
            nodes.iter().try_for_each(check)
        }
    }
}

/// Refuses two nodes in a row whose letters at the joint make a sequence.
fn check_joint(left: &Node, right: &Node) -> Result<(), String> {
    let (mut last, mut first) = (Vec::new(), Vec::new());
    edge(left, true, &mut last);
    edge(right, false, &mut first);
    let is = |char, other| char == other || cases_of(other).ranges().iter().any(|r| holds(r, char));
    for &a in &last {
        for &b in &first {
            let is_pair = PAIRS.iter().any(|&(x, y)| is(a, x) && is(b, y));
            if is_pair || SECOND.iter().any(|&y| is(b, y)) {
                return Err(format!("(?i) with '{a}{b}', which is one character in another case"));
            }
        }
    }
    Ok(())
}

fn holds(range: &ClassUnicodeRange, char: char) -> bool {
    (range.start()..=range.end()).contains(&char)
}

/// The letters of any case that `node` may end (or begin) with.
fn edge(node: &Node, at_end: bool, chars: &mut Vec<char>) {
    match node {
        Node::Char { char, ignore_case: true } => chars.push(*char),
        Node::Char { .. } | Node::Set(_) | Node::Anchor(_) => {}
        Node::LineBreak | Node::Look { .. } => {}
        Node::Atomic(node) | Node::Capture(node) | Node::Repeat { node, .. } => {
            edge(node, at_end, chars);
        }
        Node::Concat(nodes) => {
            let node = if at_end { nodes.last() } else { nodes.first() };
            if let Some(node) = node {
                edge(node, at_end, chars);
            }
        }
        Node::Alternate(nodes) => nodes.iter().for_each(|node| edge(node, at_end, chars)),
    }
}
