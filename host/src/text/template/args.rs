//! Arguments of filters and methods, as Python binds them: by position or by name.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};

/// An error of a template.
pub(super) fn invalid(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

/// The arguments `args` of `function`, in the order of `names`.
pub(super) fn bind<const N: usize>(
    function: &str,
    args: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let (positional, named) = match args.split_last() {
        Some((last, before)) if last.is_kwargs() => (before, Some(Kwargs::try_from(last.clone())?)),
        _ => (args, None),
    };
    if positional.len() > N {
        return Err(invalid(format!("{function} takes {N} arguments, not {}", positional.len())));
    }
    let mut bound = [const { None }; N];
    for (slot, value) in bound.iter_mut().zip(positional) {
        *slot = Some(value.clone());
    }
    for name in named.iter().flat_map(Kwargs::args) {
        let slot = names.iter().position(|known| *known == name).map(|index| &mut bound[index]);
        let Some(slot @ None) = slot else {
            return Err(invalid(format!("{function} takes no argument '{name}'")));
        };
        *slot = Some(named.iter().flat_map(|named| named.get(name)).next().unwrap_or_default());
    }
    Ok(bound)
}

/// An argument that has to be there.
pub(super) fn require(function: &str, name: &str, value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| invalid(format!("{function} needs an argument '{name}'")))
}

/// A string, where Python takes no other type.
pub(super) fn string(function: &str, value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(invalid(format!("{function} takes a string, not {}", value.kind()))),
    }
}

/// An integer; `default` for none.
pub(super) fn integer(function: &str, value: Option<&Value>, default: i64) -> Result<i64, Error> {
    match value {
        None => Ok(default),
        Some(value) if value.is_none() => Ok(default),
        Some(value) => value
            .as_i64()
            .or_else(|| value.as_bool())
            .ok_or_else(|| invalid(format!("{function} takes an integer, not {}", value.kind()))),
    }
}

/// Booleans count as integers.
trait AsBool {
    fn as_bool(&self) -> Option<i64>;
}

impl AsBool for Value {
    fn as_bool(&self) -> Option<i64> {
        (self.kind() == minijinja::value::ValueKind::Bool).then(|| self.is_true().into())
    }
}
