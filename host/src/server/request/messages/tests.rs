use super::super::tests::MODEL;
use super::super::turns;
use super::*;

fn parse(fields: Value) -> Result<MessagesRequest, ApiError> {
    let mut body =
        json!({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    MessagesRequest::parse(body.to_string().as_bytes(), &MODEL)
}

fn param(fields: Value) -> String {
    let error = parse(fields.clone()).map(drop).unwrap_err().to_json();
    error["error"]["param"].as_str().unwrap_or_else(|| panic!("{fields}: {error}")).to_owned()
}

fn said(request: &MessagesRequest) -> Vec<(&str, &str)> {
    turns::tests::said(&request.conversation.messages)
}

#[test]
fn a_conversation_of_blocks_is_one_of_messages() {
    let cached = json!({"type": "ephemeral"});
    let request = parse(json!({
        "system": [{"type": "text", "text": "s"}, {"type": "text", "text": "t", "cache_control": cached}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "citations": null}]},
            {"role": "system", "content": "mid"},
            {"role": "assistant", "id": "msg_1", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "y"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}, "cache_control": cached},
                {"type": "tool_use", "id": "2", "name": "g", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "2", "is_error": true,
                 "content": [{"type": "text", "text": "t"}, {"type": "text", "text": "u"}]},
                {"type": "tool_result", "tool_use_id": "3"},
                {"type": "text", "text": "Go on."},
                {"type": "document", "title": "D", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}]}],
    }));
    let request = request.unwrap();
    assert_eq!(
        said(&request),
        [
            ("system", "s\nt"),
            ("user", "a\nb\n\nmid"),
            ("assistant", "I look."),
            ("tool", "one"),
            ("tool", "t\nu"),
            ("tool", ""),
            ("user", "Go on.\nD\nd"),
        ]
    );
    let messages = &request.conversation.messages;
    assert_eq!(messages[2].fields["reasoning_content"], "hm");
    assert_eq!(
        messages[2].fields["tool_calls"],
        json!([
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": {}}}])
    );
    let of_g = &messages[4].fields;
    assert_eq!((&of_g["tool_call_id"], &of_g["name"]), (&json!("2"), &json!("g")));
}

#[test]
fn parameters_have_anthropics_names() {
    let tool = json!({"name": "f", "input_schema": {"type": "object"}, "cache_control": {}, "eager_input_streaming": true});
    let request = parse(json!({
        "stop_sequences": ["x", "y"], "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stream": true,
        "metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "tools": [tool],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"}, "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
    }));
    let MessagesRequest { params, conversation } = request.unwrap();
    assert_eq!(
        (params.max_new_tokens, &*params.stop),
        (Some(5), &["x".to_owned(), "y".to_owned()][..])
    );
    assert_eq!((params.sampling.temperature, params.sampling.top_k, params.stream), (0.5, 3, true));
    assert!(!conversation.tools.are_required());
    assert_eq!(params.thinking_budget, Some(1024));
    for kind in ["disabled", "adaptive"] {
        parse(json!({"thinking": {"type": kind}})).unwrap();
    }
    for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "f"})] {
        let request = parse(json!({"tools": [tool], "tool_choice": choice})).unwrap();
        assert!(request.conversation.tools.are_required(), "{choice}");
    }
    let form = json!({"type": "json_schema", "schema": {"type": "object"}});
    assert!(parse(json!({"output_config": {"format": form}})).unwrap().params.form.is_some());
    assert!(parse(json!({"output_format": form})).unwrap().params.form.is_some());
    let uncounted = json!({"messages": [{"role": "user", "content": "Hi"}]}).to_string();
    MessagesRequest::parse_count(uncounted.as_bytes(), &MODEL).unwrap();
    let error = MessagesRequest::parse(uncounted.as_bytes(), &MODEL).unwrap_err().to_json();
    assert_eq!(error["error"]["message"], "max_tokens: this field is required");
}

#[test]
fn thinking_is_a_matter_of_the_template() {
    let variables = |fields| parse(fields).unwrap().conversation.variables;
    let thinking = |kind: &str| json!({"thinking": {"type": kind, "budget_tokens": 1024}});
    assert_eq!(Value::from(variables(thinking("enabled"))), json!({"enable_thinking": true}));
    assert_eq!(Value::from(variables(thinking("disabled"))), json!({"enable_thinking": false}));
    assert!(variables(thinking("adaptive")).is_empty());
    let effort = json!({"output_config": {"effort": "low"}});
    assert_eq!(variables(effort)["reasoning_effort"], "low");
}

#[test]
fn what_messages_do_not_have_is_named() {
    let user = |block: Value| json!({"messages": [{"role": "user", "content": [block]}]});
    let search = json!([{"type": "web_search_20250305", "name": "web_search"}]);
    let image = json!({"type": "base64", "media_type": "image/png", "data": ""});
    for (fields, wanted) in [
        (user(json!({"type": "image", "source": image})), "messages[0].content[0]"),
        (user(json!({"type": "document", "source": image})), "messages[0].content[0].source"),
        (
            user(
                json!({"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": image}]}),
            ),
            "messages[0].content[0].content[0]",
        ),
        (user(json!({"type": "text"})), "messages[0].content[0].text"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"tools": search}), "tools[0].type"),
        (json!({"tools": [{"name": "f"}]}), "tools[0].input_schema"),
        (json!({"tool_choice": {"type": "any"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "required"}}), "tool_choice"),
        (json!({"thinking": {"type": "yes"}}), "thinking"),
        (json!({"output_config": {"effort": "much"}}), "reasoning_effort"),
        (json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers"),
        (
            json!({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}),
            "context_management",
        ),
        (json!({"stop": ["x"]}), "stop"),
        (json!({"stop_sequences": [""]}), "stop_sequences"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"nothing": 1}), "nothing"),
    ] {
        assert_eq!(param(fields.clone()), wanted, "{fields}");
    }
}
