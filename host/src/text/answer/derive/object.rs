//! A call that is a JSON object with its name inside.

use super::probe::{KEY, NAME};
use crate::text::answer::mark::Mark;
use crate::text::answer::style::Style;
use serde_json::{Deserializer, Value};
use std::ops::Range;

/// A JSON object that begins at `at`, and where it ends.
pub(super) fn at(text: &str, at: usize) -> Option<(Value, usize)> {
    let mut values = Deserializer::from_str(&text[at..]).into_iter::<Value>();
    let value = values.next()?.ok().filter(Value::is_object)?;
    Some((value, at + values.byte_offset()))
}

/// The innermost object around the name at `name_at` that has the argument too.
pub(super) fn around(text: &str, name_at: usize) -> Option<(Value, Range<usize>)> {
    let begins = text[..name_at].rmatch_indices('{').take(4);
    begins.into_iter().find_map(|(begin, _)| {
        let (value, end) = at(text, begin)?;
        let has_both = end > name_at && text[name_at..end].contains(KEY);
        has_both.then_some((value, begin..end))
    })
}

/// The style of a call that is this object.
pub(super) fn style(text: &str, object: &Value, mark: impl Fn(&str) -> Mark) -> Option<Style> {
    let fields = object.as_object()?;
    let is_arguments = |value: &Value| match value {
        Value::Object(fields) => fields.contains_key(KEY),
        Value::String(json) => json.contains(KEY),
        _ => false,
    };
    let name_key = fields.iter().find(|(_, value)| *value == NAME).map(|(key, _)| key.clone());
    let (arguments_key, _) = fields.iter().find(|(_, value)| is_arguments(value))?;
    if name_key.is_none() && arguments_key != NAME {
        return None;
    }
    let name = format!("\"{NAME}\"");
    let name_at = text.find(&name)?;
    let after_name = name_at + name.len();
    // Where the arguments stand before the name, the model may have them in the other order too.
    let arguments_at = text[after_name..].find('{').map(|at| after_name + at);
    let places = arguments_at.and_then(|begin| Some((begin, at(text, begin)?.1)));
    let (before_name, before_arguments, after) = match places {
        Some((begin, end)) => (&text[..name_at], &text[after_name..begin], &text[end..]),
        None => ("{\"name\": ", ", \"arguments\": ", "}"),
    };
    Some(Style::Object {
        name_key,
        arguments_key: arguments_key.replace(NAME, ""),
        before_name: mark(before_name),
        before_arguments: mark(before_arguments),
        after: mark(after),
    })
}
