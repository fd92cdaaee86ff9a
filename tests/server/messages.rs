//! `/v1/messages` and `/v1/messages/count_tokens`.

use crate::client::{Client, QUESTION, chat};
use serde_json::{Value, json};

fn message() -> Value {
    json!({ "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0,
            "max_tokens": 24 })
}

fn events(client: &Client, body: &Value) -> Vec<Value> {
    let events = client.stream("/v1/messages?beta=true", body);
    events.map(|event| serde_json::from_str(&event).unwrap()).collect()
}

pub fn a_message_is_the_chat_in_another_form(client: &Client) {
    let of_chat = client.ok("/v1/chat/completions", &chat());
    let text = &of_chat["choices"][0]["message"]["content"];
    let answer = client.ok("/v1/messages", &message());
    assert_eq!(answer["content"], json!([{ "type": "text", "text": text }]));
    assert_eq!(
        (&answer["type"], &answer["role"], &answer["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("end_turn"))
    );
    let usage = &answer["usage"];
    let input = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(json!(input), of_chat["usage"]["prompt_tokens"]);
    assert_eq!(usage["output_tokens"], of_chat["usage"]["completion_tokens"]);
    let mut uncounted = message();
    uncounted.as_object_mut().unwrap().remove("max_tokens");
    let counted = client.ok("/v1/messages/count_tokens", &uncounted);
    assert_eq!(counted, json!({ "input_tokens": input }));

    let events = events(client, &message());
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let deltas: String =
        events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(deltas, *text);
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"], json!({ "stop_reason": "end_turn", "stop_sequence": null }));
    assert_eq!(end["usage"]["output_tokens"], usage["output_tokens"]);

    let mut stopped = message();
    stopped["stop_sequences"] = json!(["nowhere", "France", "of"]);
    let answer = client.ok("/v1/messages", &stopped);
    assert_eq!(
        (&answer["stop_reason"], &answer["stop_sequence"]),
        (&json!("stop_sequence"), &json!("of"))
    );
    let said = answer["content"][0]["text"].as_str().unwrap();
    assert_eq!(text.as_str().unwrap().split_once("of").unwrap().0, said);
    let mut cut = message();
    cut["max_tokens"] = json!(2);
    assert_eq!(client.ok("/v1/messages", &cut)["stop_reason"], "max_tokens");
}

pub fn a_message_calls_tools(client: &Client) {
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                        "required": ["city"]});
    let tool = json!({"name": "weather", "description": "Weather.", "input_schema": schema});
    // The first of both in all forms.
    for (choice, has_more) in [
        (json!({"type": "any", "disable_parallel_tool_use": true}), true),
        (json!({"type": "tool", "name": "weather"}), false),
    ] {
        let mut body = message();
        body["max_tokens"] = json!(60);
        body["tools"] = json!([tool]);
        body["tool_choice"] = choice;
        let answer = client.ok("/v1/messages", &body);
        let [call] = answer["content"].as_array().unwrap().as_slice() else { panic!("{answer}") };
        assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("weather")));
        assert!(call["input"]["city"] == "Paris" || call["input"]["city"] == "Rome", "{answer}");
        assert_eq!(answer["stop_reason"], "tool_use");
        if !has_more {
            continue;
        }
        let events = events(client, &body);
        let kinds = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        assert_eq!((kinds("content_block_start"), kinds("content_block_stop")), (1, 1));
        let json: String =
            events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), call["input"]);

        // An answer is history again.
        let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": "Rain."});
        body["messages"] = json!([
            { "role": "user", "content": QUESTION },
            { "role": "assistant", "content": answer["content"] },
            { "role": "user", "content": [result, { "type": "text", "text": "So?" }] }]);
        body["tool_choice"] = json!({ "type": "none" });
        body["max_tokens"] = json!(4);
        assert_eq!(client.ok("/v1/messages", &body)["role"], "assistant");
    }
}

pub fn refusals_have_anthropics_form(client: &Client) {
    let refused = |body: &Value| {
        let reply = client.post("/v1/messages", body);
        let error = reply.json();
        assert_eq!(error["type"], "error", "{error}");
        (reply.status, error["error"]["type"].as_str().unwrap().to_owned())
    };
    let mut other = message();
    other["model"] = json!("none");
    assert_eq!(refused(&other), (404, "not_found_error".to_owned()));
    assert_eq!(refused(&json!({})), (400, "invalid_request_error".to_owned()));
    for path in ["/v1/messages", "/v1/messages/nothing"] {
        let reply = client.get(path);
        assert_eq!(reply.json()["type"], "error", "{path}: {}", reply.text);
    }
}
