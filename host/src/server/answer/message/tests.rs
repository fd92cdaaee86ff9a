use super::super::tests::{asked, call, reasoning, streamed, text, whole};
use super::*;
use crate::server::choice::PartKind::{Failed, Finished, Started};

fn writer() -> MessageObject {
    MessageObject::new(asked(10), vec!["###".to_owned(), "END".to_owned()])
}

fn parts(finish: Finish) -> Vec<PartKind> {
    let mut parts = vec![Started { cached_tokens: 4 }, reasoning("h"), reasoning("m"), text("a")];
    parts.extend([text(""), text("b")]);
    parts.extend(call(0, "f", ["{\"x\":", " 1}"]));
    parts.extend(call(1, "g", ["{", "}"]));
    parts.push(Finished(finish));
    parts
}

/// The events of Anthropic's documentation, as its client reads them.
#[test]
fn events_come_in_anthropics_order() {
    let events = streamed(writer(), parts(Finish::ToolCalls));
    assert!(events.iter().all(|(name, data)| data["type"] == **name));
    let short = |(name, data): &(String, Value)| match data["index"].as_u64() {
        Some(index) => format!("{name} {index} {}", data["delta"]["type"].as_str().unwrap_or("")),
        None => name.clone(),
    };
    let names: Vec<String> = events.iter().map(short).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "content_block_start 0 ",
            "content_block_delta 0 thinking_delta",
            "content_block_delta 0 thinking_delta",
            "content_block_delta 0 signature_delta",
            "content_block_stop 0 ",
            "content_block_start 1 ",
            "content_block_delta 1 text_delta",
            "content_block_delta 1 text_delta",
            "content_block_stop 1 ",
            "content_block_start 2 ",
            "content_block_delta 2 input_json_delta",
            "content_block_delta 2 input_json_delta",
            "content_block_stop 2 ",
            "content_block_start 3 ",
            "content_block_delta 3 input_json_delta",
            "content_block_delta 3 input_json_delta",
            "content_block_stop 3 ",
            "message_delta",
            "message_stop",
        ]
    );
    let usage = json!({"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 0});
    let message = json!({
        "id": "id_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage});
    assert_eq!(events[0].1["message"], message);
    let begin = json!({"type": "tool_use", "id": "call_0", "name": "f", "input": {}});
    assert_eq!(events[11].1["content_block"], begin);
    let last = &events[19].1;
    assert_eq!(last["delta"], json!({"stop_reason": "tool_use", "stop_sequence": null}));
    assert_eq!(last["usage"]["output_tokens"], 5);
}

#[test]
fn a_message_is_its_blocks() {
    let message = whole(writer(), parts(Finish::ToolCalls));
    assert_eq!(
        message["content"],
        json!([
            {"type": "thinking", "thinking": "hm", "signature": "halfwarp"},
            {"type": "text", "text": "ab"},
            {"type": "tool_use", "id": "call_0", "name": "f", "input": {"x": 1}},
            {"type": "tool_use", "id": "call_1", "name": "g", "input": {}}])
    );
    assert_eq!(message["stop_reason"], "tool_use");
    let usage = json!({"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 5});
    assert_eq!(message["usage"], usage);
}

#[test]
fn a_message_says_why_it_ended() {
    let end = |finish| {
        let message =
            whole(writer(), vec![Started { cached_tokens: 0 }, text("a"), Finished(finish)]);
        [message["stop_reason"].clone(), message["stop_sequence"].clone()]
    };
    assert_eq!(end(Finish::Stop), [json!("end_turn"), Value::Null]);
    assert_eq!(end(Finish::Length), [json!("max_tokens"), Value::Null]);
    assert_eq!(end(Finish::StopString(1)), [json!("stop_sequence"), json!("END")]);
    // Where a request names the tool, too.
    let named = whole(writer(), parts(Finish::Stop));
    assert_eq!(named["stop_reason"], "tool_use");
}

#[test]
fn a_failure_is_an_event() {
    let error = || Failed(ApiError::unavailable("no"));
    let wanted = json!({"type": "error", "error": {"type": "overloaded_error", "message": "no"}});
    let events = streamed(writer(), vec![Started { cached_tokens: 0 }, text("a"), error()]);
    assert_eq!(events.last().unwrap(), &("error".to_owned(), wanted));
    assert_eq!(streamed(writer(), vec![error()]).len(), 1);
}
