//! Checked access to the fields of config.json and of GGUF metadata.

use super::ConfigError;
use crate::weights::gguf;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// Named values that someone else wrote. A JSON null counts as absent, as in transformers.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    source: Source<'a>,
    /// The prefix of every field's name: an object's name in JSON, the architecture in GGUF.
    prefix: &'a str,
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Json(&'a Map<String, Value>),
    Gguf(&'a gguf::Metadata),
}

/// Numbers from the smallest to the largest normal f32, above zero.
pub(super) const POSITIVE: RangeInclusive<f64> = f32::MIN_POSITIVE as f64..=f32::MAX as f64;

impl<'a> Fields<'a> {
    pub fn json(object: &'a Map<String, Value>) -> Self {
        Fields { source: Source::Json(object), prefix: "" }
    }

    pub fn gguf(metadata: &'a gguf::Metadata, architecture: &'a str) -> Self {
        Fields { source: Source::Gguf(metadata), prefix: architecture }
    }

    /// The field's whole name, for errors and for GGUF's flat keys.
    fn full_name(&self, field: &str) -> String {
        if self.prefix.is_empty() { field.into() } else { format!("{}.{field}", self.prefix) }
    }

    /// Whether there is no field at all (JSON only).
    pub fn is_empty(&self) -> bool {
        matches!(self.source, Source::Json(object) if object.is_empty())
    }

    fn get(&self, field: &str) -> Option<Value> {
        let value = match self.source {
            Source::Json(object) => object.get(field)?.clone(),
            Source::Gguf(metadata) => from_gguf(metadata.get(&self.full_name(field))?),
        };
        (!value.is_null()).then_some(value)
    }

    /// Whether the field is there, be it null.
    pub fn has(&self, field: &str) -> bool {
        match self.source {
            Source::Json(object) => object.contains_key(field),
            Source::Gguf(metadata) => metadata.get(&self.full_name(field)).is_some(),
        }
    }

    fn read<T>(
        &self,
        field: &str,
        expected: impl Fn() -> String,
        convert: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match convert(&value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(ConfigError::invalid(self.full_name(field), value, expected())),
        }
    }

    pub fn count(
        &self,
        field: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, ConfigError> {
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        self.read(field, expected, |value| {
            usize::try_from(value.as_u64()?).ok().filter(|count| range.contains(count))
        })
    }

    pub fn required_count(
        &self,
        field: &str,
        range: RangeInclusive<usize>,
    ) -> Result<usize, ConfigError> {
        self.required(field, self.count(field, range)?)
    }

    pub fn number(
        &self,
        field: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, ConfigError> {
        let expected = || match range == POSITIVE {
            true => "a positive number".into(),
            false => format!("a number from {} to {:e}", range.start(), range.end()),
        };
        self.read(field, expected, |value| value.as_f64().filter(|number| range.contains(number)))
    }

    pub fn required_number(
        &self,
        field: &str,
        range: RangeInclusive<f64>,
    ) -> Result<f64, ConfigError> {
        self.required(field, self.number(field, range)?)
    }

    pub fn flag(&self, field: &str, default: bool) -> Result<bool, ConfigError> {
        let flag = self.read(field, || "true or false".into(), Value::as_bool)?;
        Ok(flag.unwrap_or(default))
    }

    pub fn text(&self, field: &str) -> Result<Option<String>, ConfigError> {
        self.read(field, || "a string".into(), |value| Some(value.as_str()?.to_owned()))
    }

    pub fn required_text(&self, field: &str) -> Result<String, ConfigError> {
        self.required(field, self.text(field)?)
    }

    pub fn texts(&self, field: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let expected = || "a list of strings".into();
        self.read(field, expected, |value| {
            value.as_array()?.iter().map(|item| Some(item.as_str()?.to_owned())).collect()
        })
    }

    /// A list of true and false, or of numbers that are not 0 and 0.
    pub fn flags(&self, field: &str) -> Result<Option<Vec<bool>>, ConfigError> {
        let flag = |item: &Value| item.as_bool().or_else(|| Some(item.as_i64()? != 0));
        self.read(
            field,
            || "a list of flags".into(),
            |value| value.as_array()?.iter().map(flag).collect(),
        )
    }

    /// A list of whole numbers.
    pub fn counts(&self, field: &str) -> Result<Option<Vec<usize>>, ConfigError> {
        if let Source::Gguf(metadata) = self.source
            && let Some(gguf::Value::Array(values)) = metadata.get(&self.full_name(field))
        {
            let counts = values.iter().map(|value| usize::try_from(value.as_u64()?).ok());
            let counts: Option<Vec<usize>> = counts.collect();
            return match counts {
                Some(counts) => Ok(Some(counts)),
                None => Err(self.invalid(field, "a list of whole numbers")),
            };
        }
        let count = |item: &Value| usize::try_from(item.as_u64()?).ok();
        self.read(
            field,
            || "a list of whole numbers".into(),
            |value| value.as_array()?.iter().map(count).collect(),
        )
    }

    pub fn required_numbers(&self, field: &str) -> Result<Vec<f32>, ConfigError> {
        let expected = || "a list of numbers".into();
        let numbers = self.read(field, expected, |value| {
            value.as_array()?.iter().map(|item| Some(item.as_f64()? as f32)).collect()
        })?;
        self.required(field, numbers)
    }

    /// The fields of the object called `field` (JSON only).
    pub fn object(&self, field: &'a str) -> Result<Option<Fields<'a>>, ConfigError> {
        let Source::Json(object) = self.source else { return Ok(None) };
        match object.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(inner)) => {
                Ok(Some(Fields { source: Source::Json(inner), prefix: field }))
            }
            Some(other) => Err(ConfigError::invalid(field, other, "an object is needed")),
        }
    }

    /// The fields of the object called `field`, whose fields have no other prefix (JSON only).
    pub fn object_at(&self, field: &str) -> Result<Option<Fields<'a>>, ConfigError> {
        let Source::Json(object) = self.source else { return Ok(None) };
        match object.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(inner)) => {
                Ok(Some(Fields { source: Source::Json(inner), prefix: self.prefix }))
            }
            Some(other) => Err(ConfigError::invalid(field, other, "an object is needed")),
        }
    }

    /// Elements of a head: the hidden size divided by `num_heads`, the value of `field`.
    pub fn divide(
        &self,
        hidden_size: usize,
        field: &str,
        num_heads: usize,
    ) -> Result<usize, ConfigError> {
        if hidden_size.is_multiple_of(num_heads) {
            return Ok(hidden_size / num_heads);
        }
        Err(self.invalid(field, format!("it must divide the hidden size ({hidden_size})")))
    }

    /// An error about `field`: its value is not what is `expected`.
    pub fn invalid(&self, field: &str, expected: impl Into<String>) -> ConfigError {
        let value = self.get(field).unwrap_or(Value::Null);
        ConfigError::invalid(self.full_name(field), value, expected)
    }

    fn required<T>(&self, field: &str, value: Option<T>) -> Result<T, ConfigError> {
        value.ok_or_else(|| ConfigError::Missing { field: self.full_name(field) })
    }
}

/// A GGUF value in JSON's terms; a float that JSON cannot hold becomes its name, which no reader
/// takes for a number.
fn from_gguf(value: &gguf::Value) -> Value {
    let float = |float: f64| {
        serde_json::Number::from_f64(float)
            .map_or_else(|| Value::String(float.to_string()), Value::Number)
    };
    match value {
        gguf::Value::F32(number) => float(f64::from(*number)),
        gguf::Value::F64(number) => float(*number),
        gguf::Value::Bool(flag) => Value::Bool(*flag),
        gguf::Value::String(text) => Value::String(text.clone()),
        gguf::Value::Array(values) if matches!(values[..], [gguf::Value::Bool(_), ..]) => {
            Value::Array(values.iter().map(from_gguf).collect())
        }
        // [`Fields::counts`] reads those of sizes itself, and of no other array is more read.
        gguf::Value::Array(values) => Value::String(format!("array of {}", values.len())),
        integer => integer.as_u64().map_or_else(|| Value::from(-1), Value::from),
    }
}
