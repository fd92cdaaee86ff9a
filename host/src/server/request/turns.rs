//! A conversation in the making, of the pieces that Anthropic's and OpenAI's newer API send: blocks and items.

use crate::text::{Content, Message};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// What stands between two messages that become one.
const BETWEEN: &str = "\n\n";

/// Messages as chat templates know them. Where a template may want turns by turns, pieces of one turn become one message:
/// system messages at the beginning, messages of the user after each other, and what the assistant thought, said and called.
#[derive(Debug, Default)]
pub(super) struct Turns {
    turns: Vec<Turn>,
    /// The functions of the calls so far, by the calls' ids.
    names: HashMap<String, String>,
}

#[derive(Debug, Default)]
struct Turn {
    role: &'static str,
    text: String,
    reasoning: String,
    calls: Vec<Value>,
    /// Further fields, of a tool's turn.
    fields: Map<String, Value>,
}

impl Turns {
    /// Adds what the system says.
    pub fn system(&mut self, text: &str) {
        match self.turns.as_mut_slice() {
            [only] if only.role == "system" => append(&mut only.text, text),
            _ => append(&mut self.begin("system").text, text),
        }
    }

    /// Adds what the user says.
    pub fn user(&mut self, text: &str) {
        append(&mut self.turn("user").text, text);
    }

    /// Adds what the assistant thought; templates know it as `reasoning_content`.
    pub fn reasoning(&mut self, text: &str) {
        append(&mut self.turn("assistant").reasoning, text);
    }

    /// Adds what the assistant said.
    pub fn text(&mut self, text: &str) {
        append(&mut self.turn("assistant").text, text);
    }

    /// Adds a call as [`take_calls`](crate::server::tools::take_calls) returns it.
    pub fn call(&mut self, call: Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        self.names.insert(text(&call["id"]), text(&call["function"]["name"]));
        self.turn("assistant").calls.push(call);
    }

    /// Adds what the call `id` gave.
    pub fn result(&mut self, id: String, text: &str) {
        let name = self.names.get(&id).cloned();
        let turn = self.begin("tool");
        turn.text.push_str(text);
        turn.fields.extend(name.map(|name| ("name".to_owned(), name.into())));
        turn.fields.insert("tool_call_id".to_owned(), id.into());
    }

    /// Whether the assistant has said the last of it.
    pub fn is_assistants(&self) -> bool {
        self.turns.last().is_some_and(|last| last.role == "assistant")
    }

    /// All of them.
    pub fn finish(self) -> Vec<Message> {
        self.turns.into_iter().map(Turn::finish).collect()
    }

    /// The turn of `role`, which goes on or begins.
    fn turn(&mut self, role: &'static str) -> &mut Turn {
        match self.turns.last() {
            Some(last) if last.role == role => self.turns.last_mut().expect("there is one"),
            _ => self.begin(role),
        }
    }

    fn begin(&mut self, role: &'static str) -> &mut Turn {
        self.turns.push(Turn { role, ..Turn::default() });
        self.turns.last_mut().expect("it was added")
    }
}

impl Turn {
    fn finish(self) -> Message {
        let Turn { role, text, reasoning, calls, mut fields } = self;
        let content = match text.is_empty() && !calls.is_empty() {
            true => Content::Null,
            false => Content::Text(text),
        };
        if !reasoning.is_empty() {
            fields.insert("reasoning_content".to_owned(), reasoning.into());
        }
        if !calls.is_empty() {
            fields.insert("tool_calls".to_owned(), calls.into());
        }
        Message { content, fields, ..Message::new(role, "") }
    }
}

fn append(whole: &mut String, text: &str) {
    if !whole.is_empty() && !text.is_empty() {
        whole.push_str(BETWEEN);
    }
    whole.push_str(text);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// Roles and texts.
    pub fn said(messages: &[Message]) -> Vec<(&str, &str)> {
        messages.iter().map(|message| (&*message.role, text(message))).collect()
    }

    fn text(message: &Message) -> &str {
        match &message.content {
            Content::Null => "",
            Content::Text(text) => text,
            Content::Parts(parts) => panic!("{parts:?}"),
        }
    }

    #[test]
    fn pieces_of_one_turn_are_one_message() {
        let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": {}}});
        let mut turns = Turns::default();
        turns.system("a");
        turns.system("b");
        turns.user("c");
        turns.user("d");
        turns.reasoning("e");
        turns.reasoning("f");
        turns.text("g");
        turns.call(call("1"));
        turns.call(call("2"));
        assert!(turns.is_assistants());
        turns.result("1".into(), "h");
        turns.result("2".into(), "i");
        turns.user("j");
        turns.system("k");
        let messages = turns.finish();
        assert_eq!(
            said(&messages),
            [
                ("system", "a\n\nb"),
                ("user", "c\n\nd"),
                ("assistant", "g"),
                ("tool", "h"),
                ("tool", "i"),
                ("user", "j"),
                ("system", "k")
            ]
        );
        let mut only_called = Turns::default();
        only_called.call(call("1"));
        assert_eq!(only_called.finish()[0].content, Content::Null);
        assert_eq!(messages[2].fields["reasoning_content"], "e\n\nf");
        assert_eq!(messages[2].fields["tool_calls"], json!([call("1"), call("2")]));
        assert_eq!(
            (&messages[4].fields["tool_call_id"], &messages[4].fields["name"]),
            (&json!("2"), &json!("f"))
        );
    }
}
