//! The rules of numbers.

use serde_json::{Map, Value, json};

/// Divisors that a lexer counts the remainders of.
const MAX_DIVISOR: f64 = 1000.0;
/// Bounds that llguidance counts with in 64 bits, those of integers, and writes without an exponent.
const MAX_BOUND: f64 = 9e15;

/// Divisors that a lexer can count with; `false` where no number is between the bounds.
pub(super) fn hold(fields: &mut Map<String, Value>) -> bool {
    const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    fields.retain(|key, value| {
        let is_bound = BOUNDS.contains(&key.as_str());
        !is_bound || value.as_f64().is_some_and(|bound| bound.abs() < MAX_BOUND)
    });
    let Some(divisor) = fields.get("multipleOf").and_then(Value::as_f64) else { return true };
    let is_integer = fields.get("type") == Some(&json!("integer"));
    let bound = |key: &str| fields.get(key).and_then(Value::as_f64);
    let below = [bound("minimum"), bound("exclusiveMinimum")];
    let above = [bound("maximum"), bound("exclusiveMaximum")];
    let least = below.into_iter().flatten().reduce(f64::max);
    let most = above.into_iter().flatten().reduce(f64::min);
    let only_numbers = is_integer || fields.get("type") == Some(&json!("number"));
    if let (Some(least), Some(most), true) = (least, most, only_numbers) {
        // Half a step of slack: the last check is exact.
        let first = (least / divisor - 1e-9).ceil() * divisor;
        if first > most + divisor * 1e-9 {
            return false;
        }
    }
    let scaled = (0..=6).find(|&digits| (divisor * 10f64.powi(digits)).fract() == 0.0);
    let Some(digits) = scaled.filter(|_| divisor <= u32::MAX.into()) else {
        fields.shift_remove("multipleOf");
        return true;
    };
    let coefficient = divisor * 10f64.powi(digits);
    if is_integer && digits > 0 {
        // Of p / q in lowest terms the whole multiples are those of p.
        let (p, q) = (coefficient as u64, 10u64.pow(digits as u32));
        let whole = p / gcd(p, q);
        fields.insert("multipleOf".to_owned(), json!(whole));
    }
    let coefficient = match fields.get("multipleOf").and_then(Value::as_f64) {
        Some(whole) if is_integer => whole,
        _ => coefficient,
    };
    if coefficient > MAX_DIVISOR || coefficient == 1.0 && is_integer {
        fields.shift_remove("multipleOf");
    }
    true
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
