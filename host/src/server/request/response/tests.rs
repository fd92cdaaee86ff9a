use super::super::tests::MODEL;
use super::super::turns;
use super::*;

fn parse(body: &str, store: &Store) -> Result<ResponseRequest, ApiError> {
    ResponseRequest::parse(body.as_bytes(), &MODEL, store)
}

fn response(fields: &str) -> Result<ResponseRequest, ApiError> {
    parse(&format!(r#"{{"input": "Hi"{fields}}}"#), &Store::default())
}

fn with_input(input: &Value) -> Result<ResponseRequest, ApiError> {
    parse(&json!({ "input": input }).to_string(), &Store::default())
}

/// Roles and texts.
fn said(request: &ResponseRequest) -> Vec<(&str, &str)> {
    turns::tests::said(&request.conversation.messages)
}

#[test]
fn responses_have_an_input_and_instructions() {
    let request = response(
        r#", "instructions": "Be brief.", "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.9, "store": true,
           "metadata": {"a": "b"}, "text": {"format": {"type": "json_object"}}, "stream": true, "tools": [],
           "tool_choice": "auto", "parallel_tool_calls": true, "cache_salt": "a", "priority": 2, "reasoning": {"effort": null, "summary": "auto"}, "truncation": "disabled",
           "stream_options": {"include_obfuscation": false}, "background": false, "include": ["reasoning.encrypted_content"],
           "max_tool_calls": 3, "prompt_cache_key": "k", "client_metadata": {"x": "y"}"#,
    )
    .unwrap();
    assert_eq!(said(&request), [("system", "Be brief."), ("user", "Hi")]);
    let ResponseRequest { params, settings, stored_input, .. } = request;
    assert!(params.stream && params.form.is_some() && params.max_new_tokens == Some(7));
    let request = &params.requests(&MODEL, &[1])[0];
    assert_eq!((request.cache_salt.as_deref(), request.priority), (Some("a"), 2));
    for (name, value) in [
        ("temperature", json!(0.5)),
        ("top_p", json!(0.9)),
        ("max_output_tokens", json!(7)),
        ("metadata", json!({"a": "b"})),
        ("text", json!({"format": {"type": "json_object"}, "verbosity": "medium"})),
        ("max_tool_calls", json!(3)),
        ("prompt_cache_key", json!("k")),
        ("safety_identifier", Value::Null),
        ("store", json!(true)),
        ("instructions", json!("Be brief.")),
    ] {
        assert_eq!(settings.echo[name], value, "{name}");
    }
    let item = r#"[{"content":"Hi","role":"user","type":"message"}]"#;
    let same = |a: &str, b: &str| {
        serde_json::from_str::<Value>(a).unwrap() == serde_json::from_str::<Value>(b).unwrap()
    };
    assert!(same(&stored_input.unwrap(), item));
    assert_eq!(response(r#", "store": false"#).unwrap().stored_input, None);
    let request = with_input(&json!([
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "A"}]},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
            {"type": "output_text", "text": "b", "annotations": [], "logprobs": []}]}]));
    let request = request.unwrap();
    assert_eq!(said(&request), [("system", "Be brief."), ("user", "a\nA"), ("assistant", "b")]);
    assert_eq!((request.params.max_new_tokens, request.params.n), (None, 1));
}

#[test]
fn what_was_thought_called_and_returned_is_a_turn_of_the_assistant_and_answers_of_tools() {
    let request = with_input(&json!([
        {"role": "user", "content": "x"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "e",
         "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": "I look.", "phase": "commentary"},
        {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "f", "arguments": "{\"a\": 1}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}", "status": "completed", "namespace": "n"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "function_call_output", "call_id": "2", "output": [
            {"type": "input_text", "text": "t"}, {"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}], "content": null},
    ]));
    let request = request.unwrap();
    assert_eq!(
        said(&request),
        [
            ("user", "x"),
            ("assistant", "I look."),
            ("tool", "one"),
            ("tool", "t\nu"),
            ("assistant", "")
        ]
    );
    let messages = &request.conversation.messages;
    assert_eq!(messages[1].fields["reasoning_content"], "hm");
    assert_eq!(
        messages[1].fields["tool_calls"],
        json!([
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}}])
    );
    assert_eq!(
        (&messages[3].fields["tool_call_id"], &messages[3].fields["name"]),
        (&json!("2"), &json!("g"))
    );
    assert_eq!(messages[4].fields["reasoning_content"], "so");
}

#[test]
fn a_response_goes_on_from_a_stored_one() {
    let store = Store::default();
    let output = json!([{"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}]);
    let input = json!([{"role": "user", "content": "a"}]).to_string();
    store.put(None, input, &json!({"id": "resp_1", "output": output}));
    let request = parse(
        r#"{"previous_response_id": "resp_1", "instructions": "i",
            "input": [{"type": "function_call_output", "call_id": "c", "output": "b"}]}"#,
        &store,
    );
    let request = request.unwrap();
    assert_eq!(said(&request), [("system", "i"), ("user", "a"), ("assistant", ""), ("tool", "b")]);
    assert_eq!(request.settings.echo["previous_response_id"], "resp_1");
    // Its own items alone are stored.
    assert!(!request.stored_input.unwrap().contains("\"a\""));
    let by_item = parse(
        r#"{"input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": "fc_1"},
                      {"type": "function_call_output", "call_id": "c", "output": "b"}]}"#,
        &store,
    );
    assert_eq!(said(&by_item.unwrap()), [("user", "a"), ("assistant", ""), ("tool", "b")]);
    let unknown = parse(r#"{"input": "x", "previous_response_id": "resp_2"}"#, &store);
    let error = unknown.unwrap_err();
    assert_eq!(error.status, 404);
    assert_eq!(error.to_json()["error"]["code"], "previous_response_not_found");
}

#[test]
fn tools_are_functions_and_namespaces_of_them() {
    let function =
        |name: &str| json!({"type": "function", "name": name, "parameters": {"type": "object"}});
    let body = json!({"input": "x", "parallel_tool_calls": false, "tools": [
        function("f"),
        {"type": "namespace", "name": "n", "description": "", "tools": [function("g")]},
        {"type": "web_search", "external_web_access": false}]});
    let request = parse(&body.to_string(), &Store::default()).unwrap();
    assert_eq!(request.settings.namespaces["g"], "n");
    assert_eq!(request.settings.namespaces.len(), 1);
    let tools = request.settings.echo["tools"].as_array().unwrap();
    assert_eq!((tools.len(), &tools[0]["strict"]), (2, &Value::Null));
    assert!(tools[0].as_object().unwrap().contains_key("strict"));
    for (choice, are_required) in [
        (json!("auto"), false),
        (json!("required"), true),
        (json!({"type": "function", "name": "g"}), true),
        (
            json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}),
            true,
        ),
    ] {
        let mut body = body.clone();
        body["tool_choice"] = choice.clone();
        let request = parse(&body.to_string(), &Store::default()).unwrap();
        assert_eq!(request.conversation.tools.are_required(), are_required, "{choice}");
        assert_eq!(request.settings.echo["tool_choice"], choice);
    }
}

#[test]
fn what_responses_do_not_have_is_named() {
    let twice =
        r#""tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "f"}]"#;
    for (fields, param) in [
        (r#""tools": [{"type": "local_shell"}]"#, "tools[0].type"),
        (r#""tools": [{"type": "custom", "name": "apply_patch"}]"#, "tools[0].type"),
        (twice, "tools[1]"),
        (r#""tools": [3]"#, "tools[0]"),
        (r#""tool_choice": "required""#, "tool_choice"),
        (r#""tool_choice": {"type": "web_search"}"#, "tool_choice.type"),
        (r#""previous_response_id": "resp_1""#, "previous_response_id"),
        (r#""conversation": "conv_1""#, "conversation"),
        (r#""prompt": {"id": "p"}"#, "prompt"),
        (r#""background": true"#, "background"),
        (r#""include": ["nothing"]"#, "include"),
        (r#""truncation": "auto""#, "truncation"),
        (r#""top_logprobs": 2"#, "top_logprobs"),
        (r#""n": 2"#, "n"),
        (r#""max_tokens": 2"#, "max_tokens"),
        (r#""response_format": {"type": "json_object"}"#, "response_format"),
        (r#""text": {"verbosity": "low"}"#, "text.verbosity"),
        (r#""text": {"format": {"type": "xml"}}"#, "text.format"),
        (r#""top_p": 2"#, "top_p"),
        (r#""nothing": 2"#, "nothing"),
    ] {
        let error = response(&format!(", {fields}")).unwrap_err().to_json();
        assert_eq!(error["error"]["param"], param, "{fields}: {error}");
    }
    for input in [
        json!([]),
        json!(3),
        json!([{"role": "tool", "content": "x"}]),
        json!([{"role": "user"}]),
        json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        json!([{"type": "custom_tool_call", "call_id": "1", "name": "f", "input": "x"}]),
        json!([{"type": "function_call", "name": "f", "arguments": "{}"}]),
        json!([{"type": "function_call_output", "call_id": "1"}]),
        json!([{"type": "item_reference", "id": "msg_1"}]),
    ] {
        assert!(with_input(&input).is_err(), "{input}");
    }
}

#[test]
fn effort_is_a_matter_of_the_template() {
    let request = response(r#", "reasoning": {"effort": "low"}"#).unwrap();
    assert_eq!(request.conversation.variables["reasoning_effort"], "low");
    assert_eq!(request.settings.echo["reasoning"]["effort"], "low");
    assert!(response("").unwrap().conversation.variables.is_empty());
    assert!(response(r#", "reasoning": {"effort": "much"}"#).is_err());
}

#[test]
fn log_probabilities_are_included() {
    let include = r#", "include": ["message.output_text.logprobs"]"#;
    assert_eq!(response(include).unwrap().params.logprobs, Some(0));
    let request = response(&format!("{include}, \"top_logprobs\": 3")).unwrap();
    assert_eq!((request.params.logprobs, request.settings.logprobs), (Some(3), true));
    assert_eq!(response("").unwrap().params.logprobs, None);
}
