//! Jinja2's filters where minijinja's take other arguments or give other values.

use std::cmp::Ordering;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::args::{bind, integer, invalid, require};
use super::collections;
use super::json::tojson;
use super::python::{Number, items, pairs, parse_float, parse_int, text, tuple};
use super::strings;

/// A filter: its first argument is the value.
pub(super) type Filter = fn(&mut State, &[Value]) -> Result<Value, Error>;

/// The filters by name.
pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("abs", |_, args| abs(args)),
    ("batch", |_, args| batch(args)),
    ("capitalize", |_, args| {
        let [value] = bind("capitalize", args, ["s"])?;
        Ok(strings::capitalize(&text(&value.unwrap_or_default())?).into())
    }),
    ("center", |_, args| {
        let [value, width] = bind("center", args, ["value", "width"])?;
        let width = integer("center", width.as_ref(), 80)?;
        strings::justify(&text(&value.unwrap_or_default())?, "center", width, " ").map(Value::from)
    }),
    ("count", |_, args| length(args)),
    ("d", |_, args| default(args)),
    ("default", |_, args| default(args)),
    ("dictsort", |_, args| collections::dictsort(args)),
    ("e", |_, args| escape(args, false)),
    ("escape", |_, args| escape(args, false)),
    ("first", |_, args| {
        let [value] = bind("first", args, ["seq"])?;
        Ok(items(&value.unwrap_or_default())?.into_iter().next().unwrap_or_default())
    }),
    ("float", |_, args| float(args)),
    ("forceescape", |_, args| escape(args, true)),
    ("format", |_, args| format(args)),
    ("groupby", |_, args| collections::groupby(args)),
    ("indent", |_, args| indent(args)),
    ("int", |_, args| int(args)),
    ("items", |_, args| {
        let [value] = bind("items", args, ["value"])?;
        Ok(pairs(&value.unwrap_or_default())?.into_iter().map(tuple).collect())
    }),
    ("join", |_, args| join(args)),
    ("last", |_, args| {
        let [value] = bind("last", args, ["seq"])?;
        Ok(items(&value.unwrap_or_default())?.pop().unwrap_or_default())
    }),
    ("length", |_, args| length(args)),
    ("list", |_, args| {
        let [value] = bind("list", args, ["value"])?;
        items(&value.unwrap_or_default()).map(Value::from)
    }),
    ("map", map),
    ("max", |_, args| collections::extreme("max", args, Ordering::Greater)),
    ("min", |_, args| collections::extreme("min", args, Ordering::Less)),
    ("reject", |state, args| select(state, "reject", args)),
    ("rejectattr", |state, args| select(state, "rejectattr", args)),
    ("replace", |_, args| {
        let [value, old, new, count] = bind("replace", args, ["s", "old", "new", "count"])?;
        let old = text(&require("replace", "old", old)?)?;
        let new = text(&require("replace", "new", new)?)?;
        let count = integer("replace", count.as_ref(), -1)?;
        Ok(strings::replace(&text(&value.unwrap_or_default())?, &old, &new, count).into())
    }),
    ("reverse", |_, args| {
        let [value] = bind("reverse", args, ["value"])?;
        let value = value.unwrap_or_default();
        let reversed = items(&value)?.into_iter().rev();
        match value.as_str() {
            Some(text) => Ok(text.chars().rev().collect::<String>().into()),
            None => Ok(reversed.collect()),
        }
    }),
    ("select", |state, args| select(state, "select", args)),
    ("selectattr", |state, args| select(state, "selectattr", args)),
    ("sort", |_, args| collections::sort(args)),
    ("string", |_, args| {
        let [value] = bind("string", args, ["object"])?;
        let value = value.unwrap_or_default();
        if value.is_safe() { Ok(value) } else { text(&value).map(Value::from) }
    }),
    ("tojson", |_, args| tojson(args)),
    ("trim", |_, args| {
        let [value, chars] = bind("trim", args, ["value", "chars"])?;
        let value = text(&value.unwrap_or_default())?;
        strings::strip(&value, "strip", chars.as_ref()).map(Value::from)
    }),
    ("truncate", |_, args| truncate(args)),
    ("unique", |_, args| collections::unique(args)),
    ("wordcount", |_, args| {
        let [value] = bind("wordcount", args, ["s"])?;
        let value = text(&value.unwrap_or_default())?;
        let words = value.split(|char: char| char != '_' && !char.is_alphanumeric());
        Ok(words.filter(|word| !word.is_empty()).count().into())
    }),
];

fn abs(args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("abs", args, ["x"])?;
    let value = value.unwrap_or_default();
    match Number::of(&value) {
        Some(Number::Int(number)) => Ok(Number::Int(number.saturating_abs()).into()),
        Some(Number::Float(number)) => Ok(number.abs().into()),
        None => Err(invalid(format!("abs takes a number, not {}", value.kind()))),
    }
}

fn batch(args: &[Value]) -> Result<Value, Error> {
    let [value, len, fill] = bind("batch", args, ["value", "linecount", "fill_with"])?;
    let len = integer("batch", Some(&require("batch", "linecount", len)?), 0)?;
    let len = usize::try_from(len).ok().filter(|len| *len > 0);
    let len = len.ok_or_else(|| invalid("batch: a line count below 1"))?;
    let values = items(&value.unwrap_or_default())?;
    let fill = fill.filter(|fill| !fill.is_none());
    let lines = values.chunks(len).map(|line| {
        let missing = fill.iter().cycle().take(len - line.len());
        line.iter().chain(missing).cloned().collect::<Value>()
    });
    Ok(lines.collect())
}

fn default(args: &[Value]) -> Result<Value, Error> {
    let [value, default, boolean] = bind("default", args, ["value", "default_value", "boolean"])?;
    let value = value.unwrap_or_default();
    let is_missing = value.is_undefined()
        || boolean.is_some_and(|boolean| boolean.is_true()) && !value.is_true();
    Ok(if is_missing { default.unwrap_or_else(|| "".into()) } else { value })
}

/// HTML's marks, as markupsafe writes them.
pub(super) fn escaped(text: &str) -> String {
    let marks = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('\'', "&#39;"), ('"', "&#34;")];
    marks.iter().fold(text.to_owned(), |text, (mark, name)| text.replace(*mark, name))
}

fn escape(args: &[Value], is_forced: bool) -> Result<Value, Error> {
    let [value] = bind("escape", args, ["s"])?;
    let value = value.unwrap_or_default();
    if value.is_safe() && !is_forced {
        return Ok(value);
    }
    Ok(Value::from_safe_string(escaped(&text(&value)?)))
}

fn not_undefined(filter: &str, value: Option<Value>) -> Result<Value, Error> {
    let value = value.unwrap_or_default();
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, format!("{filter} of undefined")));
    }
    Ok(value)
}

fn int(args: &[Value]) -> Result<Value, Error> {
    let [value, default, base] = bind("int", args, ["value", "default", "base"])?;
    let value = not_undefined("int", value)?;
    let base = integer("int", base.as_ref(), 10)?;
    let of_float = |float: f64| float.is_finite().then_some(float as i128);
    let number = match (value.as_str(), Number::of(&value)) {
        (Some(text), _) => parse_int(text, base).or_else(|| parse_float(text).and_then(of_float)),
        (None, Some(Number::Int(number))) => Some(number),
        (None, Some(Number::Float(number))) => of_float(number),
        (None, None) => None,
    };
    Ok(match number {
        Some(number) => Number::Int(number).into(),
        None => default.unwrap_or_else(|| 0.into()),
    })
}

fn float(args: &[Value]) -> Result<Value, Error> {
    let [value, default] = bind("float", args, ["value", "default"])?;
    let value = not_undefined("float", value)?;
    let number = match value.as_str() {
        Some(text) => parse_float(text),
        None => Number::of(&value).map(Number::to_f64),
    };
    Ok(number.map_or_else(|| default.unwrap_or_else(|| 0.0.into()), Value::from))
}

fn format(args: &[Value]) -> Result<Value, Error> {
    let [format, values @ ..] = args else { return Err(invalid("format needs a text")) };
    let format = text(format)?;
    let values = match values {
        [named] if named.is_kwargs() => named.clone(),
        values => Value::from(minijinja::value::Tuple::from(values.to_vec())),
    };
    super::format::percent(&format, &values).map(Value::from)
}

fn indent(args: &[Value]) -> Result<Value, Error> {
    let [value, width, first, blank] = bind("indent", args, ["s", "width", "first", "blank"])?;
    let indention = match width.as_ref().and_then(Value::as_str) {
        Some(indention) => indention.to_owned(),
        None => " ".repeat(integer("indent", width.as_ref(), 4)?.clamp(0, 1000) as usize),
    };
    let is_true = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (indents_first, indents_blank) = (is_true(first), is_true(blank));
    // As Jinja2, so that a line end at the end of the text stays.
    let source = text(&value.unwrap_or_default())? + "\n";
    let mut out = String::new();
    for (index, line) in strings::lines(&source, false).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let is_indented = match index {
            0 => indents_first,
            _ => indents_blank || !line.is_empty(),
        };
        if is_indented {
            out.push_str(&indention);
        }
        out.push_str(line);
    }
    Ok(out.into())
}

fn join(args: &[Value]) -> Result<Value, Error> {
    let [value, separator, attribute] = bind("join", args, ["value", "d", "attribute"])?;
    let separator = separator.map_or(Ok(String::new()), |separator| text(&separator))?;
    let mut out = String::new();
    for (index, item) in items(&value.unwrap_or_default())?.iter().enumerate() {
        if index > 0 {
            out.push_str(&separator);
        }
        match attribute.as_ref().filter(|attribute| !attribute.is_none()) {
            Some(attribute) => {
                out.push_str(&text(&collections::attribute(item, attribute, None)?)?);
            }
            None => out.push_str(&text(item)?),
        }
    }
    Ok(out.into())
}

fn length(args: &[Value]) -> Result<Value, Error> {
    let [value] = bind("length", args, ["obj"])?;
    let value = value.unwrap_or_default();
    if let Some(text) = value.as_str() {
        return Ok(text.chars().count().into());
    }
    match value.len() {
        Some(len) => Ok(len.into()),
        None if matches!(value.kind(), ValueKind::Undefined | ValueKind::Iterable) => {
            Ok(items(&value)?.len().into())
        }
        None => Err(invalid(format!("length of a value of type {}", value.kind()))),
    }
}

/// The items of a list. Some filters take whatever is false for an empty one.
fn items_or_nothing(value: &Value) -> Result<Vec<Value>, Error> {
    if value.is_true() { items(value) } else { Ok(Vec::new()) }
}

fn map(state: &mut State, args: &[Value]) -> Result<Value, Error> {
    let [value, rest @ ..] = args else { return Err(invalid("map needs a value")) };
    let values = items_or_nothing(value)?;
    if let [named] = rest
        && named.is_kwargs()
    {
        let [attribute, default] = bind("map", rest, ["attribute", "default"])?;
        let attribute = require("map", "attribute", attribute)?;
        let of = |item: &Value| collections::attribute(item, &attribute, default.as_ref());
        return values.iter().map(of).collect::<Result<Value, Error>>();
    }
    let name = rest.first().and_then(Value::as_str);
    let name = name.ok_or_else(|| invalid("map needs the name of a filter"))?;
    let mapped = values.into_iter().map(|item| {
        let args: Vec<Value> = [item].into_iter().chain(rest[1..].iter().cloned()).collect();
        state.apply_filter(name, &args).map_err(|error| named("filter", name, error))
    });
    mapped.collect::<Result<Value, Error>>()
}

/// An error that names the filter or test that is unknown.
fn named(kind: &str, name: &str, error: Error) -> Error {
    match error.kind() {
        ErrorKind::UnknownFilter | ErrorKind::UnknownTest if error.detail().is_none() => {
            Error::new(error.kind(), format!("{kind} {name} is unknown"))
        }
        _ => error,
    }
}

/// `select`, `reject`, `selectattr` and `rejectattr`.
fn select(state: &mut State, filter: &str, args: &[Value]) -> Result<Value, Error> {
    let [value, rest @ ..] = args else { return Err(invalid(format!("{filter} needs a value"))) };
    let (attribute, rest) = match rest {
        [attribute, rest @ ..] if filter.ends_with("attr") => (Some(attribute), rest),
        _ if filter.ends_with("attr") => {
            return Err(invalid(format!("{filter} needs the name of an attribute")));
        }
        _ => (None, rest),
    };
    let mut selected = Vec::new();
    for item in items_or_nothing(value)? {
        let tested = match attribute {
            Some(attribute) => collections::attribute(&item, attribute, None)?,
            None => item.clone(),
        };
        let passes = match rest {
            [] => tested.is_true(),
            [test, rest @ ..] => {
                let name =
                    test.as_str().ok_or_else(|| invalid(format!("{filter} needs a test")))?;
                let args: Vec<Value> = [tested].into_iter().chain(rest.iter().cloned()).collect();
                state.perform_test(name, &args).map_err(|error| named("test", name, error))?
            }
        };
        if passes == filter.starts_with("select") {
            selected.push(item);
        }
    }
    Ok(selected.into())
}

fn truncate(args: &[Value]) -> Result<Value, Error> {
    let names = ["s", "length", "killwords", "end", "leeway"];
    let [value, length, killwords, end, leeway] = bind("truncate", args, names)?;
    let value = text(&value.unwrap_or_default())?;
    let end = end.map_or(Ok("...".to_owned()), |end| text(&end))?;
    let length = integer("truncate", length.as_ref(), 255)?.max(0) as usize;
    let leeway = integer("truncate", leeway.as_ref(), 5)?.max(0) as usize;
    let end_length = end.chars().count();
    if length < end_length {
        return Err(invalid(format!("truncate: a length of {end_length} at least")));
    }
    if value.chars().count() <= length.saturating_add(leeway) {
        return Ok(value.into());
    }
    let kept: String = value.chars().take(length - end_length).collect();
    if killwords.is_some_and(|kill| kill.is_true()) {
        return Ok((kept + &end).into());
    }
    let words = kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words);
    Ok(format!("{words}{end}").into())
}
