//! Tools: what a request offers, and how answers are taken apart.
//!
//! How a model writes calls and reasoning its chat template shows: see [`crate::text::answer`]. A model whose template
//! knows no tools is told of them in words.

use super::error::ApiError;
use super::fields::Fields;
use super::form::Form;
use crate::engine::Constraint;
use crate::text::answer::{
    AnswerFormat, AnswerReader, OptionalCalls, ReaderOptions, Reasoning, RequiredCalls,
};
use crate::text::{ChatTemplate, Message, RenderOptions};
use crate::{AfterReasoning, Model, Text};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Tools of a request at most.
const MAX_TOOLS: usize = 128;

/// What a request says about tools.
#[derive(Debug)]
pub(super) struct Tools {
    /// As chat templates know them; none where the request forbids calls.
    list: Vec<Value>,
    choice: ToolChoice,
    /// Whether an answer has one call at most.
    is_single: bool,
}

/// Whether an answer has to be a call.
#[derive(Debug, PartialEq)]
enum ToolChoice {
    Auto,
    Required,
    /// A call of this function.
    Named(String),
}

/// How an answer is taken apart.
#[derive(Clone, Debug)]
pub(super) struct AnswerRules {
    format: AnswerFormat,
    tools: Vec<Value>,
    /// Whether the answer ends with its first call.
    is_single: bool,
    /// Whether the request names the function: such an answer ends with `stop`, as OpenAI's does.
    pub is_named: bool,
    /// The end of the prompt, which may have opened the reasoning.
    prompt: String,
    /// Special tokens that are marks.
    pub kept_tokens: Vec<u32>,
    /// Tokens that end such an answer, beside the model's own.
    pub stop_tokens: Vec<u32>,
}

impl AnswerRules {
    /// At the beginning of an answer.
    pub fn reader(&self) -> AnswerReader {
        let AnswerRules { tools, is_single, prompt, .. } = self;
        AnswerReader::new(&self.format, ReaderOptions { tools, is_single: *is_single, prompt })
    }

    /// What the answer of `model` has to obey: `after` the reasoning, which has at most `budget` tokens.
    pub fn constraint(
        &self,
        model: &Arc<Model>,
        after: Option<Arc<dyn Constraint>>,
        budget: Option<usize>,
    ) -> Option<Arc<dyn Constraint>> {
        let limits = match self.format.reasoning_limits(&self.prompt, budget) {
            Some(limits) if after.is_some() || budget.is_some() => limits,
            _ => return after,
        };
        match AfterReasoning::new(Arc::clone(model), limits, after.clone()) {
            Some(constraint) => Some(Arc::new(constraint)),
            None => after,
        }
    }
}

/// Bytes of the end of a prompt that show what it has opened.
const PROMPT_END: usize = 256;

impl Tools {
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let list = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
        if list.len() > MAX_TOOLS {
            let what = format!("{} tools, at most {MAX_TOOLS} are possible", list.len());
            return Err(ApiError::param("tools", what));
        }
        let list = list
            .into_iter()
            .enumerate()
            .map(|(index, tool)| take_tool(tool, &format!("tools[{index}]")))
            .collect::<Result<Vec<_>, _>>()?;
        let is_parallel = fields.take("parallel_tool_calls")?.unwrap_or(true);
        let choice = match fields.take::<Value>("tool_choice")? {
            None => ToolChoice::Auto,
            Some(choice) => match choice.as_str() {
                Some("auto") => ToolChoice::Auto,
                Some("none") => return Ok(Tools { list: Vec::new(), ..Tools::none() }),
                Some("required") => ToolChoice::Required,
                Some(_) => return Err(ApiError::param("tool_choice", CHOICES)),
                None => take_named(choice)?,
            },
        };
        let is_single = !is_parallel || matches!(choice, ToolChoice::Named(_));
        let tools = Tools { list, choice, is_single };
        tools.check_choice().map(|()| tools)
    }

    /// Tools of a request that offers none.
    fn none() -> Self {
        Tools { list: Vec::new(), choice: ToolChoice::Auto, is_single: false }
    }

    fn check_choice(&self) -> Result<(), ApiError> {
        let names: Vec<&str> = self.list.iter().map(name).collect();
        match &self.choice {
            ToolChoice::Auto => Ok(()),
            _ if names.is_empty() => {
                Err(ApiError::param("tool_choice", "it asks for a call, and there are no tools"))
            }
            ToolChoice::Named(wanted) if !names.contains(&&**wanted) => {
                let what = format!("there is no tool `{wanted}`, but `{}`", names.join("`, `"));
                Err(ApiError::param("tool_choice", what))
            }
            ToolChoice::Required | ToolChoice::Named(_) => Ok(()),
        }
    }

    /// Whether an answer has to be a call.
    pub fn are_required(&self) -> bool {
        self.choice != ToolChoice::Auto
    }

    /// How the answer to `prompt` is taken apart; `None` if it is only text.
    pub fn rules(
        &self,
        text: &Text,
        prompt: &str,
        reasoning: &Reasoning,
    ) -> Option<Arc<AnswerRules>> {
        let format = self.format(text.chat_template.as_ref()?, reasoning);
        if self.list.is_empty() && !format.has_reasoning() {
            return None;
        }
        let start = prompt.floor_char_boundary(prompt.len().saturating_sub(PROMPT_END));
        Some(Arc::new(AnswerRules {
            kept_tokens: format.special_tokens(&text.tokenizer),
            stop_tokens: format.stop_tokens(&text.tokenizer),
            format,
            tools: self.list.clone(),
            is_single: self.is_single,
            is_named: matches!(self.choice, ToolChoice::Named(_)),
            prompt: prompt[start..].to_owned(),
        }))
    }

    /// How the model answers where it has these tools.
    fn format(&self, template: &ChatTemplate, reasoning: &Reasoning) -> AnswerFormat {
        let format = template.answer_format().clone().with_reasoning(reasoning);
        match self.list.is_empty() || format.tells_of_tools() {
            true => format,
            false => format.or_hermes(),
        }
    }

    /// The form of an answer to `prompt` that has to be a call.
    pub fn form(&self, text: &Text, prompt: &str, reasoning: &Reasoning) -> Option<Form> {
        let template = text.chat_template.as_ref().filter(|_| self.are_required())?;
        let is_possible = |tool: &&Value| match &self.choice {
            ToolChoice::Named(wanted) => name(tool) == wanted,
            ToolChoice::Auto | ToolChoice::Required => true,
        };
        let tools: Vec<&Value> = self.list.iter().filter(is_possible).collect();
        let calls = RequiredCalls { tools: &tools, is_single: self.is_single, prompt };
        let format = self.format(template, reasoning);
        format.required(calls, &text.tokenizer).map(Form::calls)
    }

    /// The form of the calls of an answer to `prompt` that may have some.
    pub fn optional(
        &self,
        text: &Text,
        prompt: &str,
        reasoning: &Reasoning,
    ) -> Option<OptionalCalls> {
        let template = text.chat_template.as_ref()?;
        if self.list.is_empty() || self.are_required() {
            return None;
        }
        let tools: Vec<&Value> = self.list.iter().collect();
        let calls = RequiredCalls { tools: &tools, is_single: self.is_single, prompt };
        self.format(template, reasoning).optional(calls, &text.tokenizer)
    }

    /// What `make` makes of the messages and options as a template takes them that is told of these tools.
    pub fn render<T>(
        &self,
        template: &ChatTemplate,
        messages: &[Message],
        options: RenderOptions<'_>,
        make: impl FnOnce(&[Message], &RenderOptions<'_>) -> T,
    ) -> T {
        let options = RenderOptions { tools: &self.list, fills_in_tools: true, ..options };
        let has_calls = |message: &Message| message.fields.contains_key("tool_calls");
        match messages.iter().any(has_calls) && template.answer_format().takes_arguments_as_text() {
            true => make(&with_texts(messages), &options),
            false => make(messages, &options),
        }
    }
}

/// With the arguments of calls as text, for templates that take no others.
fn with_texts(messages: &[Message]) -> Vec<Message> {
    let mut messages = messages.to_vec();
    let calls = messages.iter_mut().filter_map(|message| message.fields.get_mut("tool_calls"));
    for call in calls.filter_map(Value::as_array_mut).flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && !arguments.is_string()
        {
            *arguments = arguments.to_string().into();
        }
    }
    messages
}

const CHOICES: &str =
    "it has to be none, auto, required or {\"type\": \"function\", \"function\": {\"name\": ..}}";

fn take_named(choice: Value) -> Result<ToolChoice, ApiError> {
    let mut choice = Fields::of(choice, "tool_choice")?;
    if choice.require::<String>("type")? != "function" {
        return Err(ApiError::param("tool_choice", CHOICES));
    }
    let mut function = Fields::of(choice.require("function")?, "tool_choice.function")?;
    choice.finish()?;
    let name = function.require("name")?;
    function.finish()?;
    Ok(ToolChoice::Named(name))
}

/// The name of a tool as chat templates know it.
fn name(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// A tool as chat templates know it.
fn take_tool(tool: Value, path: &str) -> Result<Value, ApiError> {
    let mut tool = Fields::of(tool, path)?;
    if tool.require::<String>("type")? != "function" {
        return Err(ApiError::param(path, "the type has to be function"));
    }
    let path = format!("{path}.function");
    // Whatever else a tool says (`strict`, `cache_control`) is for other servers.
    let mut function = Fields::of(tool.require("function")?, &path)?;
    let name = function.require::<String>("name")?;
    let description = function.take::<String>("description")?.unwrap_or_default();
    let nothing = || json!({"type": "object", "properties": {}});
    let parameters = function.take::<Map<String, Value>>("parameters")?;
    let parameters = parameters.map_or_else(nothing, Value::Object);
    let function = json!({"name": name, "description": description, "parameters": parameters});
    Ok(json!({"type": "function", "function": function}))
}

/// The calls of an earlier answer as chat templates know them: their arguments are an object. Whatever else they say is
/// for other servers.
pub(super) fn take_calls(calls: Vec<Value>, path: &str) -> Result<Vec<Value>, ApiError> {
    let take = |call| {
        let mut call = Fields::of(call, path)?;
        let id = call.take::<String>("id")?.unwrap_or_default();
        let mut function = Fields::of(call.require("function")?, path)?;
        let name = function.require::<String>("name")?;
        let arguments = match function.take::<Value>("arguments")? {
            None => json!({}),
            // As models write a call without parameters.
            Some(Value::String(json)) if json.trim().is_empty() => json!({}),
            // What the model wrote stands in the history, JSON or not.
            Some(Value::String(json)) => serde_json::from_str(&json).unwrap_or(Value::String(json)),
            Some(arguments) => arguments,
        };
        let function = json!({"name": name, "arguments": arguments});
        Ok(json!({"id": id, "type": "function", "function": function}))
    };
    calls.into_iter().map(take).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: Value) -> Result<Tools, String> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        Tools::take(&mut fields)
            .map_err(|e| e.to_json()["error"]["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn tools_are_functions() {
        let tool = json!({"type": "function", "cache_control": {"type": "ephemeral"},
            "function": {"name": "f", "strict": true}});
        let known = json!({"type": "function", "function": {
            "name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}});
        assert_eq!(take(json!({"tools": [tool]})).unwrap().list, [known]);
        assert!(take(json!({"tools": [tool], "tool_choice": "none"})).unwrap().list.is_empty());
        for (body, why) in [
            (json!({"tools": [{"type": "x"}]}), "tools[0]: the type has to be function"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].function: this field is required"),
            (
                json!({"tools": vec![tool.clone(); 200]}),
                "tools: 200 tools, at most 128 are possible",
            ),
        ] {
            assert_eq!(take(body).unwrap_err(), why);
        }
    }

    #[test]
    fn a_choice_is_one_of_the_tools() {
        let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
        let tools = json!([tool("f"), tool("g")]);
        let with = |choice: Value| take(json!({"tools": tools, "tool_choice": choice}));
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        assert_eq!(with(json!("auto")).unwrap().choice, ToolChoice::Auto);
        let required = with(json!("required")).unwrap();
        assert!(required.are_required() && !required.is_single);
        let one = with(named("g")).unwrap();
        assert_eq!((one.choice, one.is_single), (ToolChoice::Named("g".to_owned()), true));
        let single = take(json!({"tools": tools, "parallel_tool_calls": false})).unwrap();
        assert!(single.is_single && !single.are_required());
        for (choice, why) in [
            (named("h"), "tool_choice: there is no tool `h`, but `f`, `g`"),
            (json!("any"), "tool_choice: it has to be none, auto, required or "),
            (
                json!({"type": "allowed_tools"}),
                "tool_choice: it has to be none, auto, required or ",
            ),
            (json!({"type": "function"}), "tool_choice.function: this field is required"),
            (json!(3), "tool_choice: it has to be an object"),
        ] {
            let error = with(choice.clone()).unwrap_err();
            assert!(error.starts_with(why), "{choice}: {error}");
        }
        let error = take(json!({"tool_choice": "required"})).unwrap_err();
        assert_eq!(error, "tool_choice: it asks for a call, and there are no tools");
    }

    #[test]
    fn arguments_of_earlier_calls_are_objects() {
        for (arguments, want) in [
            (json!("{\"x\": 1}"), json!({"x": 1})),
            (json!({"x": 1}), json!({"x": 1})),
            (json!(""), json!({})),
            (json!(null), json!({})),
            (json!("{"), json!("{")),
        ] {
            let call = json!({"id": "1", "type": "function", "index": 0, "extra_content": {"a": 1},
                "function": {"name": "f", "arguments": arguments, "parsed_arguments": null}});
            let function = json!({"name": "f", "arguments": want});
            let want = json!({"id": "1", "type": "function", "function": function});
            assert_eq!(take_calls(vec![call], "messages").ok(), Some(vec![want]));
        }
        assert!(take_calls(vec![json!({"function": {}})], "messages").is_err());
    }
}
