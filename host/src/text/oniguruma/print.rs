//! A parsed pattern in the syntax of `fancy-regex`.

use std::fmt::Write;

use regex_syntax::hir::ClassUnicode;

use super::{Anchor, Mode, Node, class, fold};

/// `node` with all it means spelt out.
pub(super) fn print(node: &Node) -> String {
    let mut out = String::new();
    put(node, &mut out);
    out
}

fn put(node: &Node, out: &mut String) {
    match node {
        Node::Char { char, ignore_case: false } => put_char(*char, out),
        Node::Char { char, ignore_case: true } => put_set(&fold::cases_of(*char), out),
        Node::Set(set) => put_set(set, out),
        Node::Anchor(anchor) => put_anchor(*anchor, out),
        Node::LineBreak => out.push_str(r"(?>\x{D}\x{A}|[\x{A}-\x{D}\x{85}\x{2028}\x{2029}])"),
        Node::Look { behind, negative, node } => {
            let open = match (behind, negative) {
                (false, false) => "(?=",
                (false, true) => "(?!",
                (true, false) => "(?<=",
                (true, true) => "(?<!",
            };
            put_group(open, node, out);
        }
        Node::Atomic(node) => put_group("(?>", node, out),
        Node::Capture(node) => put_group("(?:", node, out),
        Node::Repeat { node, min, max, mode } => {
            if *mode == Mode::Possessive {
                out.push_str("(?>");
            }
            put_group("(?:", node, out);
            put_count(*min, *max, out);
            match mode {
                Mode::Greedy => {}
                Mode::Lazy => out.push('?'),
                Mode::Possessive => out.push(')'),
            }
        }
        Node::Concat(nodes) => {
            for node in nodes {
                match node {
                    Node::Alternate(_) => put_group("(?:", node, out),
                    _ => put(node, out),
                }
            }
        }
        Node::Alternate(nodes) => {
            for (index, node) in nodes.iter().enumerate() {
                if index > 0 {
                    out.push('|');
                }
                put(node, out);
            }
        }
    }
}

fn put_group(open: &str, node: &Node, out: &mut String) {
    out.push_str(open);
    put(node, out);
    out.push(')');
}

fn put_count(min: u32, max: Option<u32>, out: &mut String) {
    match (min, max) {
        (0, Some(1)) => out.push('?'),
        (0, None) => out.push('*'),
        (1, None) => out.push('+'),
        (_, None) => write!(out, "{{{min},}}").unwrap_or(()),
        (_, Some(max)) => write!(out, "{{{min},{max}}}").unwrap_or(()),
    }
}

fn put_char(char: char, out: &mut String) {
    if char.is_ascii_alphanumeric() || char > '\u{A0}' {
        out.push(char);
    } else {
        write!(out, r"\x{{{:X}}}", u32::from(char)).unwrap_or(());
    }
}

fn put_set(set: &ClassUnicode, out: &mut String) {
    let others = class::not(set.clone());
    let (open, ranges) = match (set.ranges(), others.ranges()) {
        ([], _) => return out.push_str("(?!)"),
        (_, []) => return out.push_str("(?s:.)"),
        (ranges, others) if ranges.len() <= others.len() => ("[", ranges),
        (_, others) => ("[^", others),
    };
    out.push_str(open);
    for range in ranges {
        put_char(range.start(), out);
        if range.start() < range.end() {
            out.push('-');
            put_char(range.end(), out);
        }
    }
    out.push(']');
}

fn put_anchor(anchor: Anchor, out: &mut String) {
    let mut put_boundary = |pairs: [(&str, &str); 2]| {
        let mut word = String::new();
        put_set(&class::word(false).unwrap_or_else(ClassUnicode::empty), &mut word);
        let [a, b] = pairs.map(|(behind, ahead)| format!("(?<{behind}{word})(?{ahead}{word})"));
        write!(out, "(?:{a}|{b})").unwrap_or(());
    };
    match anchor {
        // Not after the newline that ends the text.
        Anchor::LineStart => out.push_str(r"(?:\A|(?<=\x{A})(?!\z))"),
        Anchor::LineEnd => out.push_str(r"(?=\x{A}|\z)"),
        Anchor::TextStart => out.push_str(r"\A"),
        Anchor::TextEnd => out.push_str(r"\z"),
        Anchor::LastLineEnd => out.push_str(r"(?=\x{A}?\z)"),
        Anchor::WordBoundary => put_boundary([("=", "!"), ("!", "=")]),
        Anchor::NoWordBoundary => put_boundary([("=", "="), ("!", "!")]),
    }
}
