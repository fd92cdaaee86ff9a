//! Rules of one function's calls: its name and its arguments.

use super::Rules;
use crate::schema::lark_schema;
use crate::text::answer::Calls;
use crate::text::answer::mark::{Mark, Part};
use crate::text::answer::style::{Arguments, Fields, Style};
use serde_json::{Value, json};

impl Rules<'_> {
    /// The rule of a call of one function, from its name or its object to the end of its arguments.
    pub(super) fn function(&mut self, rule: &str, function: &Value, format: &Calls) {
        let name = function["name"].as_str().unwrap_or_default();
        let parameters = &function["parameters"];
        let arguments_rule = format!("arguments_of_{rule}");
        let right = match &format.style {
            Style::Object { before_name, before_arguments, after, .. } => {
                let before = self.mark(before_name, name, "");
                let between = self.mark(before_arguments, name, "");
                let after = self.mark(after, name, "");
                let name = self.literal(&json!(name).to_string());
                self.text += &format!("{arguments_rule}: %json {}\n", schema(parameters));
                format!("{before} {name} {between} {arguments_rule} {after}")
            }
            Style::Named { middle, arguments } => {
                let middle = self.mark(middle, name, "");
                let arguments = match arguments {
                    Arguments::Json => {
                        self.text += &format!("{arguments_rule}: %json {}\n", schema(parameters));
                        arguments_rule
                    }
                    Arguments::Fields(fields) => {
                        let of = |rules: &mut Self, key: &str, schema: &Value, rule: &str| {
                            rules.field(fields, key, schema, rule)
                        };
                        self.members(parameters, &arguments_rule, "", of)
                    }
                    Arguments::Python => {
                        let of = |rules: &mut Self, key: &str, schema: &Value, rule: &str| {
                            rules.text += &format!("{rule}: %json {}\n", self::schema(schema));
                            format!("{} {rule}", rules.literal(&format!("{key}=")))
                        };
                        format!("{} \")\"", self.members(parameters, &arguments_rule, ", ", of))
                    }
                    Arguments::Bare { quote } => {
                        let of = |rules: &mut Self, key: &str, schema: &Value, rule: &str| {
                            rules.bare(quote.as_deref(), key, schema, rule)
                        };
                        let members = self.members(parameters, &arguments_rule, ",", of);
                        format!("\"{{\" {members} \"}}\"")
                    }
                };
                format!("{} {middle} {arguments}", self.literal(name))
            }
        };
        self.text += &format!("{rule}: {right}\n");
    }

    /// A parameter between marks.
    fn field(&mut self, fields: &Fields, key: &str, schema: &Value, rule: &str) -> String {
        let is_string = is_text(schema);
        let open = self.mark(&fields.open, key, "");
        let kind = fields.middle.0.iter().find_map(|part| match part {
            Part::Kind(string) => Some(string.as_str()),
            _ => None,
        });
        let kind = match (kind, schema["type"].as_str()) {
            (Some(string), _) if is_string => string,
            (Some("true"), _) => "false",
            (Some(_), Some("integer")) => "number",
            (Some(_), kind) => kind.unwrap_or("object"),
            (None, _) => "",
        };
        let middle = self.mark(&fields.middle, key, kind);
        let key_mark = self.literal(key);
        let close = self.filled(&fields.close, key);
        let value = self.raw_value(schema, &close, rule);
        format!("{open} {key_mark} {middle} {value}")
    }

    fn filled(&self, mark: &Mark, key: &str) -> Mark {
        let parts = mark.0.iter().map(|part| match part {
            Part::Key => Part::Text(key.to_owned()),
            other => other.clone(),
        });
        parts.fold(Mark::default(), |mark, part| mark.then(&Mark(vec![part])))
    }

    /// A value as it is, and the mark after it.
    fn raw_value(&mut self, schema: &Value, close: &Mark, rule: &str) -> String {
        let after = self.mark(close, "", "");
        if !is_text(schema) {
            self.text += &format!("{rule}: %json {}\n", self::schema(schema));
            return format!("{rule} {after}");
        }
        match texts(schema) {
            Some(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| self.literal(text)).collect();
                format!("({}) {after}", texts.join(" | "))
            }
            None => self.text_until(close, schema["maxLength"].as_u64()),
        }
    }

    /// A parameter whose string has quotes of the format's own.
    fn bare(&mut self, quote: Option<&str>, key: &str, schema: &Value, rule: &str) -> String {
        let key = self.literal(&format!("{key}:"));
        match quote.filter(|_| is_text(schema)) {
            Some(quote) => {
                let value = self.raw_value(schema, &Mark::text(quote), rule);
                format!("{key} {} {value}", self.literal(quote))
            }
            None => {
                self.text += &format!("{rule}: %json {}\n", self::schema(schema));
                format!("{key} {rule}")
            }
        }
    }

    /// Parameters in the order of the schema: those that it requires, and others or not.
    fn members(
        &mut self,
        parameters: &Value,
        rule: &str,
        separator: &str,
        of: impl Fn(&mut Self, &str, &Value, &str) -> String,
    ) -> String {
        let Some(properties) = parameters["properties"].as_object() else { return String::new() };
        let required: Vec<&str> = parameters["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let separator = self.literal(separator);
        // From the last to the first: what may follow, as the first of all and after another.
        let (mut first, mut later) = ("\"\"".to_owned(), "\"\"".to_owned());
        for (index, (key, schema)) in properties.iter().enumerate().rev() {
            let of_key = format!("{rule}_{index}");
            let member = of(self, key, schema, &format!("{of_key}_value"));
            let is_required = required.contains(&key.as_str());
            let [begin, more] = ["first", "more"].map(|which| format!("{of_key}_{which}"));
            let or = |rest: &str| if is_required { String::new() } else { format!(" | {rest}") };
            self.text += &format!("{of_key}: {member}\n");
            self.text += &format!("{begin}: {of_key} {later}{}\n", or(&first));
            self.text += &format!("{more}: {separator} {of_key} {later}{}\n", or(&later));
            (first, later) = (begin, more);
        }
        first
    }
}

/// Whether a value is written as it is: a string.
fn is_text(schema: &Value) -> bool {
    let are_strings = |values: &Value| {
        values
            .as_array()
            .is_some_and(|values| !values.is_empty() && values.iter().all(Value::is_string))
    };
    match &schema["type"] {
        Value::Null => are_strings(&schema["enum"]) || schema["const"].is_string(),
        kind => kind == "string",
    }
}

/// The texts that a string may be, if they are listed.
fn texts(schema: &Value) -> Option<Vec<String>> {
    if let Some(text) = schema["const"].as_str() {
        return Some(vec![text.to_owned()]);
    }
    let values = schema["enum"].as_array()?.iter();
    let texts: Vec<String> = values.filter_map(Value::as_str).map(str::to_owned).collect();
    (!texts.is_empty()).then_some(texts)
}

/// A schema of arguments: spaces where models write them, and no arguments that the function does not name.
pub(super) fn schema(parameters: &Value) -> Value {
    let mut schema = match parameters.is_null() {
        true => json!({"type": "object"}),
        false => parameters.clone(),
    };
    if let Value::Object(fields) = &mut schema
        && fields.contains_key("properties")
    {
        fields.entry("additionalProperties").or_insert(false.into());
    }
    lark_schema(&schema, json!({"item_separator": ", ", "key_separator": ": "}))
}
