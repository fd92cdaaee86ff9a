//! The grammar of an answer that has to be a call: what the model writes, around JSON of a tool's schema.
//!
//! In llguidance's variant of Lark's syntax. Marks that are special tokens of the model are tokens in it.

use super::mark::{Mark, Part};
use super::style::{Arguments, Fields, Style};
use super::{AnswerFormat, Calls, Opened};
use crate::schema::lark_schema;
use crate::text::Tokenizer;
use serde_json::{Value, json};

/// What a grammar of calls is for.
#[derive(Clone, Copy, Debug)]
pub struct RequiredCalls<'a> {
    /// Tools of which one has to be called, each `{"type": "function", "function": ..}`.
    pub tools: &'a [&'a Value],
    /// Whether there is one call and no more.
    pub is_single: bool,
    /// The prompt that is answered, or its end.
    pub prompt: &'a str,
}

/// Rules of a grammar that is being written.
struct Rules<'a> {
    tokenizer: &'a Tokenizer,
    text: String,
    num_texts: usize,
}

impl AnswerFormat {
    /// Lark of an answer, after its reasoning, that is one call of the tools, or several. `None` if the model's way to
    /// call is not known.
    pub fn required(&self, calls: RequiredCalls<'_>, tokenizer: &Tokenizer) -> Option<String> {
        let rules = Rules { tokenizer, text: String::new(), num_texts: 0 };
        if self.is_harmony {
            return Some(rules.channels(calls));
        }
        let format = self.calls.as_ref()?;
        // A mark that has the name in it is not of all functions.
        if format.call.0.0.contains(&Part::Name) {
            return None;
        }
        let mut open = format.section.0.clone();
        if let Opened::Mark(begun) = self.opened(calls.prompt) {
            // The prompt has the first of it.
            let all = open.clone().then(&format.call.0);
            let rest = all.first_text().strip_prefix(&*begun).map(Mark::text);
            return Some(rules.calls(format, calls, rest.unwrap_or_default(), true));
        }
        if let Some(mark) = format.optional_open.filter(|_| format.call.0.is_blank()) {
            // It tells calls from text, where the model has it as a token.
            open = if tokenizer.token_to_id(mark).is_some() { Mark::default() } else { open };
        }
        Some(rules.calls(format, calls, open, false))
    }
}

impl Rules<'_> {
    /// A text in Lark, which is one of JSON; special tokens in it are tokens.
    fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(char) = rest.chars().next() {
            let len = self.special_at(rest).map_or(char.len_utf8(), |(len, id)| {
                if !plain.is_empty() {
                    parts.push(json!(plain).to_string());
                    plain.clear();
                }
                parts.push(format!("<[{id}]>"));
                len
            });
            if self.special_at(rest).is_none() {
                plain.push(char);
            }
            rest = &rest[len..];
        }
        if !plain.is_empty() {
            parts.push(json!(plain).to_string());
        }
        parts.join(" ")
    }

    /// The special token at the beginning of `text`: its length and its id.
    fn special_at(&self, text: &str) -> Option<(usize, u32)> {
        let ends = text.char_indices().map(|(at, char)| at + char.len_utf8()).take(64);
        let ends: Vec<usize> = ends.collect();
        ends.into_iter().rev().find_map(|len| {
            let id = self.tokenizer.token_to_id(&text[..len])?;
            let (_, is_special) = self.tokenizer.token_bytes(id)?;
            is_special.then_some((len, id))
        })
    }

    /// A mark, with the name of a function and what says the kind of a value.
    fn mark(&self, mark: &Mark, word: &str, kind: &str) -> String {
        let parts = mark.0.iter().map(|part| match part {
            Part::Text(text) => self.literal(text),
            Part::Number => "/[0-9]+/".to_owned(),
            Part::Id => "/[a-zA-Z0-9]{9}/".to_owned(),
            Part::Name | Part::Key => self.literal(word),
            Part::Kind(_) => self.literal(kind),
        });
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// A rule of any text before `close`, and of `close` itself.
    fn text_until(&mut self, close: &Mark, max_length: Option<u64>) -> String {
        let close: String = close
            .0
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                _ => "",
            })
            .collect();
        let name = format!("text_{}", self.num_texts);
        self.num_texts += 1;
        let text = match max_length {
            Some(most) => format!("/(?s:.{{0,{most}}})/"),
            None => "/(?s:.*)/".to_owned(),
        };
        let starts_special = self.special_at(close.trim_start()).is_some();
        let rule = match starts_special {
            // No text has a special token in it.
            true => {
                let rule = format!("{name}: {text}\n");
                self.text += &rule;
                return format!("{name} {}", self.literal(close.trim_start()));
            }
            false => format!("{name}[suffix={}]: {text}\n", json!(close)),
        };
        self.text += &rule;
        name
    }

    /// The whole grammar.
    fn calls(
        mut self,
        format: &Calls,
        calls: RequiredCalls<'_>,
        open: Mark,
        is_begun: bool,
    ) -> String {
        let functions: Vec<String> = calls
            .tools
            .iter()
            .enumerate()
            .map(|(index, tool)| {
                let rule = format!("function_{index}");
                self.function(&rule, &tool["function"], format);
                rule
            })
            .collect();
        let function = functions.join(" | ");
        let call = format!("call: function {}\n", self.mark(&format.call.1, "", ""));
        let call_open = self.mark(&format.call.0, "", "");
        let (open, close) = (self.mark(&open, "", ""), self.mark(&format.section.1, "", ""));
        let [list, list_end] = if format.is_list { ["\"[\"", "\"]\""] } else { ["", ""] };
        let first_open = if is_begun { "" } else { &*call_open };
        let more = match calls.is_single || !format.is_parallel {
            true => String::new(),
            false => format!("({} {call_open} call)*", self.literal(&format.separator)),
        };
        format!(
            "start: {open} {list} {first_open} call {more} {list_end} {close}\n\
             {call}function: {function}\n{}",
            self.text
        )
    }

    /// The rule of a call of one function.
    fn function(&mut self, rule: &str, function: &Value, format: &Calls) {
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

    /// gpt-oss' channels.
    fn channels(mut self, calls: RequiredCalls<'_>) -> String {
        let thinks = self.literal("<|channel|>analysis<|message|>");
        let text = self.text_until(&Mark::text("<|end|>"), None);
        let next = self.literal("<|start|>assistant");
        let mut functions = Vec::new();
        for (index, tool) in calls.tools.iter().enumerate() {
            let (rule, function) = (format!("function_{index}"), &tool["function"]);
            let name = function["name"].as_str().unwrap_or_default();
            let head =
                format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>");
            let head = self.literal(&head);
            let schema = schema(&function["parameters"]);
            self.text +=
                &format!("{rule}: {head} arguments_{index}\narguments_{index}: %json {schema}\n");
            functions.push(rule);
        }
        let functions = functions.join(" | ");
        format!("start: ({thinks} {text} {next})? ({functions})\n{}", self.text)
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
fn schema(parameters: &Value) -> Value {
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

#[cfg(all(test, feature = "grammar"))]
mod tests;
