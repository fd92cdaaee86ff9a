//! Tools and calls for a template that has no place for them.
//!
//! A template that tells the model of no tools gets them in words, which stand after the system text: that of the
//! conversation, or the template's own. One that leaves the calls of earlier answers out gets them in the text of the
//! answer, as the model writes them.

use serde_json::Value as Json;

use super::{ChatTemplate, Content, Message, RenderOptions};
use crate::text::answer::{AnswerFormat, Call};

const BEFORE: &str = "\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>";
const AFTER: &str = "</tools>\n\nFor each function call, return ";
const AS_HERMES: &str = "\
a json object with function name and arguments within <tool_call></tool_call> XML tags:";
const AS_OTHERS: &str = "its name and its arguments in this form:";

/// A conversation as a template takes it.
#[derive(Debug)]
pub(super) struct Told {
    pub messages: Vec<Message>,
    /// What is put into the rendered text: a text of the template's own, and what comes after it.
    pub after: Option<(String, String)>,
    /// Whether the template gets no tools.
    pub is_described: bool,
}

impl ChatTemplate {
    /// What the template is given in place of `messages`; `None` if it takes them as they are.
    pub(super) fn told(&self, messages: &[Message], options: &RenderOptions<'_>) -> Option<Told> {
        let has_calls = messages.iter().any(|message| calls(message).is_some());
        if !options.fills_in_tools || options.tools.is_empty() && !has_calls {
            return None;
        }
        let format = self.answer_format();
        let is_described = !options.tools.is_empty() && !format.tells_of_tools();
        let writes_calls = has_calls && format.lacks_calls();
        let needs_null = || self.select(true, false).is_ok_and(|it| it.facts(self).needs_null);
        let needs_null = has_calls && !writes_calls && needs_null();
        if !is_described && !writes_calls && !needs_null {
            return None;
        }
        let format = format.or_hermes();
        let told = |message: &Message| match calls(message) {
            _ if writes_calls => written(message, &format),
            Some(_) if needs_null && message.content.text().is_empty() => {
                Message { content: Content::Null, ..message.clone() }
            }
            _ => message.clone(),
        };
        let messages = messages.iter().map(told).collect();
        let mut told = Told { messages, after: None, is_described };
        if is_described {
            self.describe(&mut told, &description(&format, options.tools), options);
        }
        Some(told)
    }

    /// Puts `words` after the system text.
    fn describe(&self, told: &mut Told, words: &str, options: &RenderOptions<'_>) {
        let messages = &mut told.messages;
        let before =
            |text: &str| format!("{text}{}{words}", if text.is_empty() { "" } else { "\n\n" });
        if let Some(first) = messages.first_mut().filter(|first| first.role == "system") {
            first.content = Content::Text(before(&first.content.text()));
            return;
        }
        match self.own_system_text(options) {
            Some(own) if own.is_empty() => messages.insert(0, Message::new("system", words)),
            Some(own) => told.after = Some((own, format!("\n\n{words}"))),
            // There is no place for a system message.
            None => match messages.iter_mut().find(|message| message.role == "user") {
                Some(user) => {
                    user.content = Content::Text(format!("{words}\n\n{}", user.content.text()));
                }
                None => messages.insert(0, Message::new("user", words)),
            },
        }
    }

    /// What the template has in place of a system message where there is none; `None` if it takes no such message.
    fn own_system_text(&self, options: &RenderOptions<'_>) -> Option<String> {
        const SYSTEM: &str = "SystemOfProbe";
        let options = RenderOptions { tools: &[], continue_final_message: false, ..*options };
        let user = Message::new("user", "QuestionOfProbe");
        let with = [Message::new("system", SYSTEM), user.clone()];
        let with = self.render_once(&with, &options).ok()?;
        let (before, after) = with.split_once(SYSTEM)?;
        let without = self.render_once(&[user], &options).ok()?;
        let own = without.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        Some(own.unwrap_or_default().trim().to_owned())
    }
}

/// The calls of an answer.
fn calls(message: &Message) -> Option<&Vec<Json>> {
    message.fields.get("tool_calls")?.as_array().filter(|calls| !calls.is_empty())
}

/// What a model is told of tools that its template does not tell it of.
fn description(format: &AnswerFormat, tools: &[Json]) -> String {
    let tools: String = tools.iter().map(|tool| format!("{tool}\n")).collect();
    let form = if format.is_hermes() { AS_HERMES } else { AS_OTHERS };
    format!("{BEFORE}\n{tools}{AFTER}{form}\n{}", format.example().unwrap_or_default())
}

/// A message whose calls are part of its text. Its result is a turn of the user, where the template knows no tools.
fn written(message: &Message, format: &AnswerFormat) -> Message {
    if message.role == "tool" && !format.knows_tools() {
        let result = format!("<tool_response>\n{}\n</tool_response>", message.content.text());
        return Message::new("user", result);
    }
    let Some(calls) = calls(message) else { return message.clone() };
    let calls: Vec<Call<'_>> = calls.iter().map(Call::from_field).collect();
    let text = message.content.text();
    let between = if text.is_empty() { "" } else { format.gap() };
    let calls = format.written(&calls).unwrap_or_default();
    let mut message =
        Message { content: Content::Text(format!("{text}{between}{calls}")), ..message.clone() };
    message.fields.remove("tool_calls");
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> [Json; 1] {
        [json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}})]
    }

    fn render(source: &str, messages: &[Message], tools: &[Json]) -> String {
        let options = RenderOptions { tools, fills_in_tools: true, ..RenderOptions::default() };
        ChatTemplate::from_source(source).render_with(messages, &options).unwrap()
    }

    fn words() -> String {
        let tools = "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}";
        format!(
            "{BEFORE}\n{tools}\n{AFTER}{AS_HERMES}\n<tool_call>\n{{\"name\": <function-name>, \
             \"arguments\": <args-json-object>}}\n</tool_call>"
        )
    }

    /// Messages with their roles, and a text of its own where there is no system message.
    const OWN: &str = "{% if messages[0].role != 'system' %}[system]I am X.</x>{% endif %}\
        {% for m in messages %}[{{ m.role }}]\
        {{ m.content.replace('/x', '') if m.role == 'system' else m.content }}{% endfor %}";

    #[test]
    fn tools_are_described_after_the_system_text() {
        let words = words();
        let user = Message::new("user", "Hi");
        let system = Message::new("system", "Be brief.");
        // The template changes a system message, but not its own.
        let got = render(OWN, std::slice::from_ref(&user), &tools());
        assert_eq!(got, format!("[system]I am X.</x>\n\n{words}[user]Hi"));
        let got = render(OWN, &[system, user.clone()], &tools());
        assert_eq!(got, format!("[system]Be brief.\n\n{}[user]Hi", words.replace("/x", "")));
        let plain = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
        let got = render(plain, std::slice::from_ref(&user), &tools());
        assert_eq!(got, format!("[system]{words}[user]Hi"));
        let refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}\
            {% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
        let got = render(refuses, &[user], &tools());
        assert_eq!(got, format!("[user]{words}\n\nHi"));
    }

    /// Templates that give no prompt of a call and its result, and why.
    const REFUSED: [(&str, &str); 1] =
        [("fireworks-ai-llama-3-firefunction-v2", "it has variables of its own")];

    #[test]
    fn every_public_template_has_tools_calls_and_results() {
        let folder =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/text/templates/public");
        let mut wrong = String::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            if path.extension().is_none_or(|extension| extension != "jinja") {
                continue;
            }
            let template = ChatTemplate::from_source(&std::fs::read_to_string(&path).unwrap());
            let format = template.answer_format();
            let arguments = json!({"city": "Paris of old"});
            let arguments = match format.takes_arguments_as_text() {
                true => arguments.to_string().into(),
                false => arguments,
            };
            let call = json!([{"id": "call00001", "type": "function",
                "function": {"name": "f", "arguments": arguments}}]);
            let call = [("tool_calls".to_owned(), call)].into_iter().collect();
            let result = json!({"tool_call_id": "call00001", "name": "f"});
            let result = result.as_object().unwrap().clone();
            let asked = [
                Message::new("user", "Weather?"),
                Message { fields: call, ..Message::new("assistant", "") },
                Message { fields: result, ..Message::new("tool", "20 degrees") },
            ];
            let tools = [json!({"type": "function", "function": {"name": "f",
                "description": "What it does", "parameters": {"type": "object",
                "properties": {"city": {"type": "string", "description": "c"}}}}})];
            let options = RenderOptions {
                tools: &tools,
                fills_in_tools: true,
                add_generation_prompt: true,
                ..RenderOptions::default()
            };
            let rendered = template.render_with(&asked, &options);
            let words = ["What it does", "Weather?", "Paris of old", "20 degrees"];
            let is_whole =
                rendered.as_ref().is_ok_and(|text| words.iter().all(|word| text.contains(word)));
            if is_whole == REFUSED.iter().any(|(refused, _)| *refused == name) {
                wrong += &format!("{name}: {rendered:?}\n");
            }
            if let Ok(text) = &rendered
                && !format.tells_of_tools()
                && let Some(own) = template.own_system_text(&options)
            {
                let words = description(&format.or_hermes(), &tools);
                let own = if own.is_empty() { words } else { format!("{own}\n\n{words}") };
                assert!(text.contains(&own), "{name}: {text}");
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
    }

    #[test]
    fn calls_and_their_results_are_texts() {
        let call = json!([{"id": "1", "type": "function",
            "function": {"name": "f", "arguments": {"x": 1}}}]);
        let fields = [("tool_calls".to_owned(), call)].into_iter().collect();
        let asked = [
            Message::new("user", "Hi"),
            Message { fields, ..Message::new("assistant", "I look.") },
            Message::new("tool", "42"),
        ];
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
        let want = format!(
            "[user]Hi[assistant]I look.\n{call}[user]<tool_response>\n42\n</tool_response>"
        );
        let got = render(OWN, &asked, &[]);
        assert_eq!(got, format!("[system]I am X.</x>{want}"));
        // A template that tells of tools, and renders no calls, keeps the results.
        let lfm = "{% if tools %}List of tools: [{{ tools|tojson }}]{% endif %}\
            {% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
        let got = render(lfm, &asked, &[]);
        let call = "<|tool_call_start|>[f(x=1)]<|tool_call_end|>";
        assert_eq!(got, format!("[user]Hi[assistant]I look.{call}[tool]42"));
    }
}
