//! `/v1/chat/completions`: texts, forms of them, and calls of tools.

use crate::client::{Client, QUESTION, chat, deltas};
use crate::support::stdout;
use halfwarp::plan::PAGE_SIZE;
use serde_json::{Map, Value, json};

pub fn chat_is_what_generate_says(client: &Client) {
    let wanted = stdout(&[
        "generate", "--device", "cpu", "--chat", "-p", QUESTION, "--temp", "0", "-n", "24",
    ]);
    let first = client.ok("/v1/chat/completions", &chat());
    assert_eq!(first["object"], "chat.completion");
    assert!(first["id"].as_str().unwrap().starts_with("chatcmpl-"));
    let choice = &first["choices"][0];
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["message"]["content"], wanted.trim_end_matches('\n'));
    assert_eq!(choice["finish_reason"], "stop");
    let usage = |answer: &Value, name: &str| answer["usage"][name].as_u64().unwrap();
    let (prompt, answer) = (usage(&first, "prompt_tokens"), usage(&first, "completion_tokens"));
    assert!(prompt > 10 && (1..24).contains(&answer), "{first}");
    assert_eq!(usage(&first, "total_tokens"), prompt + answer);
    let again = client.ok("/v1/chat/completions", &chat());
    assert_eq!(again["choices"], first["choices"]);
    let parts = json!([{ "type": "text", "text": QUESTION }]);
    let mut in_parts = chat();
    in_parts["messages"][0]["content"] = parts;
    assert_eq!(client.ok("/v1/chat/completions", &in_parts)["choices"], first["choices"]);
}

pub fn whole_pages_of_a_prompt_are_reused(client: &Client) {
    let content = [QUESTION, &"Think of all that you know. ".repeat(20)].join(" ");
    let mut body = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 1 });
    let mut cached = |salt: Option<&str>| {
        body["cache_salt"] = salt.into();
        let usage = &client.ok("/v1/chat/completions", &body)["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (cached, usage["prompt_tokens"].as_u64().unwrap())
    };
    let (first, prompt) = cached(None);
    let pages = (prompt - 1) / PAGE_SIZE as u64;
    assert!(first == 0 && pages > 1, "{first} of {prompt}");
    let again = [None, Some("a"), Some("a"), None].map(|salt| cached(salt).0 / PAGE_SIZE as u64);
    assert_eq!(again, [pages, 0, pages, pages]);
}

pub fn a_streamed_chat_is_the_whole_one(client: &Client) {
    let whole = client.ok("/v1/chat/completions", &chat());
    let mut body = chat();
    body["stream_options"] = json!({ "include_usage": true });
    let chunks = client.stream("/v1/chat/completions", &body).rest();
    let text = &whole["choices"][0]["message"]["content"];
    assert_eq!(deltas(&chunks), *text);
    let [first, .., end, usage] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!(first["choices"][0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    assert_eq!(end["choices"][0]["delta"], json!({}));
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    assert!(chunks.len() > 5, "it comes in parts");
    for chunk in &chunks[..chunks.len() - 1] {
        assert_eq!(
            (&chunk["object"], &chunk["id"]),
            (&json!("chat.completion.chunk"), &first["id"])
        );
        assert!(chunk.get("usage").is_some_and(Value::is_null), "{chunk}");
    }
    let without = client.stream("/v1/chat/completions", &chat()).rest();
    assert!(without.iter().all(|chunk| chunk.get("usage").is_none()));
}

pub fn log_probabilities_of_each_token(client: &Client) {
    let mut body = chat();
    (body["logprobs"], body["top_logprobs"]) = (true.into(), 2.into());
    let whole = client.ok("/v1/chat/completions", &body);
    let tokens = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, whole["usage"]["completion_tokens"].as_u64().unwrap());
    let bytes = |token: &Value| serde_json::from_value::<Vec<u8>>(token["bytes"].clone()).unwrap();
    let text = String::from_utf8(tokens.iter().flat_map(bytes).collect()).unwrap();
    let content = whole["choices"][0]["message"]["content"].as_str().unwrap();
    // The stop token is one too, and no text.
    assert!(text.starts_with(content) && text.len() > content.len(), "{text}");
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["logprob"]), (2, &token["logprob"]), "{token}");
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
    }
    let chunks = client.stream("/v1/chat/completions", &body).rest();
    let streamed =
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(&streamed.flatten().cloned().collect::<Vec<_>>(), tokens);
    assert!(client.ok("/v1/chat/completions", &chat())["choices"][0]["logprobs"].is_null());
}

pub fn stop_strings_end_an_answer(client: &Client) {
    let whole = client.ok("/v1/chat/completions", &chat());
    let whole = whole["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(whole.contains("Paris"), "{whole}");
    let mut body = chat();
    body["stop"] = json!(["aris", "never"]);
    let stopped = client.ok("/v1/chat/completions", &body);
    assert_eq!(stopped["choices"][0]["message"]["content"], whole.split("aris").next().unwrap());
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let chunks = client.stream("/v1/chat/completions", &body).rest();
    assert_eq!(deltas(&chunks), whole.split("aris").next().unwrap());
}

pub fn several_answers(client: &Client) {
    let mut body = chat();
    body["n"] = json!(3);
    body["temperature"] = json!(1.5);
    body["seed"] = json!(7);
    let first = client.ok("/v1/chat/completions", &body);
    let texts: Vec<&Value> =
        (0..3).map(|index| &first["choices"][index]["message"]["content"]).collect();
    assert!(texts[0] != texts[1] || texts[1] != texts[2], "{texts:?}");
    // The first of them is that of the seed alone.
    body["n"] = json!(1);
    let alone = client.ok("/v1/chat/completions", &body);
    assert_eq!(alone["choices"][0]["message"]["content"], *texts[0]);
}

pub fn answers_have_the_form_that_is_asked_for(client: &Client) {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "year": {"type": "integer", "minimum": 0, "maximum": 2100}},
        "required": ["city", "year"],
        "additionalProperties": false,
    });
    let messages = json!([{"role": "user", "content": QUESTION}]);
    let of_schema =
        json!({"type": "json_schema", "json_schema": {"name": "city", "schema": schema}});
    let body = json!({"messages": messages, "seed": 1, "n": 3, "response_format": of_schema});
    let answer = client.ok("/v1/chat/completions", &body);
    for choice in answer["choices"].as_array().unwrap() {
        let text = choice["message"]["content"].as_str().unwrap();
        let value: Value = serde_json::from_str(text).expect(text);
        assert!(value["city"] == "Paris" || value["city"] == "Rome", "{value}");
        assert!(
            value["year"].as_i64().is_some_and(|year| (0..=2100).contains(&year))
                && value.as_object().unwrap().len() == 2,
            "{value}"
        );
        assert_eq!(choice["finish_reason"], "stop");
    }
    // What the grammar does not hold is told.
    let schema = json!({"enum": ["Paris"], "format": "town", "not": {"pattern": "a"}});
    let mut body = json!({"messages": messages, "guided_json": schema});
    let answer = client.ok("/v1/chat/completions", &body);
    assert_eq!(answer["choices"][0]["message"]["content"], "\"Paris\"");
    assert_eq!(answer["warnings"], json!(["the answer breaks #/not"]));
    body["n"] = json!(2);
    let answer = client.ok("/v1/chat/completions", &body);
    assert_eq!(answer["warnings"][1], "choice 1: the answer breaks #/not");
    body["n"] = json!(1);
    let chunks = client.stream("/v1/chat/completions", &body).rest();
    let last = chunks.iter().find(|chunk| chunk["choices"][0]["finish_reason"] == "stop");
    assert_eq!(last.expect("an end")["warnings"], json!(["the answer breaks #/not"]));
    body["guided_json"]["not"] = json!({"pattern": "x"});
    assert!(client.ok("/v1/chat/completions", &body).get("warnings").is_none());

    let text = |body: Value| deltas(&client.stream("/v1/chat/completions", &body).rest());
    let streamed = text(json!({"messages": messages, "guided_regex": "(yes|no)[.!]"}));
    assert!(["yes.", "no.", "yes!", "no!"].contains(&&*streamed), "{streamed}");
    let chosen =
        text(json!({"messages": messages, "structured_outputs": {"choice": ["Rome", "\"x\""]}}));
    assert!(chosen == "Rome" || chosen == "\"x\"", "{chosen}");

    for (form, why) in [
        (json!({"guided_regex": "("}), "guided_regex: the regular expression: "),
        (json!({"guided_json": {"type": "nothing"}}), "guided_json: the JSON schema: "),
        (json!({"guided_json": {"type": "string", "enum": [1]}}), "no document is of it"),
        (json!({"response_format": {"type": "xml"}}), "response_format: the type has to be"),
    ] {
        let mut body = form.clone();
        body["messages"] = messages.clone();
        let reply = client.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 400);
        assert!(reply.message().contains(why), "{}", reply.message());
    }
}

pub fn answers_are_the_calls_that_are_asked_for(client: &Client) {
    let tool = |name: &str, key: &str, schema: Value| {
        json!({"type": "function", "function": {"name": name, "description": name,
            "parameters": {"type": "object", "properties": {key: schema}, "required": [key]}}})
    };
    let cities = json!({"enum": ["Paris", "Rome"]});
    let tools = [tool("weather", "city", cities), tool("wait", "hours", json!({"enum": [1, 2]}))];
    let body = |choice: Value| {
        json!({"messages": [{"role": "user", "content": QUESTION}], "tools": tools,
            "tool_choice": choice, "seed": 1, "max_tokens": 60})
    };
    let is_call = |call: &Value| {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(arguments).expect(arguments);
        match function["name"].as_str().unwrap() {
            "weather" => assert!(arguments["city"] == "Paris" || arguments["city"] == "Rome"),
            "wait" => assert!(arguments["hours"] == 1 || arguments["hours"] == 2),
            name => panic!("{name}"),
        }
        assert_eq!(arguments.as_object().unwrap().len(), 1);
        assert!(call["type"] == "function" && call["id"].as_str().unwrap().starts_with("call_"));
    };
    let mut required = body(json!("required"));
    required["n"] = json!(2);
    required["parallel_tool_calls"] = json!(false);
    // It is of texts, and there is none.
    required["response_format"] = json!({"type": "json_object"});
    let answer = client.ok("/v1/chat/completions", &required);
    for choice in answer["choices"].as_array().unwrap() {
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &choice["finish_reason"]), (1, &json!("tool_calls")));
        assert_eq!(choice["message"]["content"], Value::Null);
        is_call(&calls[0]);
    }
    let named = json!({"type": "function", "function": {"name": "wait"}});
    let chunks = client.stream("/v1/chat/completions", &body(named)).rest();
    let calls: Vec<&Value> = chunks
        .iter()
        .flat_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"].as_array())
        .flatten()
        .collect();
    // Its name comes first, its arguments as they grow.
    let [begin, more @ ..] = &calls[..] else { panic!("{chunks:?}") };
    assert_eq!((&begin["index"], &begin["function"]["name"]), (&json!(0), &json!("wait")));
    let mut call = (*begin).clone();
    let arguments = more.iter().map(|more| more["function"]["arguments"].as_str().unwrap());
    call["function"]["arguments"] = arguments.collect::<String>().into();
    is_call(&call);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert_eq!(deltas(&chunks), "");
    // Left to choose, this model may do either; what it is told of the tools is part of its prompt.
    let [free, without] = ["auto", "none"].map(|choice| {
        let mut body = body(json!(choice));
        body["max_tokens"] = json!(4);
        client.ok("/v1/chat/completions", &body)
    });
    let len = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(len(&free) > len(&without) + 100, "{free} {without}");
    // A model that is made to write the mark of a call, and would write nothing else, calls a function then.
    let mark =
        client.ok("/tokenize", &json!({"prompt": "<tool_call>", "add_special_tokens": false}));
    let mark = mark["tokens"].as_array().unwrap().iter();
    let bias: Map<String, Value> = mark.map(|id| (id.to_string(), json!(100))).collect();
    let mut marked = body(json!("auto"));
    marked["logit_bias"] = bias.into();
    marked["temperature"] = json!(0);
    marked["parallel_tool_calls"] = json!(false);
    let answer = client.ok("/v1/chat/completions", &marked);
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    is_call(&choice["message"]["tool_calls"][0]);

    let mut guided = body(json!("required"));
    guided["guided_regex"] = json!("a");
    let unknown = json!({"type": "function", "function": {"name": "fly"}});
    let mut schemas = body(json!("required"));
    schemas["tools"][0]["function"]["parameters"] = json!({"type": "nothing"});
    for (body, why) in [
        (body(unknown), "tool_choice: there is no tool `fly`, but `weather`, `wait`"),
        (body(json!("any")), "tool_choice: it has to be none, auto, required or "),
        (guided, "guided_regex: tool_choice asks for a call"),
        (schemas, "tools: the grammar: "),
    ] {
        let reply = client.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 400, "{body}");
        assert!(reply.message().starts_with(why), "{}", reply.message());
    }
}
