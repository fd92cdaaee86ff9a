//! Regular expressions of JSON Schema, which are ECMA-262's, in the syntax of the crate `regex`.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

/// `pattern` for the crates `regex-syntax` and `fancy-regex`.
pub(super) fn translate(pattern: &str) -> String {
    let mut rest = pattern.chars().peekable();
    let mut out = String::with_capacity(pattern.len());
    let mut is_class = false;
    while let Some(c) = rest.next() {
        match (c, is_class) {
            ('\\', _) => escape(&mut rest, is_class, &mut out),
            ('[', false) => is_class = open_class(&mut rest, &mut out),
            (']', true) => {
                is_class = false;
                out.push(c);
            }
            // Set operations of the crate, texts of ECMA.
            ('[' | '&' | '~', true) => out.extend(['\\', c]),
            ('{', false) => match quantifier(&rest) {
                Some(bounds) => {
                    rest.nth(bounds.len() - 1);
                    out.push('{');
                    out.push_str(&bounds);
                }
                None => out.push_str(r"\{"),
            },
            (']' | '}', false) => out.extend(['\\', c]),
            ('.', false) => out.push_str(r"[^\n\r]"),
            _ => out.push(c),
        }
    }
    out
}

/// Patterns that together say what `pattern` says: what look-aheads at its beginning ask for, then the rest.
pub(super) fn conjuncts(pattern: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = pattern.strip_prefix('^').unwrap_or_default();
    while let Some(ahead) = rest.strip_prefix("(?=") {
        let Some(end) = group_end(ahead, ')') else { break };
        all.push(format!("^(?:{})", &ahead[..end]));
        rest = &ahead[end + 1..];
    }
    // An alternative beside them would not ask for them.
    if all.is_empty() || group_end(rest, '|').is_some() {
        return vec![pattern.to_owned()];
    }
    all.push(format!("^{rest}"));
    all
}

/// Where `mark` is outside of groups and classes.
fn group_end(pattern: &str, mark: char) -> Option<usize> {
    let (mut depth, mut is_class) = (0, false);
    let mut rest = pattern.char_indices();
    while let Some((at, c)) = rest.next() {
        match c {
            '\\' => {
                rest.next();
            }
            ']' => is_class = false,
            _ if is_class => {}
            '[' => is_class = true,
            _ if c == mark && depth == 0 => return Some(at),
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Writes `[` and what may only follow there; `false` for a class that is closed again.
fn open_class(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> bool {
    let is_negated = rest.next_if_eq(&'^').is_some();
    if rest.next_if_eq(&']').is_some() {
        out.push_str(if is_negated { "(?s:.)" } else { r"[^\s\S]" });
        return false;
    }
    out.push_str(if is_negated { "[^" } else { "[" });
    true
}

/// The rest of `{2}`, `{2,}` or `{2,5}`, if it is one.
fn quantifier(rest: &Peekable<Chars<'_>>) -> Option<String> {
    let mut bounds = String::new();
    for c in rest.clone() {
        bounds.push(c);
        match c {
            '0'..='9' => {}
            ',' if bounds.len() > 1 && bounds.matches(',').count() == 1 => {}
            '}' if bounds.len() > 1 => return Some(bounds),
            _ => return None,
        }
    }
    None
}

fn escape(rest: &mut Peekable<Chars<'_>>, is_class: bool, out: &mut String) {
    let Some(c) = rest.next() else { return out.push('\\') };
    match c {
        // Of ASCII alone, as ECMA has them.
        'd' if is_class => out.push_str("0-9"),
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        'w' if is_class => out.push_str("0-9A-Za-z_"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        '0' => out.push_str(r"\x00"),
        'b' if is_class => out.push_str(r"\x08"),
        'c' => match rest.next_if(char::is_ascii_alphabetic) {
            Some(letter) => code(u32::from(letter) % 32, out),
            None => out.push_str(r"\\c"),
        },
        'p' | 'P' => {
            out.extend(['\\', c]);
            if rest.peek() == Some(&'{') {
                let mut is_open = true;
                out.extend(std::iter::from_fn(|| {
                    let c = rest.next_if(|_| is_open)?;
                    is_open = c != '}';
                    Some(c)
                }));
            }
        }
        'u' => match unicode(rest) {
            Some(scalar) => code(scalar, out),
            None => out.push_str(r"\u"),
        },
        // `\<` and `\>` are borders of words there.
        '/' | '<' | '>' | '"' | '\'' | '_' | ' ' | '@' | '%' | ',' | ';' | ':' | '=' | '!'
        | '`' => out.push(c),
        _ => out.extend(['\\', c]),
    }
}

fn code(scalar: u32, out: &mut String) {
    write!(out, r"\x{{{scalar:X}}}").expect("a String takes all");
}

/// The scalar of `XXXX`, of a pair of surrogates, or of `{X..}`; `rest` stays where there is none.
fn unicode(rest: &mut Peekable<Chars<'_>>) -> Option<u32> {
    let mut ahead = rest.clone();
    if ahead.next_if_eq(&'{').is_some() {
        let digits: String = ahead.by_ref().take_while(|&c| c != '}').take(7).collect();
        *rest = ahead;
        return u32::from_str_radix(&digits, 16).ok();
    }
    let high = four_digits(&mut ahead)?;
    let scalar = match high {
        0xD800..0xDC00 => {
            let is_pair = ahead.next() == Some('\\') && ahead.next() == Some('u');
            let low = four_digits(&mut ahead).filter(|low| (0xDC00..0xE000).contains(low))?;
            is_pair.then_some(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))?
        }
        other => other,
    };
    *rest = ahead;
    Some(scalar)
}

fn four_digits(rest: &mut Peekable<Chars<'_>>) -> Option<u32> {
    let digits: String = rest.by_ref().take(4).collect();
    (digits.len() == 4).then(|| u32::from_str_radix(&digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_aheads_at_the_beginning_are_patterns_of_their_own() {
        for (pattern, want) in [
            (r"^(?=.*[A-Z)])(?=.*\))(.{8,})$", &["^(?:.*[A-Z)])", r"^(?:.*\))", "^(.{8,})$"][..]),
            ("^(?=a)b|c", &["^(?=a)b|c"]),
            ("(?=a)b", &["(?=a)b"]),
            ("^(?!a)b", &["^(?!a)b"]),
            ("^a", &["^a"]),
            ("^(?=a", &["^(?=a"]),
        ] {
            assert_eq!(conjuncts(pattern), want, "{pattern}");
        }
    }

    #[test]
    fn patterns_of_ecma_are_ones_of_regex() {
        for (pattern, want) in [
            (r"^\d{2,}[\w.]\/$", "^[0-9]{2,}[0-9A-Za-z_.]/$"),
            (r"^{.}$", r"^\{[^\n\r]\}$"),
            (r"a{,3}{2}", r"a\{,3\}{2}"),
            (r"[[&&]]", r"[\[\&\&]\]"),
            (r"[^][]", r"(?s:.)[^\s\S]"),
            (r"\uD83D\uDE00\u00e9\cA\0", r"\x{1F600}\x{E9}\x{1}\x00"),
            (r"\u{1F600}\_\@\<", r"\x{1F600}_@<"),
            (r"\p{L}\-\.\\", r"\p{L}\-\.\\"),
            ("\\", "\\"),
        ] {
            assert_eq!(translate(pattern), want, "{pattern}");
        }
    }
}
