//! The environment of a template: Jinja2's sandbox as transformers sets it up.

use std::sync::Arc;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Object, ObjectRepr, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};

use super::args::{bind, invalid, require, string};
use super::filters::{FILTERS, escaped};
use super::python::{Number, items, modulo, pairs, slice, text};
use super::{source, strings};
use crate::text::strftime::strftime_local;

/// Instructions that a template may run: the longest real ones take some hundreds a message.
const FUEL: u64 = 5_000_000;

/// Filters of minijinja that Jinja2 hasn't, or that differ and belong to HTML.
const NOT_JINJA2: [&str; 6] = ["bool", "chain", "lines", "pprint", "split", "zip"];

/// The environment in which it is `now`.
pub(super) fn environment(now: Option<SystemTime>) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_unknown_method_callback(call_method);
    environment.set_formatter(write);
    environment.set_fuel(Some(FUEL));
    environment.set_debug(false);
    for name in NOT_JINJA2 {
        environment.remove_filter(name);
    }
    for &(name, filter) in FILTERS {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            filter(state, &args.into_values())
        });
    }
    environment.add_test("callable", |value: &Value| {
        // Jinja2's undefined can be called, and fails then.
        matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined) || is_macro(value)
    });
    environment.add_test("integer", |value: &Value| {
        value.kind() == ValueKind::Number && matches!(Number::of(value), Some(Number::Int(_)))
    });
    environment.add_test("iterable", |value: &Value| items_kind(value));
    environment.add_test("sequence", |value: &Value| items_kind(value));
    add_functions(&mut environment, now);
    Ok(environment)
}

/// Whether a value is a macro, which minijinja has for a mapping.
fn is_macro(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Macro"))
}

/// Whether Python can iterate over a value.
fn items_kind(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
}

fn add_functions(environment: &mut Environment<'static>, now: Option<SystemTime>) {
    environment.add_function("raise_exception", |args: Rest<ValueOrKwargs>| {
        let [message] = bind("raise_exception", &args.into_values(), ["message"])?;
        let message = text(&require("raise_exception", "message", message)?)?;
        Err::<Value, Error>(invalid(message))
    });
    environment.add_function("strftime_now", move |args: Rest<ValueOrKwargs>| {
        let [format] = bind("strftime_now", &args.into_values(), ["format"])?;
        let format = string("strftime_now", &require("strftime_now", "format", format)?)?;
        strftime_local(&format, now.unwrap_or_else(SystemTime::now)).map_err(invalid)
    });
    let namespace = Value::from_function(minijinja::functions::namespace);
    environment.add_function("namespace", move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let attributes = merged(&args.into_values())?;
        if attributes.iter().any(|(name, _)| name.to_string().starts_with('_')) {
            return Err(invalid("a namespace has no attributes that begin with '_'"));
        }
        namespace.call(state, &[Value::from_pairs(attributes)])
    });
    environment.add_global("dict", Value::from_object(Dict));
    environment
        .add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function(source::PERCENT, |a: &Value, b: &Value| modulo(a, b));
    environment.add_function(
        source::SLICE,
        |value: &Value, start: &Value, stop: &Value, step: &Value| {
            slice(value, [start, stop, step])
        },
    );
    environment
        .add_function(source::CONCAT, |a: &Value, b: &Value| Ok::<_, Error>(text(a)? + &text(b)?));
    environment.add_function(source::ADD, add);
    environment.add_function(source::ITERATE, |values: Rest<Value>| match &values.0[..] {
        [value] if items_kind(value) || value.is_undefined() => Ok(value.clone()),
        [value] => Err(invalid(format!("{} is not iterable", value.kind()))),
        values => Ok(Value::from(values.to_vec())),
    });
}

/// Two texts in one. Where one is safe the other is escaped, as markupsafe has it.
fn joined([a, b]: [String; 2], safe: [bool; 2]) -> Value {
    match safe {
        [false, false] => (a + &b).into(),
        [true, true] => Value::from_safe_string(a + &b),
        [true, false] => Value::from_safe_string(a + &escaped(&b)),
        [false, true] => Value::from_safe_string(escaped(&a) + &b),
    }
}

/// `a + b` of texts, lists or numbers.
fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(left), Some(right)) = (a.as_str(), b.as_str()) {
        return Ok(joined([left.to_owned(), right.to_owned()], [a.is_safe(), b.is_safe()]));
    }
    let of_kind = |kind| a.kind() == kind && b.kind() == kind;
    if of_kind(ValueKind::Seq) && a.is_tuple() == b.is_tuple() {
        let mut list = items(a)?;
        list.extend(items(b)?);
        return Ok(if a.is_tuple() { Tuple::from(list).into() } else { list.into() });
    }
    let sum = match (Number::of(a), Number::of(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => a.checked_add(b).map(Number::Int),
        (Some(a), Some(b)) => Some(Number::Float(a.to_f64() + b.to_f64())),
        _ => None,
    };
    sum.map(Value::from)
        .ok_or_else(|| invalid(format!("no operator + of {} and {}", a.kind(), b.kind())))
}

/// What `dict` and `namespace` hold by their arguments: a mapping or pairs, then names.
fn merged(args: &[Value]) -> Result<Vec<(Value, Value)>, Error> {
    let mut merged = Vec::new();
    for arg in args {
        if arg.kind() == ValueKind::Map {
            merged.extend(pairs(arg)?.into_iter().map(|[key, value]| (key, value)));
            continue;
        }
        for pair in items(arg)? {
            match <[Value; 2]>::try_from(items(&pair)?) {
                Ok([key, value]) => merged.push((key, value)),
                Err(_) => return Err(invalid("dict takes pairs")),
            }
        }
    }
    Ok(merged)
}

/// The function `dict`.
#[derive(Debug)]
struct Dict;

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        merged(args).map(Value::from_pairs)
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        if method != "fromkeys" {
            return Err(ErrorKind::UnknownMethod.into());
        }
        let [keys, value] = bind("fromkeys", args, ["iterable", "value"])?;
        let value = value.unwrap_or_else(|| Value::from(()));
        let keys = items(&require("fromkeys", "iterable", keys)?)?;
        Ok(Value::from_pairs(keys.into_iter().map(|key| (key, value.clone()))))
    }
}

fn call_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        return strings::call(text, method, args);
    }
    match strings::call_other(value, method, args) {
        Err(error) if error.kind() == ErrorKind::UnknownMethod => {
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
        }
        called => called,
    }
}

/// Writes a value as Python does.
fn write(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let text = match value.as_str() {
        Some(text) => text.to_owned(),
        None => text(value)?,
    };
    let text = match state.auto_escape() {
        AutoEscape::None => text,
        _ if value.is_safe() => text,
        _ => escaped(&text),
    };
    out.write_str(&text).map_err(|_| ErrorKind::WriteFailure.into())
}
