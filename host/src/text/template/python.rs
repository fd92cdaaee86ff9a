//! Values as Python writes, reads and compares them.

use std::cmp::Ordering;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, Value};

use super::args::{integer, invalid};

/// Depth of lists and mappings that is written.
const MAX_DEPTH: usize = 500;

/// Bytes of a text made of values at most; a value can be small and its text of any length.
const MAX_TEXT: usize = 1 << 24;

/// `str(value)`.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => repr(value),
        ValueKind::Number if !value.is_integer() => Ok(float_repr(f64::try_from(value.clone())?)),
        _ => Ok(value.to_string()),
    }
}

/// `repr(value)`.
pub(in crate::text) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_size(out, depth)?;
    match value.kind() {
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq | ValueKind::Iterable => {
            let is_tuple = value.is_tuple();
            out.push(if is_tuple { '(' } else { '[' });
            let mut len = 0;
            for item in value.try_iter()?.checked() {
                if len > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item?, depth + 1)?;
                len += 1;
            }
            if is_tuple && len == 1 {
                out.push(',');
            }
            out.push(if is_tuple { ')' } else { ']' });
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&text(value)?),
    }
    Ok(())
}

/// Refuses what would take the memory or the stack.
pub(super) fn check_size(out: &str, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("values are nested deeper than {MAX_DEPTH}")));
    }
    if out.len() > MAX_TEXT {
        return Err(invalid(format!("a text has more than {} MiB", MAX_TEXT >> 20)));
    }
    Ok(())
}

fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for char in text.chars() {
        match char {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if char == quote => out.extend(['\\', char]),
            _ if is_printable(char) => out.push(char),
            _ => match u32::from(char) {
                code @ 0..0x100 => out.push_str(&format!("\\x{code:02x}")),
                code @ 0..0x10000 => out.push_str(&format!("\\u{code:04x}")),
                code => out.push_str(&format!("\\U{code:08x}")),
            },
        }
    }
    out.push(quote);
}

/// `str.isprintable` of one character.
pub(super) fn is_printable(char: char) -> bool {
    // After another character, so that a combining one counts as it does in a text.
    let escaped = format!("{:?}", format!("a{char}"));
    matches!(char, '\\' | '"') || !escaped.contains('\\')
}

/// `repr` of a float.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if (-4..16).contains(&exponent) => {
            let text = value.to_string();
            if text.contains('.') { text } else { text + ".0" }
        }
        Ok(exponent) => format!("{mantissa}e{}{:02}", sign(exponent), exponent.abs()),
        Err(_) => scientific,
    }
}

/// The sign of an exponent.
pub(super) fn sign(exponent: i32) -> char {
    if exponent < 0 { '-' } else { '+' }
}

/// A number; Booleans are integers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
}

impl Number {
    /// The number that `value` is.
    pub fn of(value: &Value) -> Option<Self> {
        match value.kind() {
            ValueKind::Bool => Some(Self::Int(value.is_true().into())),
            ValueKind::Number if value.is_integer() => {
                i128::try_from(value.clone()).ok().map(Self::Int)
            }
            ValueKind::Number => f64::try_from(value.clone()).ok().map(Self::Float),
            _ => None,
        }
    }

    /// As a float.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        match number {
            Number::Int(value) => i64::try_from(value).map_or_else(|_| value.into(), Value::from),
            Number::Float(value) => value.into(),
        }
    }
}

/// `a % b`, of numbers or of a format and its values.
pub(super) fn modulo(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        return super::format::percent(format, b).map(Value::from);
    }
    let number = match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => match a.checked_rem(b) {
            None => return Err(invalid("modulo by zero")),
            Some(rest) if rest != 0 && (rest < 0) != (b < 0) => Number::Int(rest + b),
            Some(rest) => Number::Int(rest),
        },
        (Some(a), Some(b)) => {
            let (a, b) = (a.to_f64(), b.to_f64());
            if b == 0.0 {
                return Err(invalid("modulo by zero"));
            }
            let rest = a % b;
            Number::Float(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest })
        }
        _ => return Err(invalid(format!("no operator % of {} and {}", a.kind(), b.kind()))),
    };
    Ok(number.into())
}

/// `value[start:stop:step]`.
pub(super) fn slice(value: &Value, bounds: [&Value; 3]) -> Result<Value, Error> {
    if !matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Iterable) {
        return Err(invalid(format!("a value of type {} has no slices", value.kind())));
    }
    let items = items(value)?;
    let [start, stop, step] = bounds.map(|bound| (!bound.is_none()).then_some(bound));
    let step = integer("a slice", step, 1)?;
    if step == 0 {
        return Err(invalid("a slice with a step of 0"));
    }
    let len = items.len() as i64;
    // Before the first item and after the last, where a slice may begin or end.
    let (low, high) = if step < 0 { (-1, len - 1) } else { (0, len) };
    let bound = |bound: Option<&Value>, default: i64| -> Result<i64, Error> {
        let Some(bound) = bound else { return Ok(default) };
        let at = integer("a slice", Some(bound), 0)?;
        Ok(if at < 0 { at.saturating_add(len) } else { at }.clamp(low, high))
    };
    let (first, last) = if step < 0 { (high, low) } else { (low, high) };
    let (mut at, stop) = (bound(start, first)?, bound(stop, last)?);
    let mut part = Vec::new();
    while if step < 0 { at > stop } else { at < stop } {
        part.extend(items.get(at as usize).cloned());
        at = at.saturating_add(step);
    }
    Ok(match value.as_str() {
        Some(_) => part.iter().filter_map(Value::as_str).collect::<String>().into(),
        None if value.is_tuple() => Value::from(Tuple::from(part)),
        None => part.into(),
    })
}

/// The order of two values, where Python has one.
pub(super) fn compare(a: &Value, b: &Value) -> Result<Ordering, Error> {
    compare_nested(a, b, 0)
}

fn compare_nested(a: &Value, b: &Value, depth: usize) -> Result<Ordering, Error> {
    check_size("", depth)?;
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        return Ok(a.cmp(b));
    }
    match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => return Ok(a.cmp(&b)),
        (Some(a), Some(b)) => {
            return Ok(a.to_f64().partial_cmp(&b.to_f64()).unwrap_or(Ordering::Equal));
        }
        _ => {}
    }
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if !is_list(a) || !is_list(b) || a.is_tuple() != b.is_tuple() {
        return Err(invalid(format!("no order of {} and {}", a.kind(), b.kind())));
    }
    let (a, b) = (items(a)?, items(b)?);
    for (a, b) in a.iter().zip(&b) {
        if a != b {
            return compare_nested(a, b, depth + 1);
        }
    }
    Ok(a.len().cmp(&b.len()))
}

/// `list(value)`; undefined is empty.
pub(super) fn items(value: &Value) -> Result<Vec<Value>, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Vec::new()),
        ValueKind::String => {
            let chars = value.as_str().unwrap_or_default().chars();
            Ok(chars.map(|char| Value::from(char.to_string())).collect())
        }
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable => {
            value.try_iter()?.checked().collect()
        }
        kind => Err(invalid(format!("{kind} is not iterable"))),
    }
}

/// The keys and values of a mapping as tuples; of undefined none.
pub(super) fn pairs(value: &Value) -> Result<Vec<[Value; 2]>, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Vec::new()),
        ValueKind::Map => items(value)?
            .into_iter()
            .map(|key| value.get_item(&key).map(|value| [key, value]))
            .collect(),
        kind => Err(invalid(format!("{kind} is no mapping"))),
    }
}

/// A tuple.
pub(super) fn tuple<const N: usize>(values: [Value; N]) -> Value {
    Value::from(Tuple::from(values))
}

/// White space of `str.strip` and `str.split`.
pub(super) fn is_space(char: char) -> bool {
    char.is_whitespace() || ('\x1c'..='\x1f').contains(&char)
}

/// `int(text, base)`.
pub(super) fn parse_int(text: &str, base: i64) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let lower = digits.to_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)]
        .into_iter()
        .find(|(prefix, of)| lower.starts_with(prefix) && (base == 0 || base == *of));
    let (digits, radix) = match prefixed {
        Some((prefix, radix)) => {
            (lower[prefix.len()..].strip_prefix('_').unwrap_or(&lower[2..]), radix)
        }
        None => (&lower[..], if base == 0 { 10 } else { base }),
    };
    let value = i128::from_str_radix(
        &without_underscores(digits)?,
        u32::try_from(radix).ok().filter(|radix| (2..=36).contains(radix))?,
    )
    .ok()?;
    Some(if is_negative { -value } else { value })
}

/// `float(text)`.
pub(super) fn parse_float(text: &str) -> Option<f64> {
    without_underscores(text.trim_matches(is_space))?.parse().ok()
}

/// Digits without the underscores that may stand between two of them; `None` where no number has one.
fn without_underscores(digits: &str) -> Option<String> {
    let unsigned = digits.trim_start_matches(['+', '-']);
    let is_wrong = unsigned.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    (!is_wrong).then(|| digits.replace('_', ""))
}
