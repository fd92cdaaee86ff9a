//! The form of an answer: OpenAI's `response_format`, and vLLM's `guided_*` and `structured_outputs`.

use super::error::ApiError;
use super::fields::Fields;
use crate::grammar::{Grammar, GrammarCompiler, GrammarError};
use serde_json::{Value, json};

/// A form that an answer has to have.
#[derive(Debug, PartialEq)]
pub(super) struct Form {
    kind: Kind,
    /// The field that asks for it.
    param: &'static str,
}

#[derive(Debug, PartialEq)]
enum Kind {
    JsonObject,
    JsonSchema(String),
    Regex(String),
    Lark(String),
    Gbnf(String),
}

impl Form {
    /// The form that a request asks for, if any.
    pub fn take(fields: &mut Fields) -> Result<Option<Self>, ApiError> {
        let mut forms = Vec::new();
        if let Some(format) = fields.take::<Value>("response_format")? {
            forms.extend(response_format(Fields::of(format, "response_format")?)?);
        }
        // These two are llama.cpp's.
        if let Some(schema) = fields.take::<Value>("json_schema")? {
            let param = "json_schema";
            forms.push(Form { kind: Kind::JsonSchema(schema.to_string()), param });
        }
        let gbnf = fields.take::<String>("grammar")?.filter(|grammar| !grammar.is_empty());
        forms.extend(gbnf.map(|grammar| Form { kind: Kind::Gbnf(grammar), param: "grammar" }));
        let guided = [
            take_one(fields, ["guided_json", "guided_regex", "guided_choice", "guided_grammar"])?,
            match fields.take::<Value>("structured_outputs")? {
                Some(outputs) => {
                    let mut outputs = Fields::of(outputs, "structured_outputs")?;
                    let form = take_one(&mut outputs, ["json", "regex", "choice", "grammar"])?;
                    outputs.finish()?;
                    form
                }
                None => Vec::new(),
            },
        ];
        forms.extend(guided.into_iter().flatten());
        match forms.len() {
            0 | 1 => Ok(forms.pop()),
            _ => Err(ApiError::param(forms[1].param, "there can be only one form of an answer")),
        }
    }

    /// What the field `param` asks for, if anything: `text.format` of `/v1/responses`, or `output_config.format` of
    /// `/v1/messages`.
    pub fn from_text_format(format: Value, param: &'static str) -> Result<Option<Self>, ApiError> {
        let mut format = Fields::of(format, param)?;
        let kind = match format.require::<String>("type")?.as_str() {
            "text" => None,
            "json_object" => Some(Kind::JsonObject),
            "json_schema" => Some(take_schema(&mut format)?),
            _ => return Err(ApiError::param(param, KINDS)),
        };
        format.finish()?;
        Ok(kind.map(|kind| Form { kind, param }))
    }

    /// Form of an answer that has to be a call of a tool, given by a grammar.
    pub fn calls(grammar: String) -> Self {
        Form { kind: Kind::Lark(grammar), param: "tools" }
    }

    /// The field that asks for it.
    pub fn param(&self) -> &'static str {
        self.param
    }

    /// Grammar of the form.
    pub fn grammar(&self, compiler: &GrammarCompiler) -> Result<Grammar, ApiError> {
        let grammar = match &self.kind {
            Kind::JsonObject => compiler.json_object(),
            Kind::JsonSchema(schema) => compiler.json_schema(schema),
            Kind::Regex(regex) => compiler.regex(regex),
            Kind::Lark(grammar) => compiler.lark(grammar),
            Kind::Gbnf(grammar) => compiler.gbnf(grammar),
        };
        grammar.map_err(|error: GrammarError| ApiError::param(self.param, error))
    }
}

fn response_format(mut format: Fields) -> Result<Option<Form>, ApiError> {
    let param = "response_format";
    let kind = match format.require::<String>("type")?.as_str() {
        "text" => None,
        // llama.cpp's, which has the schema beside the type.
        "json_object" if !format.has("schema") => Some(Kind::JsonObject),
        "json_object" => Some(take_schema(&mut format)?),
        "json_schema" if format.has("schema") && !format.has("json_schema") => {
            Some(take_schema(&mut format)?)
        }
        "json_schema" => {
            let schema = format.require("json_schema")?;
            Some(take_schema(&mut Fields::of(schema, "response_format.json_schema")?)?)
        }
        _ => return Err(ApiError::param(param, KINDS)),
    };
    format.finish()?;
    Ok(kind.map(|kind| Form { kind, param }))
}

const KINDS: &str = "the type has to be text, json_object or json_schema";

/// A named schema.
fn take_schema(fields: &mut Fields) -> Result<Kind, ApiError> {
    // Every schema is kept to, strict or not.
    fields.ignore(&["name", "description", "strict"]);
    let schema = fields.require::<Value>("schema")?;
    Ok(Kind::JsonSchema(schema.to_string()))
}

/// Takes the fields of a schema, a regular expression, a choice of texts and a grammar.
fn take_one(
    fields: &mut Fields,
    [schema, regex, choice, grammar]: [&'static str; 4],
) -> Result<Vec<Form>, ApiError> {
    let mut forms = Vec::new();
    if let Some(json) = fields.take::<Value>(schema)? {
        // vLLM takes the text of a schema too.
        let json = match json {
            Value::String(text) => text,
            other => other.to_string(),
        };
        forms.push(Form { kind: Kind::JsonSchema(json), param: schema });
    }
    if let Some(text) = fields.take(regex)? {
        forms.push(Form { kind: Kind::Regex(text), param: regex });
    }
    if let Some(texts) = fields.take::<Vec<String>>(choice)? {
        if texts.is_empty() {
            return Err(ApiError::param(choice, "there has to be one at least"));
        }
        // A text of Lark is one of JSON.
        let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
        forms.push(Form {
            kind: Kind::Lark(format!("start: {}", texts.join(" | "))),
            param: choice,
        });
    }
    if let Some(text) = fields.take(grammar)? {
        forms.push(Form { kind: Kind::Lark(text), param: grammar });
    }
    Ok(forms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: Value) -> Result<Option<Form>, String> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        let form = Form::take(&mut fields).and_then(|form| fields.finish().map(|()| form));
        form.map_err(|error| error.to_json()["error"]["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn a_form_is_asked_for_in_openais_way_and_in_vllms() {
        let form = |kind, param| Ok(Some(Form { kind, param }));
        let schema = || Kind::JsonSchema(r#"{"type":"object"}"#.to_owned());
        let of_openai = json!({"name": "x", "strict": true, "schema": {"type": "object"}});
        for (body, want) in [
            (json!({}), Ok(None)),
            (json!({"response_format": {"type": "text"}}), Ok(None)),
            (
                json!({"response_format": {"type": "json_object"}}),
                form(Kind::JsonObject, "response_format"),
            ),
            (
                json!({"response_format": {"type": "json_schema", "json_schema": of_openai}}),
                form(schema(), "response_format"),
            ),
            (
                json!({"response_format": {"type": "json_object", "schema": {"type": "object"}}}),
                form(schema(), "response_format"),
            ),
            (
                json!({"response_format": {"type": "json_schema", "schema": {"type": "object"}}}),
                form(schema(), "response_format"),
            ),
            (json!({"json_schema": {"type": "object"}}), form(schema(), "json_schema")),
            (json!({"guided_json": {"type": "object"}}), form(schema(), "guided_json")),
            (json!({"guided_json": "{\"type\":\"object\"}"}), form(schema(), "guided_json")),
            (json!({"guided_regex": "a+"}), form(Kind::Regex("a+".into()), "guided_regex")),
            (
                json!({"structured_outputs": {"choice": ["a", "\"b"]}}),
                form(Kind::Lark(r#"start: "a" | "\"b""#.into()), "choice"),
            ),
        ] {
            assert_eq!(take(body.clone()), want, "{body}");
        }
        for (body, why) in [
            (json!({"response_format": {"type": "xml"}}), "the type has to be"),
            (json!({"response_format": {"type": "json_schema"}}), "this field is required"),
            (json!({"guided_choice": []}), "there has to be one at least"),
            (json!({"guided_regex": "a", "guided_choice": ["b"]}), "there can be only one form"),
            (json!({"structured_outputs": {"whitespace_pattern": "x"}}), "this field is unknown"),
        ] {
            let error = take(body.clone()).unwrap_err();
            assert!(error.contains(why), "{body}: {error}");
        }
    }
}
