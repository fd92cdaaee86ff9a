//! `/v1/responses`.

use crate::client::{Client, QUESTION, chat};
use serde_json::{Value, json};

pub fn a_response_is_the_chat_in_another_form(client: &Client) {
    let of_chat = client.ok("/v1/chat/completions", &chat());
    let text = &of_chat["choices"][0]["message"]["content"];
    let body = json!({ "input": QUESTION, "temperature": 0, "max_output_tokens": 24 });
    let response = client.ok("/v1/responses", &body);
    assert_eq!(
        (&response["object"], &response["status"]),
        (&json!("response"), &json!("completed"))
    );
    let item = &response["output"][0];
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(item["content"][0]["text"], *text);
    for (name, of_chats) in [
        ("input_tokens", "prompt_tokens"),
        ("output_tokens", "completion_tokens"),
        ("total_tokens", "total_tokens"),
    ] {
        assert_eq!(response["usage"][name], of_chat["usage"][of_chats], "{name}");
    }
    let events: Vec<Value> = client
        .stream("/v1/responses", &body)
        .map(|event| serde_json::from_str(&event).unwrap())
        .collect();
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    assert_eq!(
        kinds,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    assert!((0..events.len()).all(|index| events[index]["sequence_number"] == index));
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, *text);
    let last = &events.last().unwrap()["response"];
    assert_eq!((&last["usage"], &last["status"]), (&response["usage"], &response["status"]));
    assert_eq!(last["output"][0]["content"], item["content"]);
    assert_eq!(events[0]["response"]["id"], last["id"]);

    // An answer that is cut, and one to a conversation with instructions, of a form.
    let cut = json!({ "input": QUESTION, "temperature": 0, "max_output_tokens": 2 });
    let cut_events: Vec<String> = client.stream("/v1/responses", &cut).collect();
    let last: Value = serde_json::from_str(cut_events.last().unwrap()).unwrap();
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["incomplete_details"]["reason"], "max_output_tokens");
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                        "required": ["city"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "name": "city", "schema": schema, "strict": true});
    let answer = client.ok(
        "/v1/responses",
        &json!({ "instructions": "Answer in JSON.", "text": {"format": format}, "top_p": 0.9,
                 "input": [{"role": "user", "content": QUESTION}, item, {"role": "user", "content": "And Italy?"}] }),
    );
    let json: Value =
        serde_json::from_str(answer["output"][0]["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(json["city"] == "Paris" || json["city"] == "Rome", "{json}");
    assert_eq!(
        (&answer["instructions"], &answer["top_p"]),
        (&json!("Answer in JSON."), &json!(0.9))
    );
    assert_eq!(answer["text"]["format"], format);
    let refused =
        client.post("/v1/responses", &json!({"input": "x", "previous_response_id": "resp_1"}));
    assert_eq!(
        (refused.status, &*refused.message()),
        (400, "previous_response_id: this is not supported yet")
    );
}
