//! Values as Python and its relatives write them, and untyped texts, as JSON.

use super::json::Found;
use serde_json::{Map, Value};

/// Levels of a value at most.
const MAX_DEPTH: usize = 64;

/// Bytes of a key or a number at most.
const MAX_WORD: usize = 1024;

/// How literals are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Literals {
    /// What stands before and after a string, if no quote.
    pub quote: Option<String>,
}

impl Literals {
    /// The value at the beginning of `text`. What ends it has to be there: a `,` or a bracket.
    pub fn value(&self, text: &str) -> Found<Value> {
        self.nested(text, MAX_DEPTH)
    }

    fn nested(&self, text: &str, depth: usize) -> Found<Value> {
        if depth == 0 {
            return Found::No;
        }
        if let Some(found) = self.quoted(text) {
            return found;
        }
        match text.chars().next() {
            None => Found::More,
            Some('\'' | '"') => string(text),
            Some('[' | '(') => self.list(text, depth),
            Some('{') => self.object(text, depth),
            Some(_) => word(text),
        }
    }

    /// A string between quote marks of its own.
    fn quoted(&self, text: &str) -> Option<Found<Value>> {
        let quote = self.quote.as_deref()?;
        if !text.starts_with(quote) {
            return (!text.is_empty() && quote.starts_with(text)).then_some(Found::More);
        }
        let inner = &text[quote.len()..];
        // A mark that does not end the value is part of it.
        let ends = inner.match_indices(quote).map(|(at, _)| at);
        let end = ends.into_iter().find(|at| {
            let after = inner[at + quote.len()..].trim_start();
            after.is_empty() || after.starts_with([',', '}', ']', ')', ':'])
        });
        Some(match end {
            Some(at) if inner[at + quote.len()..].trim_start().is_empty() => Found::More,
            Some(at) => Found::Whole(inner[..at].into(), at + 2 * quote.len()),
            None => Found::More,
        })
    }

    fn list(&self, text: &str, depth: usize) -> Found<Value> {
        let (mut at, mut items) = (1, Vec::new());
        loop {
            at += blank(&text[at..]);
            match text[at..].chars().next() {
                None => return Found::More,
                Some(']' | ')') => return Found::Whole(Value::Array(items), at + 1),
                Some(',') => at += 1,
                Some(_) => match self.nested(&text[at..], depth - 1) {
                    Found::Whole(item, len) => {
                        items.push(item);
                        at += len;
                    }
                    other => return other,
                },
            }
        }
    }

    fn object(&self, text: &str, depth: usize) -> Found<Value> {
        let (mut at, mut fields) = (1, Map::new());
        loop {
            at += blank(&text[at..]);
            match text[at..].chars().next() {
                None => return Found::More,
                Some('}') => return Found::Whole(Value::Object(fields), at + 1),
                Some(',') => at += 1,
                Some(_) => match self.member(&text[at..], ':', depth) {
                    Found::Whole((key, value), len) => {
                        fields.insert(key, value);
                        at += len;
                    }
                    Found::More => return Found::More,
                    Found::No => return Found::No,
                },
            }
        }
    }

    /// A key, `separator` and a value.
    pub fn field(&self, text: &str, separator: char) -> Found<(String, Value)> {
        self.member(text, separator, MAX_DEPTH)
    }

    fn member(&self, text: &str, separator: char, depth: usize) -> Found<(String, Value)> {
        let is_quoted = text.starts_with(['\'', '"'])
            || self.quote.as_deref().is_some_and(|quote| text.starts_with(quote));
        let (key, mut at) = if is_quoted {
            match self.nested(text, 1) {
                Found::Whole(Value::String(key), len) => (key, len),
                Found::More => return Found::More,
                _ => return Found::No,
            }
        } else {
            match text.find(separator) {
                Some(len) if len <= MAX_WORD => (text[..len].trim_end().to_owned(), len),
                None if text.len() <= MAX_WORD => return Found::More,
                _ => return Found::No,
            }
        };
        if key.is_empty() || !is_quoted && key.contains(['(', ')', '{', '}', '[', ']', ',']) {
            return Found::No;
        }
        at += blank(&text[at..]);
        match text[at..].chars().next() {
            None => return Found::More,
            Some(found) if found == separator => at += 1,
            Some(_) => return Found::No,
        }
        at += blank(&text[at..]);
        match self.nested(&text[at..], depth - 1) {
            Found::Whole(value, len) => Found::Whole((key, value), at + len),
            Found::More => Found::More,
            Found::No => Found::No,
        }
    }
}

fn blank(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// A string in single or double quotes. Some templates escape nothing: a quote that does not end the value is part of it.
fn string(text: &str) -> Found<Value> {
    let quote = text.chars().next().unwrap_or('"');
    let mut string = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => match chars.next() {
                None => return Found::More,
                Some((_, 'n')) => string.push('\n'),
                Some((_, 't')) => string.push('\t'),
                Some((_, 'r')) => string.push('\r'),
                Some((_, '\n')) => {}
                Some((at, 'u')) => match text.get(at + 1..at + 5) {
                    None => return Found::More,
                    Some(digits) => match u32::from_str_radix(digits, 16).ok() {
                        Some(code) => {
                            string.push(char::from_u32(code).unwrap_or('\u{FFFD}'));
                            chars.nth(3);
                        }
                        None => string.push_str("\\u"),
                    },
                },
                Some((_, other @ ('\\' | '\'' | '"' | '/'))) => string.push(other),
                Some((_, other)) => string.extend(['\\', other]),
            },
            _ if char == quote => {
                let after = text[at + 1..].trim_start();
                match after.chars().next() {
                    None => return Found::More,
                    Some(',' | ')' | ']' | '}' | ':') => {
                        return Found::Whole(string.into(), at + 1);
                    }
                    Some(_) => string.push(char),
                }
            }
            _ => string.push(char),
        }
    }
    Found::More
}

/// A number or a name of a constant.
fn word(text: &str) -> Found<Value> {
    let len = match text.find([',', ')', ']', '}']) {
        Some(len) if len <= MAX_WORD => len,
        None if text.len() <= MAX_WORD => return Found::More,
        _ => return Found::No,
    };
    let word = text[..len].trim();
    let value = match word {
        "" => return Found::No,
        "True" => true.into(),
        "False" => false.into(),
        "None" => Value::Null,
        _ => serde_json::from_str(word).unwrap_or_else(|_| word.into()),
    };
    Found::Whole(value, len)
}

/// A value that is written as it is, by its schema: a string stays one, all else is JSON if it can be.
pub(super) fn typed(text: &str, schema: Option<&Value>, is_string: Option<bool>) -> Value {
    let takes = |kind: &str| schema.is_some_and(|schema| takes(schema, kind, 8));
    if is_string == Some(true) || takes("string") && !may_be_other(schema, text) {
        return text.into();
    }
    let trimmed = text.trim();
    match serde_json::from_str(trimmed) {
        Ok(value) => value,
        Err(_) => match trimmed {
            "True" => true.into(),
            "False" => false.into(),
            "None" => Value::Null,
            _ if ["object", "array"].into_iter().any(takes) => python(trimmed, text),
            _ => text.into(),
        },
    }
}

/// Python's form of an object or a list; else the text.
fn python(trimmed: &str, text: &str) -> Value {
    let ended = format!("{trimmed},");
    match (Literals { quote: None }).value(&ended) {
        Found::Whole(value @ (Value::Object(_) | Value::Array(_)), len) if len == trimmed.len() => {
            value
        }
        _ => text.into(),
    }
}

/// Whether a schema that takes strings takes `text` as something else too.
fn may_be_other(schema: Option<&Value>, text: &str) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(text.trim()) else { return false };
    let kinds: &[&str] = match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Number(_) => &["number", "integer"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
        Value::String(_) => &[],
    };
    kinds.iter().any(|kind| schema.is_some_and(|schema| takes(schema, kind, 8)))
}

/// Whether `schema` names this type.
fn takes(schema: &Value, kind: &str, depth: usize) -> bool {
    let named = match &schema["type"] {
        Value::String(one) => one == kind,
        Value::Array(several) => several.iter().any(|one| one == kind),
        _ => false,
    };
    let of_kind = |value: &Value| match value {
        Value::String(_) => kind == "string",
        Value::Number(_) => kind == "number",
        Value::Bool(_) => kind == "boolean",
        _ => false,
    };
    let listed = || {
        let values = schema["enum"].as_array().into_iter().flatten();
        schema["type"].is_null() && values.chain(schema.get("const")).any(of_kind)
    };
    let inner = || {
        let of = |key| schema.get(key).and_then(Value::as_array).into_iter().flatten();
        depth > 0 && of("anyOf").chain(of("oneOf")).any(|schema| takes(schema, kind, depth - 1))
    };
    named || listed() || inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn literals_of_python() {
        let literals = Literals { quote: None };
        for (text, value) in [
            (r#"'a"b',"#, json!("a\"b")),
            ("'it's',", json!("it's")),
            (r#""a\nb\'","#, json!("a\nb'")),
            ("[1, 'x', {\"k\": True, 'l': None}],", json!([1, "x", {"k": true, "l": null}])),
            ("-1.5e3)", json!(-1.5e3)),
            ("{\"a\": [\"b\", true, null]})", json!({"a": ["b", true, null]})),
        ] {
            let got = literals.value(text);
            assert_eq!(got, Found::Whole(value, text.len() - 1), "{text}");
            for cut in (0..text.len() - 1).filter(|&cut| text.is_char_boundary(cut)) {
                assert_eq!(literals.value(&text[..cut]), Found::More, "{}", &text[..cut]);
            }
        }
        assert_eq!(literals.value(&"[".repeat(1000)), Found::No);
    }

    #[test]
    fn literals_with_a_quote_mark() {
        let literals = Literals { quote: Some("<|\"|>".to_owned()) };
        let text = "{a:[<|\"|>b<|\"|>,1,true,None],c d:<|\"|>}<|\"|>}";
        let text = text.replace("None", "null");
        let want = json!({"a": ["b", 1, true, null], "c d": "}"});
        assert_eq!(literals.value(&text), Found::Whole(want, text.len()));
    }

    #[test]
    fn texts_have_the_type_of_their_schema() {
        let string = json!({"type": "string"});
        assert_eq!(typed("5", Some(&string), None), json!("5"));
        assert_eq!(typed("5", Some(&json!({"type": "integer"})), None), json!(5));
        assert_eq!(typed("null", Some(&json!({"type": ["string", "null"]})), None), Value::Null);
        assert_eq!(typed("x", Some(&json!({"type": "integer"})), None), json!("x"));
        assert_eq!(typed("5", None, Some(true)), json!("5"));
        assert_eq!(typed("{\"a\": 1}", None, None), json!({"a": 1}));
        assert_eq!(typed("{'a': 1}", Some(&json!({"type": "object"})), None), json!({"a": 1}));
        let either = json!({"anyOf": [{"type": "string"}, {"type": "integer"}]});
        assert_eq!(typed("5", Some(&either), None), json!(5));
        assert_eq!(typed("[x", Some(&either), None), json!("[x"));
    }
}
