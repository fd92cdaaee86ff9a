//! Calls as the model writes them: for templates that leave the calls of earlier answers out, and for examples.

use super::mark::{Mark, Part};
use super::style::{Arguments, Style};
use super::{AnswerFormat, Calls, known};
use crate::text::template::{dumps, repr};
use minijinja::value::Serde;
use serde_json::{Map, Value, json};

/// A call to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub arguments: &'a Value,
}

impl<'a> Call<'a> {
    /// A call as chat templates know it.
    pub fn from_field(call: &'a Value) -> Self {
        let function = &call["function"];
        let text = |value: &'a Value| value.as_str().unwrap_or_default();
        let arguments = &function["arguments"];
        Call { id: text(&call["id"]), name: text(&function["name"]), arguments }
    }
}

impl AnswerFormat {
    /// The text of an answer that is these calls; `None` if it is not known how the model writes them.
    pub(crate) fn written(&self, calls: &[Call<'_>]) -> Option<String> {
        self.calls.as_ref().map(|format| format.written(calls))
    }

    /// A call of no function in particular; `None` as for [`AnswerFormat::written`].
    pub(in crate::text) fn example(&self) -> Option<String> {
        const OBJECT: &str = "<args-json-object>";
        let format = self.calls.as_ref()?;
        let call = Call { id: "<id>", name: "<function-name>", arguments: &Value::Null };
        let hole = Hole { call: &call, index: 0, key: "<parameter-name>", is_string: true };
        let fill = |mark: &Mark| hole.fill(mark);
        let call = match &format.style {
            Style::Object { before_name, before_arguments, after, .. } => {
                let [before, between, after] = [before_name, before_arguments, after].map(fill);
                format!("{before}{}{between}{OBJECT}{after}", call.name)
            }
            Style::Named { middle, arguments } => {
                let arguments = match arguments {
                    Arguments::Json | Arguments::Bare { .. } => OBJECT.to_owned(),
                    Arguments::Python => format!("{}=<value>)", hole.key),
                    Arguments::Fields(fields) => {
                        let [open, between, close] =
                            [&fields.open, &fields.middle, &fields.close].map(fill);
                        format!("{open}{}{between}<value>{close}", hole.key)
                    }
                };
                format!("{}{}{arguments}", call.name, fill(middle))
            }
        };
        let call = fill(&format.call.0) + &call + &fill(&format.call.1);
        let call = if format.is_list { format!("[{call}]") } else { call };
        Some(fill(&format.section.0) + &call + &fill(&format.section.1))
    }

    /// Whether calls are in Hermes' format.
    pub(in crate::text) fn is_hermes(&self) -> bool {
        let hermes = known::hermes();
        self.calls
            .as_ref()
            .is_some_and(|calls| calls.call == hermes.call && calls.style == hermes.style)
    }

    /// White space between text and calls.
    pub(in crate::text) fn gap(&self) -> &str {
        self.calls.as_ref().map_or("", |calls| &calls.gap)
    }

    /// Whether what the template renders has no calls of earlier answers.
    pub(in crate::text) fn lacks_calls(&self) -> bool {
        !self.is_harmony && self.calls.as_ref().is_none_or(|calls| !calls.is_rendered)
    }

    /// This format with `change` made of each text that is written around calls.
    pub(in crate::text) fn with_texts(&self, change: &mut impl FnMut(&str) -> String) -> Self {
        if self.tells_of_tools() && !self.lacks_calls() {
            return self.clone();
        }
        let mut format = self.or_hermes();
        for mark in format.calls.iter_mut().flat_map(Calls::marks_mut) {
            for part in &mut mark.0 {
                if let Part::Text(text) = part {
                    *text = change(text);
                }
            }
        }
        format
    }
}

impl Calls {
    fn written(&self, calls: &[Call<'_>]) -> String {
        let calls = calls.iter().enumerate().map(|(index, call)| {
            let hole = Hole { call, index, key: "", is_string: true };
            hole.fill(&self.call.0) + &self.style.written(&hole) + &hole.fill(&self.call.1)
        });
        let calls = calls.collect::<Vec<_>>().join(&self.separator);
        let calls = if self.is_list { format!("[{calls}]") } else { calls };
        let text = |mark: &Mark| mark.0.iter().map(literal).collect::<String>();
        text(&self.section.0) + &calls + &text(&self.section.1)
    }

    fn marks_mut(&mut self) -> Vec<&mut Mark> {
        let mut marks =
            vec![&mut self.section.0, &mut self.section.1, &mut self.call.0, &mut self.call.1];
        match &mut self.style {
            Style::Object { before_name, before_arguments, after, .. } => {
                marks.extend([before_name, before_arguments, after]);
            }
            Style::Named { middle, arguments: Arguments::Fields(fields) } => {
                marks.extend([middle, &mut fields.open, &mut fields.middle, &mut fields.close]);
            }
            Style::Named { middle, .. } => marks.push(middle),
        }
        marks
    }
}

fn literal(part: &Part) -> &str {
    match part {
        Part::Text(text) => text,
        _ => "",
    }
}

/// What the holes of a mark are filled with.
#[derive(Clone, Copy)]
struct Hole<'a> {
    call: &'a Call<'a>,
    index: usize,
    key: &'a str,
    is_string: bool,
}

impl Hole<'_> {
    fn fill(&self, mark: &Mark) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Number(first) => (first + self.index).to_string(),
            Part::Id => self.call.id.to_owned(),
            Part::Name => self.call.name.to_owned(),
            Part::Key => self.key.to_owned(),
            Part::Kind(string) => match (self.is_string, &**string) {
                (true, string) => string.to_owned(),
                (false, "true") => "false".to_owned(),
                (false, _) => "object".to_owned(),
            },
        };
        mark.0.iter().map(part).collect()
    }
}

impl Style {
    fn written(&self, hole: &Hole<'_>) -> String {
        let Call { name, arguments, .. } = *hole.call;
        let (middle, arguments_style) = match self {
            Style::Object { before_name, before_arguments, after, .. } => {
                let [before, between, after] =
                    [before_name, before_arguments, after].map(|mark| hole.fill(mark));
                return format!("{before}{}{between}{}{after}", json!(name), to_json(arguments));
            }
            Style::Named { middle, arguments } => (hole.fill(middle), arguments),
        };
        let nothing = Map::new();
        let members = arguments.as_object().unwrap_or(&nothing);
        let list = |separator: &str, member: &dyn Fn((&String, &Value)) -> String| {
            members.iter().map(member).collect::<Vec<_>>().join(separator)
        };
        let arguments = match arguments_style {
            Arguments::Json => to_json(arguments),
            Arguments::Python => {
                let member = |(key, value): (&String, &Value)| format!("{key}={}", python(value));
                list(", ", &member) + ")"
            }
            Arguments::Bare { quote } => {
                let quote = quote.as_deref().unwrap_or("\"");
                format!("{{{}}}", bare_members(members, quote))
            }
            Arguments::Fields(fields) => list("", &|(key, value)| {
                let hole = Hole { key, is_string: value.is_string(), ..*hole };
                let [open, middle, close] =
                    [&fields.open, &fields.middle, &fields.close].map(|mark| hole.fill(mark));
                let value = value.as_str().map_or_else(|| to_json(value), str::to_owned);
                format!("{open}{key}{middle}{value}{close}")
            }),
        };
        format!("{name}{middle}{arguments}")
    }
}

/// As Python's `json.dumps` has it.
fn to_json(value: &Value) -> String {
    dumps(&minijinja::Value::from(Serde(value))).unwrap_or_else(|_| value.to_string())
}

/// Python's literal of a value, with strings and objects as JSON.
fn python(value: &Value) -> String {
    match value {
        Value::String(_) | Value::Object(_) => to_json(value),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", "))
        }
        _ => repr(&minijinja::Value::from(Serde(value))).unwrap_or_else(|_| value.to_string()),
    }
}

fn bare_members(members: &Map<String, Value>, quote: &str) -> String {
    let members = members.iter().map(|(key, value)| format!("{key}:{}", bare(value, quote)));
    members.collect::<Vec<_>>().join(",")
}

/// A value whose keys have no quotes, and whose strings have `quote`.
fn bare(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => {
            let items = items.iter().map(|item| bare(item, quote));
            format!("[{}]", items.collect::<Vec<_>>().join(","))
        }
        Value::Object(members) => format!("{{{}}}", bare_members(members, quote)),
        _ => to_json(value),
    }
}
