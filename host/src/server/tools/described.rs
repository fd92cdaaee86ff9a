//! Tools for a chat template that knows none: a system message describes them, in the words of Hermes' templates.

use crate::text::{ChatTemplate, Content, Message};
use serde_json::{Value, json};

const BEFORE: &str = "\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>";
const AFTER: &str = "\
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{\"name\": <function-name>, \"arguments\": <args-json-object>}
</tool_call>";

/// Messages of the roles that every template knows, after a description of `tools`. The system text that the template
/// has of its own stays.
pub(super) fn messages(
    template: &ChatTemplate,
    messages: &[Message],
    tools: &[Value],
) -> Vec<Message> {
    let tools: String = tools.iter().map(|tool| format!("{tool}\n")).collect();
    let description = format!("{BEFORE}\n{tools}{AFTER}");
    let mut messages: Vec<Message> = messages.iter().map(plain).collect();
    match messages.first_mut() {
        Some(first) if first.role == "system" => {
            first.content = Content::Text(format!("{}\n\n{description}", first.content.text()));
        }
        _ => {
            let own = own_system_text(template).map(|own| format!("{own}\n\n"));
            let description = own.unwrap_or_default() + &description;
            messages.insert(0, Message::new("system", description));
        }
    }
    messages
}

/// What a template has in place of a system message where there is none.
fn own_system_text(template: &ChatTemplate) -> Option<String> {
    const SYSTEM: &str = "SystemOfProbe";
    let user = Message::new("user", "QuestionOfProbe");
    let with = template.render(&[Message::new("system", SYSTEM), user.clone()], true).ok()?;
    let without = template.render(&[user], true).ok()?;
    let (before, after) = with.split_once(SYSTEM)?;
    let own = without.strip_prefix(before)?.strip_suffix(after)?.trim();
    (!own.is_empty()).then(|| own.to_owned())
}

/// A message whose calls, or whose result of a call, are part of its text.
fn plain(message: &Message) -> Message {
    if message.role == "tool" {
        let result = format!("<tool_response>\n{}\n</tool_response>", message.content.text());
        return Message::new("user", result);
    }
    let calls = message.fields.get("tool_calls").and_then(Value::as_array);
    let texts = calls.into_iter().flatten().map(|call| {
        let Value::Object(function) = &call["function"] else { return String::new() };
        let call = json!({"name": function["name"], "arguments": function["arguments"]});
        format!("<tool_call>\n{call}\n</tool_call>")
    });
    let content = message.content.text();
    let content = (!content.is_empty()).then(|| content.into_owned());
    let content: Vec<String> = content.into_iter().chain(texts).collect();
    Message::new(message.role.clone(), content.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;

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
        let model = Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it");
        let template = model.text().unwrap().chat_template.as_ref().unwrap();
        let got = messages(template, &asked, &[json!({"type": "function"})]);
        let [system, user, assistant, tool] = &got[..] else { panic!("{got:?}") };
        assert_eq!((&*system.role, &*user.content.text()), ("system", "Hi"));
        assert!(
            system.content.text().contains("<tools>\n{\"type\":\"function\"}\n</tools>"),
            "{system:?}"
        );
        let call = "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n</tool_call>";
        assert_eq!(assistant.content.text(), format!("I look.\n{call}"));
        assert_eq!(*tool, Message::new("user", "<tool_response>\n42\n</tool_response>"));
        let own = messages(template, &[Message::new("system", "Be brief.")], &[]);
        assert!(
            own.len() == 1 && own[0].content.text().starts_with("Be brief.\n\n# Tools"),
            "{own:?}"
        );
    }
}
