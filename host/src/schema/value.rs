//! Values as JSON Schema compares them: `1.0` is `1`, and an integer.

use serde_json::Value;
use std::cmp::Ordering;
use std::collections::BTreeSet;

pub(super) fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => match value.as_f64() {
            Some(number) => value.is_i64() || value.is_u64() || number.fract() == 0.0,
            None => false,
        },
        "string" => value.is_string(),
        "array" => value.is_array(),
        _ => value.is_object(),
    }
}

fn whole(number: &Value) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

pub(super) fn compare(a: &Value, b: &Value) -> Ordering {
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal),
    }
}

/// Exact where both have few digits, as they are written.
pub(super) fn is_multiple(value: &Value, of: &Value) -> bool {
    if let (Some((a, scale_a)), Some((b, scale_b))) = (decimal(value), decimal(of)) {
        let scale = scale_a.max(scale_b);
        let scaled = |n: i128, from: u32| n.checked_mul(10i128.checked_pow(scale - from)?);
        if let (Some(a), Some(b)) = (scaled(a, scale_a), scaled(b, scale_b))
            && (value.is_i64() || value.is_u64() || a.unsigned_abs() < 1 << 53)
        {
            return b != 0 && a % b == 0;
        }
    }
    // Doubles beyond have lost the digits that would tell.
    let (value, of) = (value.as_f64().unwrap_or(0.0), of.as_f64().unwrap_or(1.0));
    value.abs() > 1e15 || (value / of).fract() == 0.0
}

/// A number as an integer and the digits of it after the point.
fn decimal(number: &Value) -> Option<(i128, u32)> {
    if let Some(whole) = whole(number) {
        return Some((whole, 0));
    }
    let text = number.as_f64()?.to_string();
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    Some((format!("{whole}{fraction}").parse().ok()?, fraction.len() as u32))
}

pub(super) fn is_unique(items: &[Value]) -> bool {
    // Long lists in one time: by their texts, which only numbers have several of.
    let mut seen = BTreeSet::new();
    items.iter().all(|item| seen.insert(canonical(item)))
}

/// The same text for the same value.
fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => match (whole(value), number.as_f64()) {
            (Some(whole), _) => whole.to_string(),
            (None, Some(float)) if float.fract() == 0.0 && float.abs() < 1e30 => {
                (float as i128).to_string()
            }
            _ => number.to_string(),
        },
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(canonical).collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(fields) => {
            let mut fields: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), canonical(value)))
                .collect();
            fields.sort_unstable();
            format!("{{{}}}", fields.join(","))
        }
        other => other.to_string(),
    }
}

/// Whether two values are equal as JSON Schema has it: `1.0` is `1`.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    a == b || canonical(a) == canonical(b)
}
