//! `tojson` as transformers has it: Python's `json.dumps`.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::args::{bind, integer, invalid};
use super::python::{Number, check_size, float_repr, items, pairs, text};

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "ensure_ascii", "indent", "separators", "sort_keys"];
    let [value, ensure_ascii, indent, separators, sort_keys] = bind("tojson", args, names)?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match indent.as_str() {
            Some(indent) => indent.to_owned(),
            None => " ".repeat(integer("tojson", Some(&indent), 0)?.clamp(0, 64) as usize),
        }),
    };
    let separators = match separators.filter(|separators| !separators.is_none()) {
        None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
        Some(separators) => match &items(&separators)?[..] {
            [item, key] => [text(item)?, text(key)?],
            _ => return Err(invalid("tojson takes two separators")),
        },
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let mut writer = Writer {
        out: String::new(),
        ensure_ascii: is_true(ensure_ascii),
        sort_keys: is_true(sort_keys),
        indent,
        separators,
    };
    writer.value(&value.unwrap_or_default(), 0)?;
    Ok(writer.out.into())
}

/// `json.dumps(value, ensure_ascii=False)`.
pub(in crate::text) fn dumps(value: &Value) -> Result<String, Error> {
    tojson(std::slice::from_ref(value)).map(|json| json.to_string())
}

struct Writer {
    out: String,
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    /// After an item, after a key.
    separators: [String; 2],
}

impl Writer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_size(&self.out, depth)?;
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push_str(&scalar(value)?);
            }
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let items = items(value)?;
                for (index, item) in items.iter().enumerate() {
                    self.begin_item(index, depth);
                    self.value(item, depth + 1)?;
                }
                self.end(']', items.len(), depth);
            }
            ValueKind::Map => {
                self.out.push('{');
                let mut entries = Vec::new();
                for [key, value] in pairs(value)? {
                    let key = if key.as_str().is_some() { text(&key)? } else { scalar(&key)? };
                    entries.push((key, value));
                }
                if self.sort_keys {
                    entries.sort_by(|a, b| a.0.cmp(&b.0));
                }
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.begin_item(index, depth);
                    self.string(key);
                    self.out.push_str(&self.separators[1]);
                    self.value(value, depth + 1)?;
                }
                self.end('}', entries.len(), depth);
            }
            kind => return Err(invalid(format!("tojson: a value of type {kind} is no JSON"))),
        }
        Ok(())
    }

    fn begin_item(&mut self, index: usize, depth: usize) {
        if index > 0 {
            self.out.push_str(&self.separators[0]);
        }
        self.line(depth + 1);
    }

    fn end(&mut self, close: char, len: usize, depth: usize) {
        if len > 0 {
            self.line(depth);
        }
        self.out.push(close);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for char in text.chars() {
            match char {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\x08' => self.out.push_str("\\b"),
                '\x0c' => self.out.push_str("\\f"),
                _ if char < ' ' || self.ensure_ascii && char > '~' => {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.out.push(char),
            }
        }
        self.out.push('"');
    }
}

/// A value without parts, or a key.
fn scalar(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => match Number::of(value) {
            Some(Number::Float(float)) if float.is_nan() => Ok("NaN".to_owned()),
            Some(Number::Float(float)) if float.is_infinite() => {
                Ok(if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned())
            }
            Some(Number::Float(float)) => Ok(float_repr(float)),
            _ => Ok(value.to_string()),
        },
        kind => Err(invalid(format!("tojson: a key of type {kind} is no JSON"))),
    }
}
