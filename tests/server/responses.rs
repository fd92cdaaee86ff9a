//! `/v1/responses`.

use crate::client::{Client, QUESTION, agent, chat, reply};
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
    assert_eq!(refused.status, 404);
    assert_eq!(refused.json()["error"]["code"], "previous_response_not_found");
}

pub fn a_response_calls_tools_and_goes_on(client: &Client) {
    let schema = json!({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                        "required": ["city"]});
    let tool = json!({"type": "function", "name": "weather", "parameters": schema});
    let body = json!({ "input": QUESTION, "temperature": 0, "max_output_tokens": 60,
                       "tools": [tool], "tool_choice": "required", "parallel_tool_calls": false });
    let response = client.ok("/v1/responses", &body);
    let [call] = response["output"].as_array().unwrap().as_slice() else { panic!("{response}") };
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"] == "Paris" || arguments["city"] == "Rome", "{response}");
    let events = client.stream("/v1/responses", &body);
    let events: Vec<Value> = events.map(|event| serde_json::from_str(&event).unwrap()).collect();
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, call["arguments"]);

    // What it goes on from is said in two ways.
    let output =
        json!({"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."});
    let by_id = json!({ "previous_response_id": response["id"], "input": [output],
                        "temperature": 0, "max_output_tokens": 8, "tools": [tool] });
    let mut by_items = by_id.clone();
    by_items.as_object_mut().unwrap().remove("previous_response_id");
    by_items["input"] = json!([{"role": "user", "content": QUESTION}, call, output]);
    by_items["store"] = json!(false);
    let [first, second] = [&by_id, &by_items].map(|body| client.ok("/v1/responses", body));
    assert_eq!(first["output"][0]["content"], second["output"][0]["content"]);
    assert_eq!(first["usage"]["input_tokens"], second["usage"]["input_tokens"]);
    assert_eq!(first["previous_response_id"], response["id"]);

    let path = |response: &Value| format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!(client.get(&path(&first)).json(), first);
    assert_eq!(client.get(&path(&second)).status, 404);
    let delete = || {
        let request = agent().delete(format!("{}{}", client.base, path(&response)));
        reply(request.call().unwrap())
    };
    assert_eq!(delete().json()["deleted"], true);
    assert_eq!((delete().status, client.get(&path(&response)).status), (404, 404));
    assert_eq!(client.post("/v1/responses", &by_id).status, 404);
}

pub fn log_probabilities_are_those_of_the_chat(client: &Client) {
    let mut of_chat = chat();
    of_chat["logprobs"] = json!(true);
    of_chat["top_logprobs"] = json!(2);
    let of_chat = client.ok("/v1/chat/completions", &of_chat);
    let body = json!({ "input": QUESTION, "temperature": 0, "max_output_tokens": 24,
                       "include": ["message.output_text.logprobs"], "top_logprobs": 2 });
    let response = client.ok("/v1/responses", &body);
    let [of_chat, own] = [
        &of_chat["choices"][0]["logprobs"]["content"],
        &response["output"][0]["content"][0]["logprobs"],
    ]
    .map(|logprobs| logprobs.as_array().unwrap());
    // The stop token has no text, and is none of the message's.
    assert!(own.len() > 3 && own.len() + 1 >= of_chat.len());
    for (own, of_chat) in own.iter().zip(of_chat) {
        assert_eq!(own["token"], of_chat["token"]);
        let difference = own["logprob"].as_f64().unwrap() - of_chat["logprob"].as_f64().unwrap();
        assert!(difference.abs() < 1e-3, "{own} {of_chat}");
        assert_eq!(own["top_logprobs"].as_array().unwrap().len(), 2);
    }
}
