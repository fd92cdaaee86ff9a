//! JSON as it comes, a piece at a time.

/// Bytes of a number at most.
const MAX_SCALAR: usize = 64;

/// Where a value ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Scan {
    /// Takes text of an object or a list: how many bytes of it belong to the value, and whether it ends there. What
    /// JSON forbids in a string, as a line's end, is written as JSON has it.
    pub fn push(&mut self, text: &str, json: &mut String) -> (usize, bool) {
        for (at, char) in text.char_indices() {
            match (char, self.in_string) {
                (char, true) if char < ' ' => {
                    // After a backslash it would be none.
                    let escape = format!("u{:04x}", char as u32);
                    json.push_str(if self.is_escaped { "" } else { "\\" });
                    match char {
                        '\n' => json.push('n'),
                        '\t' => json.push('t'),
                        '\r' => json.push('r'),
                        _ => json.push_str(&escape),
                    }
                    self.is_escaped = false;
                    continue;
                }
                (_, true) if self.is_escaped => self.is_escaped = false,
                ('\\', true) => self.is_escaped = true,
                ('"', _) => self.in_string = !self.in_string,
                ('{' | '[', false) => self.depth += 1,
                ('}' | ']', false) => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        json.push(char);
                        return (at + 1, true);
                    }
                }
                _ => {}
            }
            json.push(char);
        }
        (text.len(), false)
    }
}

/// The end of an object whose beginning was read.
pub(super) fn object_end(text: &str) -> Option<usize> {
    let mut scan = Scan { depth: 1, ..Scan::default() };
    let (len, is_whole) = scan.push(text, &mut String::new());
    is_whole.then_some(len)
}

/// A value at the beginning of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found<T> {
    Whole(T, usize),
    More,
    No,
}

/// A string at the beginning of `text`.
pub(super) fn string(text: &str) -> Found<String> {
    match text.chars().next() {
        None => return Found::More,
        Some('"') => {}
        Some(_) => return Found::No,
    }
    let mut is_escaped = false;
    for (at, char) in text.char_indices().skip(1) {
        match char {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => {
                return match serde_json::from_str(&text[..=at]) {
                    Ok(string) => Found::Whole(string, at + 1),
                    Err(_) => Found::No,
                };
            }
            _ => {}
        }
    }
    Found::More
}

/// The end of any value at the beginning of `text`; that of a number needs something after it.
pub(super) fn value(text: &str) -> Found<()> {
    match text.chars().next() {
        None => Found::More,
        Some('"') => match string(text) {
            Found::Whole(_, len) => Found::Whole((), len),
            Found::More => Found::More,
            Found::No => Found::No,
        },
        Some('{' | '[') => match Scan::default().push(text, &mut String::new()) {
            (len, true) => Found::Whole((), len),
            (_, false) => Found::More,
        },
        Some(_) => match text.find([',', '}', ']']).or_else(|| text.find(char::is_whitespace)) {
            Some(len) if (1..=MAX_SCALAR).contains(&len) => Found::Whole((), len),
            None if text.len() <= MAX_SCALAR => Found::More,
            _ => Found::No,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_where_its_brackets_do() {
        for (text, len) in [
            (r#"{"a": "}"} x"#, 10),
            (r#"{"a\"": [1, {}]}"#, 16),
            (r#"[{}, "]"]]"#, 9),
            ("12, 3", 2),
            (r#""a\"b" "#, 6),
        ] {
            assert_eq!(value(text), Found::Whole((), len), "{text}");
            for cut in 0..len {
                assert_eq!(value(&text[..cut]), Found::More, "{}", &text[..cut]);
            }
        }
    }

    #[test]
    fn lines_in_strings_are_escaped() {
        let mut json = String::new();
        assert_eq!(Scan::default().push("{\"a\": \"x\ny\\\n\"}", &mut json), (14, true));
        assert_eq!(json, r#"{"a": "x\ny\n"}"#);
    }
}
