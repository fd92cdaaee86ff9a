//! `halfwarp serve`, talked to over HTTP: every answer, every refusal, and what it does when a client or it itself leaves.

#[path = "cli/support.rs"]
#[allow(dead_code)]
mod support;

use halfwarp::engine::{Engine, EngineError, EngineOptions};
use halfwarp::exec::Device;
use halfwarp::plan::PAGE_SIZE;
use halfwarp::server::{Server, ServerOptions};
use halfwarp::{Model, ServiceOptions};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;
use support::{Copy, LLAMA, halfwarp, stdout};
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// How long a test waits before it looks again.
const PAUSE: Duration = Duration::from_millis(20);
const QUESTION: &str = "What is the capital of France?";

/// A certificate of localhost, its key, and the key of another: EC on P-256, signed by themselves, until 2126
/// (`openssl req -x509 -newkey ec -addext basicConstraints=critical,CA:FALSE`).
const CERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tls/server.pem");
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tls/server.key");
const OTHER_KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tls/other.key");

/// It trusts [`CERT`] alone.
fn agent() -> ureq::Agent {
    let cert = Certificate::from_pem(&std::fs::read(CERT).unwrap()).unwrap();
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&[cert]))
        .build();
    ureq::Agent::config_builder().http_status_as_error(false).tls_config(tls).build().into()
}

/// A client of one server.
struct Client {
    base: String,
    key: Option<&'static str>,
}

struct Reply {
    status: u16,
    retry_after: bool,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    fn message(&self) -> String {
        let error = &self.json()["error"];
        assert!(error["type"].is_string(), "{}", self.text);
        error["message"].as_str().unwrap().to_owned()
    }
}

impl Client {
    fn get(&self, path: &str) -> Reply {
        let mut request = agent().get(format!("{}{path}", self.base));
        if let Some(key) = self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        reply(request.call().unwrap())
    }

    fn send(&self, path: &str, body: &[u8]) -> ureq::http::Response<ureq::Body> {
        let mut request = agent().post(format!("{}{path}", self.base));
        if let Some(key) = self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        request.header("Content-Type", "application/json").send(body).unwrap()
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        reply(self.send(path, body.to_string().as_bytes()))
    }

    /// The body of a reply that has to be good.
    fn ok(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    }

    fn stream(&self, path: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = self.send(path, body.to_string().as_bytes());
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events(BufReader::new(Box::new(response.into_body().into_reader()) as Box<_>).lines())
    }

    /// The value of a metric, 0 if there is none.
    fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let is_named = |line: &&str| line.split(['{', ' ']).next() == Some(name);
        let line = text.lines().find(is_named);
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    fn wait_for(&self, path: &str, status: u16) {
        while self.get(path).status != status {
            thread::sleep(PAUSE);
        }
    }

    fn wait_for_metric(&self, name: &str, value: f64) {
        while self.metric(name) != value {
            thread::sleep(PAUSE);
        }
    }
}

fn reply(response: ureq::http::Response<ureq::Body>) -> Reply {
    Reply {
        status: response.status().as_u16(),
        retry_after: response.headers().contains_key("retry-after"),
        text: response.into_body().read_to_string().unwrap(),
    }
}

/// Server-sent events; dropping it closes the connection.
struct Events(Lines<BufReader<Box<dyn std::io::Read + Send>>>);

impl Iterator for Events {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        loop {
            let line = self.0.next()?.unwrap();
            if let Some(data) = line.strip_prefix("data: ") {
                return Some(data.to_owned());
            }
            let is_other = line.starts_with(':') || line.starts_with("event: ");
            assert!(line.is_empty() || is_other, "{line}");
        }
    }
}

impl Events {
    fn chunk(&mut self) -> Value {
        serde_json::from_str(&self.next().unwrap()).unwrap()
    }

    /// The chunks up to `[DONE]`, which has to be the end.
    fn rest(self) -> Vec<Value> {
        let mut events: Vec<String> = self.collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{events:?}");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// The binary, serving; killed when it is dropped.
struct Serving {
    child: Child,
    client: Client,
    log: Arc<Mutex<String>>,
}

impl Serving {
    fn start(args: &[&str]) -> Serving {
        let serving = Self::start_loading(args);
        serving.client.wait_for("/health", 200);
        serving
    }

    fn start_loading(args: &[&str]) -> Serving {
        let mut command = halfwarp(&["serve", "--device", "cpu", "--port", "0"]);
        let mut child = command.args(args).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut before = String::new();
        let base = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended: {before}")).unwrap();
            match line.strip_prefix("listening on ") {
                Some(base) => break base.to_owned(),
                None => before += &line,
            }
        };
        let log = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&log);
        thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| *sink.lock().unwrap() += &(line + "\n"));
        });
        Serving { child, client: Client { base, key: None }, log }
    }

    /// A model with no tokenizer, whose context takes minutes to fill.
    fn endless(args: &[&str]) -> (Serving, Copy) {
        let model = Copy::new().config(|config| {
            config.insert("max_position_embeddings".into(), json!(100_000));
        });
        let base = ["-m", model.path(), "--served-model-name", "tiny", "-c", "50000"];
        let serving = Serving::start(&[&base[..], args].concat());
        (serving, model)
    }

    fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Goes on until the context is full.
fn without_end() -> Value {
    json!({ "prompt": [1, 2, 3], "max_tokens": 40_000, "ignore_eos": true, "temperature": 0,
            "return_token_ids": true })
}

fn chat() -> Value {
    json!({ "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0,
            "max_tokens": 24 })
}

/// The text of a chat's chunks.
fn deltas(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}

/// One server for all that needs a real model: it loads once.
#[test]
fn a_real_model_is_served() {
    let serving = Serving::start(&["-c", "512"]);
    let client = &serving.client;
    chat_is_what_generate_says(client);
    whole_pages_of_a_prompt_are_reused(client);
    a_streamed_chat_is_the_whole_one(client);
    completions_of_texts_and_ids(client);
    tokens_there_and_back(client);
    stop_strings_end_an_answer(client);
    several_answers(client);
    answers_have_the_form_that_is_asked_for(client);
    answers_are_the_calls_that_are_asked_for(client);
    a_response_is_the_chat_in_another_form(client);
    the_page_is_there(client);
    refusals_of_a_model_with_text(client);
    metrics_count(client);
    let log = serving.log.lock().unwrap();
    assert!(log.contains("POST /v1/chat/completions 200"), "{log}");
    assert!(!log.contains("capital") && !log.contains("France"), "{log}");
}

fn chat_is_what_generate_says(client: &Client) {
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

fn whole_pages_of_a_prompt_are_reused(client: &Client) {
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

fn a_streamed_chat_is_the_whole_one(client: &Client) {
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

fn completions_of_texts_and_ids(client: &Client) {
    let prompt = "The capital of France is";
    let args = ["generate", "--device", "cpu", "-p", prompt, "--temp", "0", "-n", "6"];
    let wanted = stdout(&args);
    let wanted = wanted.strip_suffix('\n').unwrap();
    let body = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 6 });
    let answer = client.ok("/v1/completions", &body);
    assert_eq!(
        (&answer["object"], &answer["choices"][0]["text"]),
        (&"text_completion".into(), &wanted.into())
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let ids = client.ok("/tokenize", &json!({ "prompt": prompt }))["tokens"].clone();
    let mut several = body.clone();
    several["prompt"] = json!([ids, ids]);
    several["echo"] = true.into();
    let answers = client.ok("/v1/completions", &several);
    for index in 0..2 {
        let choice = &answers["choices"][index];
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], format!("{prompt}{wanted}"));
    }
    several["prompt"] = json!([prompt, "Once upon a time"]);
    let chunks = client.stream("/v1/completions", &several).rest();
    let text = |index: usize| -> String {
        let choices = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let own = choices.filter(|choice| choice["index"] == index);
        own.filter_map(|choice| choice["text"].as_str()).collect()
    };
    assert_eq!(text(0), format!("{prompt}{wanted}"));
    assert!(text(1).starts_with("Once upon a time"), "{}", text(1));
}

fn tokens_there_and_back(client: &Client) {
    let text = "Grüße, 世界! <|im_start|> x";
    let tokens = client.ok("/tokenize", &json!({ "prompt": text, "return_token_strs": true }));
    let count = tokens["tokens"].as_array().unwrap().len();
    assert_eq!((&tokens["count"], &tokens["max_model_len"]), (&json!(count), &json!(512)));
    assert_eq!(tokens["token_strs"].as_array().unwrap().len(), count);
    let back = client.ok("/detokenize", &json!({ "tokens": tokens["tokens"] }));
    assert_eq!(back["prompt"], text);
    let info = client.get("/tokenizer_info").json();
    assert_eq!((&info["vocab_size"], &info["model_max_length"]), (&json!(49152), &json!(512)));
    assert_eq!(
        (&info["bos_token"], &info["eos_token"]),
        (&json!("<|im_start|>"), &json!("<|im_end|>"))
    );
    assert_eq!(info["added_tokens_decoder"]["2"]["content"], "<|im_end|>");
    assert!(info["tokenizer_class"].is_string(), "{info}");
    let template = info["chat_template"].as_str().unwrap();
    assert!(template.contains("add_generation_prompt"), "{template}");
    let chat = client.ok("/tokenize", &json!({ "messages": chat()["messages"] }));
    let back = client.ok("/detokenize", &json!({ "tokens": chat["tokens"] }));
    let back = back["prompt"].as_str().unwrap();
    assert!(back.contains(QUESTION) && back.ends_with("assistant\n"), "{back}");
}

fn stop_strings_end_an_answer(client: &Client) {
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

fn several_answers(client: &Client) {
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

fn refusals_of_a_model_with_text(client: &Client) {
    let long = "word ".repeat(600);
    let mut body = chat();
    body["messages"][0]["content"] = json!(long);
    let reply = client.post("/v1/chat/completions", &body);
    assert_eq!(
        (reply.status, reply.json()["error"]["code"].as_str()),
        (400, Some("context_length_exceeded"))
    );
    let reply =
        client.post("/v1/completions", &json!({ "prompt": "", "add_special_tokens": false }));
    assert_eq!(
        (reply.status, &*reply.message()),
        (400, "the prompt is empty: it needs at least one token")
    );
    let reply = client.post("/detokenize", &json!({ "tokens": [4_000_000] }));
    assert_eq!(reply.status, 400);
}

fn answers_have_the_form_that_is_asked_for(client: &Client) {
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
    let text = |body: Value| deltas(&client.stream("/v1/chat/completions", &body).rest());
    let streamed = text(json!({"messages": messages, "guided_regex": "(yes|no)[.!]"}));
    assert!(["yes.", "no.", "yes!", "no!"].contains(&&*streamed), "{streamed}");
    let chosen =
        text(json!({"messages": messages, "structured_outputs": {"choice": ["Rome", "\"x\""]}}));
    assert!(chosen == "Rome" || chosen == "\"x\"", "{chosen}");

    for (form, why) in [
        (json!({"guided_regex": "("}), "guided_regex: the regular expression: "),
        (json!({"guided_json": {"type": "nothing"}}), "guided_json: the JSON schema: "),
        (json!({"response_format": {"type": "xml"}}), "response_format: the type has to be"),
    ] {
        let mut body = form.clone();
        body["messages"] = messages.clone();
        let reply = client.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 400);
        assert!(reply.message().starts_with(why), "{}", reply.message());
    }
}

fn answers_are_the_calls_that_are_asked_for(client: &Client) {
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
    required["n"] = json!(3);
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
    assert!(calls.len() == 1 && calls[0]["function"]["name"] == "wait", "{chunks:?}");
    is_call(calls[0]);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");
    assert_eq!(deltas(&chunks), "");
    // Left to choose, this model may do either; what it is told of the tools is part of its prompt.
    let free = client.ok("/v1/chat/completions", &body(json!("auto")));
    let without = client.ok("/v1/chat/completions", &body(json!("none")));
    let len = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(len(&free) > len(&without) + 100, "{free} {without}");

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

fn a_response_is_the_chat_in_another_form(client: &Client) {
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

fn the_page_is_there(client: &Client) {
    let page = client.get("/").text;
    assert!(page.starts_with("<!doctype html>"), "{page}");
    // What the page names is there too, and comes from nowhere else.
    let names = ["style.css", "app.js", "api.js", "figures.js", "markdown.js"];
    assert!(page.contains(names[0]) && page.contains(names[1]) && !page.contains("http"), "{page}");
    for name in names {
        assert_eq!(client.get(&format!("/{name}")).status, 200, "{name}");
    }
    let reply = agent().get(format!("{}/", client.base)).call().unwrap();
    let policy = reply.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{policy}");
}

fn metrics_count(client: &Client) {
    let body =
        json!({ "prompt": [1, 2, 3], "temperature": 0, "max_tokens": 5, "ignore_eos": true });
    let names = ["prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total"];
    let values = || names.map(|name| client.metric(&format!("halfwarp:{name}")));
    let before = values();
    client.ok("/v1/completions", &body);
    let after = values();
    let added: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(added, [3.0, 5.0, 3.0]);
    let text = client.get("/metrics").text;
    for name in [
        "num_requests_running{",
        "num_requests_waiting{",
        "kv_cache_usage_perc{",
        "prefix_cache_hits_total{",
        "num_preemptions_total{",
        "request_success_total{",
        "time_to_first_token_seconds_bucket{",
        "inter_token_latency_seconds_count{",
        "e2e_request_latency_seconds_sum{",
    ] {
        assert!(text.contains(&format!("\nhalfwarp:{name}")), "{name} in {text}");
    }
    assert!(text.contains("finished_reason=\"length\"") && text.ends_with("# EOF\n"), "{text}");
}

/// A model without a tokenizer: token ids in and out.
#[test]
fn refusals_say_what_is_wrong() {
    let args = ["-m", LLAMA, "--max-choices", "4", "--max-body-bytes", "20000"];
    let serving = Serving::start(&args);
    let client = &serving.client;
    let good = json!({ "prompt": [1, 2, 3], "temperature": 0, "max_tokens": 4,
                       "return_token_ids": true, "model": "llama-gqa" });
    let ids = client.ok("/v1/completions", &good)["choices"][0]["token_ids"].clone();
    let generated =
        support::generate_json(&["-m", LLAMA, "--tokens", "1,2,3", "--temp", "0", "-n", "4"]);
    assert_eq!(ids, generated["tokens"]);

    for (path, body, status, start) in [
        ("/v1/completions", "{\"prompt\": [1", 400, "the body is not JSON"),
        ("/v1/completions", "[]", 400, "the body has to be a JSON object"),
        ("/v1/completions", "{}", 400, "prompt: this field is required"),
        ("/v1/completions", "{\"prompt\": 3}", 400, "prompt: it has to be"),
        ("/v1/completions", "{\"prompt\": \"x\"}", 400, "this model has no tokenizer"),
        ("/v1/completions", "{\"prompt\": [256]}", 400, "token id 256"),
        ("/v1/completions", "{\"prompt\": [1], \"n\": 5}", 400, "n: 5 answers in all"),
        ("/v1/completions", "{\"prompt\": [[1], [2]], \"n\": 3}", 400, "n: 6 answers in all"),
        ("/v1/completions", "{\"prompt\": [1], \"tools\": [1]}", 400, "tools: this is not"),
        ("/v1/completions", "{\"prompt\": [1], \"model\": \"x\"}", 404, "the model `x` does not"),
        ("/v1/completions", "{\"prompt\": [1], \"model\": 3}", 400, "model: invalid type"),
        ("/v1/completions", "{\"prompt\": [1], \"priority\": -1}", 400, "priority: this server's"),
        ("/v1/chat/completions", "{\"messages\": []}", 400, "messages: there has to be"),
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user", "content": "x"}]}"#,
            400,
            "this model has no tokenizer",
        ),
        ("/tokenize", "{\"prompt\": \"x\"}", 400, "this model has no tokenizer"),
        ("/v1/embeddings", "{}", 404, "there is no such path"),
        ("/v1/models", "{}", 405, "this path has no such method"),
    ] {
        let reply = reply(client.send(path, body.as_bytes()));
        assert_eq!(reply.status, status, "{body}: {}", reply.text);
        assert!(reply.message().starts_with(start), "{body}: {}", reply.text);
    }
    let too_long = json!({ "prompt": vec![1; 513] });
    let reply = client.post("/v1/completions", &too_long);
    assert_eq!(
        (reply.status, &*reply.message()),
        (400, "the prompt has 513 tokens, the context of this server 512")
    );
    let too_large = json!({ "prompt": vec![1; 20_000] });
    assert_eq!(client.post("/v1/completions", &too_large).status, 413);
    let plain = agent().post(format!("{}/v1/completions", client.base)).send(&b"{}"[..]).unwrap();
    assert_eq!(plain.status(), 415);
    // The server is as good as before.
    assert_eq!(client.ok("/v1/completions", &good)["choices"][0]["token_ids"], ids);
    let models = client.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "llama-gqa");
    assert_eq!(client.get("/v1/models/llama-gqa").json()["max_model_len"], 512);
    assert_eq!(client.get("/v1/models/other").status, 404);
    assert!(client.get("/version").json()["version"].is_string());
    assert_eq!(client.get("/ready").status, 200);
}

#[test]
fn requests_have_a_priority_where_the_policy_says_so() {
    let serving = Serving::start(&["-m", LLAMA, "--scheduling-policy", "priority"]);
    let body = |priority: i64| {
        json!({ "prompt": [1, 2, 3], "temperature": 0, "max_tokens": 4, "return_token_ids": true,
                "priority": priority })
    };
    let [urgent, other] = [-5, 1000].map(|n| serving.client.ok("/v1/completions", &body(n)));
    assert_eq!(urgent["choices"], other["choices"]);
}

#[test]
fn a_key_opens_what_is_locked() {
    let serving = Serving::start(&["-m", LLAMA, "--api-key", "first", "--api-key", "second"]);
    let base = &serving.client.base;
    let body = json!({ "prompt": [1], "max_tokens": 1 });
    for (key, status) in
        [(None, 401), (Some("wrong"), 401), (Some("first"), 200), (Some("second"), 200)]
    {
        let client = Client { base: base.clone(), key };
        assert_eq!(client.post("/v1/completions", &body).status, status, "{key:?}");
        assert_eq!(client.get("/metrics").status, status, "{key:?}");
        assert_eq!(client.get("/health").status, 200, "{key:?}");
        assert_eq!(client.get("/tokenizer_info").status, if status == 200 { 400 } else { 401 });
        // A path that is not there tells no more to who has no key.
        assert_eq!(client.get("/v1/nothing").status, 404, "{key:?}");
    }
    assert_eq!(serving.client.get("/v1/models").json()["error"]["code"], "invalid_api_key");
}

#[test]
fn a_client_that_leaves_gives_its_place_to_the_next() {
    let (serving, _model) = Serving::endless(&["--max-num-seqs", "1", "--max-queue", "1"]);
    let client = &serving.client;
    let mut stream = client.stream("/v1/completions", &without_end());
    (0..3).for_each(|_| drop(stream.chunk()));
    assert_eq!(client.metric("halfwarp:num_requests_running"), 1.0);
    assert!(client.metric("halfwarp:kv_cache_usage_perc") > 0.0);
    let queued = client.stream("/v1/completions", &without_end());
    client.wait_for_metric("halfwarp:num_requests_waiting", 1.0);
    let full = client.post("/v1/completions", &without_end());
    assert_eq!((full.status, full.retry_after), (429, true), "{}", full.text);
    // One that waits has no token to send, and leaves the queue all the same.
    drop(queued);
    client.wait_for_metric("halfwarp:num_requests_waiting", 0.0);
    drop(stream);
    client.wait_for_metric("halfwarp:num_requests_running", 0.0);
    assert_eq!(client.metric("halfwarp:kv_cache_usage_perc"), 0.0);
    let text = client.get("/metrics").text;
    assert!(text.contains("finished_reason=\"abort\""), "{text}");
    client.ok("/v1/completions", &json!({ "prompt": [1], "max_tokens": 2 }));
}

#[test]
fn a_shutdown_lets_streams_end_and_refuses_new_ones() {
    let (mut serving, _model) = Serving::endless(&["--shutdown-timeout", "600"]);
    let client = &serving.client;
    let mut short = without_end();
    short["max_tokens"] = 200.into();
    let mut long = client.stream("/v1/completions", &without_end());
    let mut short = client.stream("/v1/completions", &short);
    drop((short.chunk(), long.chunk()));
    serving.signal("TERM");
    client.wait_for("/ready", 503);
    assert_eq!(client.get("/health").status, 200);
    let refused = client.post("/v1/completions", &without_end());
    assert_eq!((refused.status, refused.retry_after), (503, true), "{}", refused.text);
    let chunks = short.rest();
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    drop(long);
    assert_eq!(serving.exit_code(), Some(0));
}

#[test]
fn what_does_not_end_in_time_ends_with_an_error() {
    let (mut serving, _model) = Serving::endless(&["--shutdown-timeout", "0"]);
    let mut stream = serving.client.stream("/v1/completions", &without_end());
    drop(stream.chunk());
    serving.signal("INT");
    let chunks = stream.rest();
    let error = &chunks.last().unwrap()["error"];
    assert_eq!(error["message"], "the server is shutting down");
    assert_eq!(serving.exit_code(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_one_line() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = support::run(&["serve", "--device", "cpu", "-m", LLAMA, "--port", &port]);
    assert_eq!(output.status.code(), Some(1));
    let said = support::stderr(&output);
    assert!(said.starts_with(&format!("error: cannot listen at 127.0.0.1:{port}: ")), "{said}");
    assert!(said.contains("--port") && said.lines().count() == 2, "{said}");
}

#[test]
fn connections_are_encrypted() {
    let mut serving =
        Serving::start(&["-m", LLAMA, "--tls-cert", CERT, "--tls-key", KEY, "--log-level", "info"]);
    let client = &serving.client;
    assert!(client.base.starts_with("https://"), "{}", client.base);
    let body = json!({ "prompt": [1, 2], "temperature": 0, "max_tokens": 5, "ignore_eos": true,
                       "return_token_ids": true });
    let whole = client.ok("/v1/completions", &body);
    let ids = whole["choices"][0]["token_ids"].as_array().unwrap();
    let chunks = client.stream("/v1/completions", &body).rest();
    let streamed = chunks.iter().flat_map(|chunk| chunk["choices"][0]["token_ids"].as_array());
    assert!(ids.len() == 5 && streamed.flatten().eq(ids), "{chunks:?}");
    // Neither plain HTTP nor a client that trusts another is served.
    let plain = agent().get(client.base.replace("https", "http") + "/health").call();
    assert!(plain.is_err(), "{plain:?}");
    let idle = std::net::TcpStream::connect(client.base.trim_start_matches("https://")).unwrap();
    assert_eq!(client.get("/health").status, 200);
    serving.signal("TERM");
    // A handshake that never comes holds nothing up.
    assert_eq!(serving.exit_code(), Some(0));
    drop(idle);
    assert!(serving.log.lock().unwrap().contains("a TLS handshake failed"));
}

#[test]
fn certificates_and_keys_that_do_not_fit_are_refused() {
    for (cert, key, why) in [
        ("none.pem", KEY, "cannot read none.pem: No such file"),
        (CERT, "none.key", "cannot read none.key: No such file"),
        (KEY, KEY, "server.key has no certificate in PEM"),
        (CERT, CERT, "server.pem has no private key in PEM"),
        (CERT, OTHER_KEY, "other.key does not belong to the certificate of"),
    ] {
        let args = ["serve", "--device", "cpu", "-m", LLAMA, "--port", "0"];
        let output = support::run(&[&args[..], &["--tls-cert", cert, "--tls-key", key]].concat());
        let said = support::stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.starts_with("error: ") && said.contains(why), "{said}");
        assert!(said.lines().count() <= 2, "{said}");
    }
    for args in [&["--tls-cert", CERT][..], &["--tls-key", KEY], &["--cors-origin", "example.com"]]
    {
        let output = support::run(&[&["serve", "-m", LLAMA], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
}

/// What the server lets pages of `origin` do: of a preflight request, and of one for `/version`.
fn cors(client: &Client, origin: &str) -> [Option<String>; 2] {
    let allowed = |response: ureq::http::Response<ureq::Body>| {
        assert!(response.status().is_success() || response.status() == 405, "{response:?}");
        let value = response.headers().get("access-control-allow-origin");
        value.map(|value| value.to_str().unwrap().to_owned())
    };
    let preflight = agent()
        .options(format!("{}/v1/chat/completions", client.base))
        .header("Origin", origin)
        .header("Access-Control-Request-Method", "POST")
        .header("Access-Control-Request-Headers", "authorization,content-type,x-stainless-os");
    let simple = agent().get(format!("{}/version", client.base)).header("Origin", origin);
    [preflight.call(), simple.call()].map(|response| allowed(response.unwrap()))
}

#[test]
fn pages_of_other_origins_are_served_only_where_they_are_named() {
    let serving = Serving::start(&["-m", LLAMA]);
    assert_eq!(cors(&serving.client, "https://a.example"), [None, None]);
    let args = ["--cors-origin", "https://a.example", "--cors-origin", "http://b.example:3000"];
    let serving = Serving::start(&[&["-m", LLAMA, "--api-key", "x"], &args[..]].concat());
    for origin in ["https://a.example", "http://b.example:3000"] {
        assert_eq!(cors(&serving.client, origin), [Some(origin.into()), Some(origin.into())]);
    }
    for origin in ["http://a.example", "https://a.example:444", "http://b.example"] {
        assert_eq!(cors(&serving.client, origin), [None, None]);
    }
    let serving = Serving::start(&["-m", LLAMA, "--cors-origin", "*"]);
    assert_eq!(cors(&serving.client, "http://any"), [Some("*".into()), Some("*".into())]);
}

/// In this process, with an engine that takes as long to load as the test says.
#[test]
fn requests_are_refused_until_the_model_is_loaded() {
    let model = Arc::new(Model::open(LLAMA).unwrap());
    let options =
        ServerOptions { service: ServiceOptions { max_waiting: 1 }, ..ServerOptions::default() };
    let server = Server::bind("127.0.0.1:0", Arc::clone(&model), options).unwrap();
    let base = format!("http://{}", server.local_addr().unwrap());
    let client = Client { base, key: None };
    let (load, may_load) = mpsc::channel::<()>();
    let (stop, may_stop) = async_channel::bounded::<()>(1);
    let open = move || {
        may_load.recv().unwrap();
        let options = EngineOptions { device: Device::Cpu, ..EngineOptions::default() };
        Engine::new(model, options)
    };
    let running = thread::spawn(move || {
        server.run::<EngineError>(open, async move { may_stop.recv().await.unwrap() })
    });
    let body = json!({ "prompt": [1], "max_tokens": 2 });
    for path in ["/health", "/ready", "/v1/models"] {
        let reply = client.get(path);
        assert_eq!((reply.status, &*reply.message()), (503, "the model is loading"), "{path}");
    }
    assert_eq!(client.post("/v1/completions", &body).status, 503);
    assert_eq!(client.get("/metrics").status, 200);
    load.send(()).unwrap();
    client.wait_for("/ready", 200);
    client.ok("/v1/completions", &body);
    stop.send_blocking(()).unwrap();
    running.join().unwrap().unwrap();
}

#[test]
fn an_engine_that_cannot_be_opened_ends_the_server() {
    let output =
        support::run(&["serve", "--device", "cpu", "-m", LLAMA, "--port", "0", "-c", "513"]);
    assert_eq!(output.status.code(), Some(2));
    let said = support::stderr(&output);
    assert!(
        said.contains("error: a context of 513 positions: the model allows at most 512"),
        "{said}"
    );
}
