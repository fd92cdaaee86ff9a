//! The fields of a request, taken out one by one: what is left is unknown, and an error.

use super::error::ApiError;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The fields of a JSON object that nobody has asked for yet.
pub(super) struct Fields {
    map: Map<String, Value>,
    /// What comes before the names in errors, such as `messages[2].`.
    path: String,
}

impl Fields {
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body)
            .map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))?;
        match value {
            Value::Object(map) => Ok(Fields { map, path: String::new() }),
            _ => Err(ApiError::invalid("the body has to be a JSON object")),
        }
    }

    /// The fields of a value within a request.
    pub fn of(value: Value, path: &str) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path: format!("{path}.") }),
            _ => Err(ApiError::param(path, "it has to be an object")),
        }
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// Takes a field; `null` is as good as none.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        match self.map.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match serde_json::from_value(value) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(ApiError::param(self.name(name), error)),
            },
        }
    }

    /// Takes a field that has to be there.
    pub fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        let missing = || ApiError::param(self.name(name), "this field is required");
        let missing = missing();
        self.take(name)?.ok_or(missing)
    }

    /// Takes a field for what is not supported: it may be `null`, or a value that asks for nothing.
    pub fn neutral(
        &mut self,
        name: &str,
        asks_for_nothing: impl FnOnce(&Value) -> bool,
    ) -> Result<(), ApiError> {
        match self.map.remove(name) {
            Some(value) if !value.is_null() && !asks_for_nothing(&value) => {
                Err(ApiError::unsupported(self.name(name)))
            }
            _ => Ok(()),
        }
    }

    /// Whether a field is there, and not `null`.
    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Gives a field its usual name. One that is there under both names has to say the same.
    pub fn rename(&mut self, other: &str, usual: &str) -> Result<(), ApiError> {
        let Some(value) = self.map.remove(other).filter(|value| !value.is_null()) else {
            return Ok(());
        };
        match self.map.get(usual) {
            Some(known) if !known.is_null() && *known != value => {
                let what = format!("it is another name of {usual}, which says otherwise");
                Err(ApiError::param(self.name(other), what))
            }
            _ => {
                self.map.insert(usual.to_owned(), value);
                Ok(())
            }
        }
    }

    /// Adds a field that the request says elsewhere; one that is there stays.
    pub fn add(&mut self, name: &str, value: Option<Value>) {
        if let Some(value) = value.filter(|_| !self.has(name)) {
            self.map.insert(name.to_owned(), value);
        }
    }

    /// The fields that are left and not `null`, in their order.
    pub fn rest(self) -> Map<String, Value> {
        self.map.into_iter().filter(|(_, value)| !value.is_null()).collect()
    }

    /// Leaves out fields that change nothing about an answer.
    pub fn ignore(&mut self, names: &[&str]) {
        names.iter().for_each(|&name| drop(self.map.remove(name)));
    }

    /// Ends the request: there must be no field left but empty ones.
    pub fn finish(self) -> Result<(), ApiError> {
        let left = self.map.iter().find(|(_, value)| !is_empty(value));
        match left {
            Some((name, _)) => Err(ApiError::param(self.name(name), "this field is unknown")),
            None => Ok(()),
        }
    }
}

/// `null`, or an empty list, object or text.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// `false`, or what is empty.
pub(super) fn is_off(value: &Value) -> bool {
    value == &Value::Bool(false) || is_empty(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(error: ApiError) -> String {
        error.to_json()["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn what_is_left_is_unknown() {
        let mut fields =
            Fields::parse(br#"{"n": 2, "top_p": "x", "user": 1, "a": null, "b": [], "c": 0}"#)
                .unwrap();
        assert_eq!(fields.take::<u32>("n").unwrap(), Some(2));
        assert_eq!(fields.take::<u32>("n").unwrap(), None);
        let error = fields.take::<f32>("top_p").unwrap_err();
        assert_eq!(message(error), "top_p: invalid type: string \"x\", expected f32");
        fields.ignore(&["user"]);
        assert_eq!(message(fields.finish().unwrap_err()), "c: this field is unknown");
    }

    #[test]
    fn what_is_not_supported_may_ask_for_nothing() {
        let body = br#"{"tools": [], "logprobs": false, "best_of": 1, "logit": {"a": 1}}"#;
        let mut fields = Fields::parse(body).unwrap();
        fields.neutral("tools", is_empty).unwrap();
        fields.neutral("logprobs", is_off).unwrap();
        fields.neutral("best_of", |value| value == 1).unwrap();
        fields.neutral("absent", |_| false).unwrap();
        let error = fields.neutral("logit", is_empty).unwrap_err();
        assert_eq!(message(error), "logit: this is not supported yet");
        fields.finish().unwrap();
    }

    #[test]
    fn a_body_is_an_object() {
        for (body, start) in [
            ("[1]", "the body has to be a JSON object"),
            ("{", "the body is not JSON: EOF"),
            ("", "the body is not JSON: EOF"),
            ("{\"a\": 1e999}", "the body is not JSON: number out of range"),
        ] {
            let message = message(Fields::parse(body.as_bytes()).err().unwrap());
            assert!(message.starts_with(start), "{body}: {message}");
        }
        let deep = "[".repeat(1 << 16);
        assert!(Fields::parse(deep.as_bytes()).is_err());
    }
}
