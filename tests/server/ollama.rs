//! Ollama's API: what ollama-python and langchain-ollama send, and whether they can read the answers
//! (`tests/fixtures/make_ollama.py`); what Open WebUI and editors ask for first.

use crate::client::{Client, Serving};
use crate::hub_server::{REPO, Server};
use crate::support::LLAMA;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/");

/// A server of the tiny model, with a hub's cache of its own.
fn serving(cache: &Path, more: &[(&str, &str)]) -> Serving {
    let model = format!("{FIXTURES}llama_server/model.gguf");
    let args = ["-m", &model, "-c", "2048", "--served-model-name", "Tiny-3.2-1B-Instruct"];
    let cache = [("HF_HOME", cache.to_str().unwrap()), ("HF_HUB_CACHE", "")];
    let serving = Serving::start_in(&args, &[&cache[..], more].concat());
    serving.client.wait_for("/health", 200);
    serving
}

fn names(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn clients_can_read_the_answers_to_their_calls() {
    let cache = tempfile::tempdir().unwrap();
    let serving = serving(cache.path(), &[]);
    let fixture = fs::read_to_string(format!("{FIXTURES}ollama.json")).unwrap();
    // A name of Ollama's library.
    let fixture: Value = serde_json::from_str(&fixture.replace("{model}", "tiny3.2:1b")).unwrap();
    let calls = fixture["calls"].as_array().unwrap();
    assert!(calls.len() > 25, "{}", calls.len());
    for call in calls {
        let (path, body) = (call["path"].as_str().unwrap(), &call["body"]);
        let reply = match call["method"].as_str().unwrap() {
            "GET" => serving.client.get(path),
            method => serving.client.run(method, path, body),
        };
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text);
        // Clients of streams read lines.
        let lines = reply.text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines: Vec<Value> = lines.collect();
        let schema = jsonschema::validator_for(&fixture["schemas"][path]).unwrap();
        for line in &lines {
            let errors: Vec<String> = schema.iter_errors(line).map(|it| it.to_string()).collect();
            assert!(errors.is_empty(), "{path} {body}: {line}: {errors:?}");
        }
        if path == "/api/chat" || path == "/api/generate" {
            answer(path, body, &lines);
        }
    }
    first_requests(&serving.client);
    texts(&serving.client);
    names_and_refusals(&serving.client);
}

/// What the schemas do not say: pieces are not done, and the last one has reasons and times.
fn answer(path: &str, body: &Value, lines: &[Value]) {
    let (last, pieces) = lines.split_last().unwrap();
    // Ollama streams unless it is told not to.
    assert!(pieces.is_empty() || body["stream"] != false, "{body}");
    for line in lines {
        assert_eq!(line["model"], body["model"]);
        let created = line["created_at"].as_str().unwrap();
        assert!(created.ends_with('Z') && created.contains('T'), "{created}");
        let text =
            if path == "/api/chat" { &line["message"]["content"] } else { &line["response"] };
        assert!(text.is_string(), "{line}");
    }
    assert!(pieces.iter().all(|piece| piece["done"] == false), "{lines:?}");
    assert_eq!(last["done"], true);
    if body["keep_alive"] == 0.0 {
        assert_eq!(last["done_reason"], "unload");
        return;
    }
    assert!(last["done_reason"] == "length" || last["done_reason"] == "stop", "{last}");
    let of = |name: &str| last[name].as_u64().unwrap_or_else(|| panic!("{name}: {last}"));
    let limit = body["options"]["num_predict"].as_u64().unwrap();
    assert!((1..=limit).contains(&of("eval_count")), "{last}");
    assert!(of("prompt_eval_count") > 0 && of("prompt_eval_duration") > 0, "{last}");
    assert!(of("total_duration") >= of("load_duration") + of("eval_duration"), "{last}");
    if body["logprobs"] == true {
        let logprobs = last["logprobs"].as_array().unwrap();
        assert_eq!(logprobs.len() as u64, of("eval_count"));
        assert!(logprobs.iter().all(|it| it["top_logprobs"].as_array().unwrap().len() == 2));
    }
}

/// Open WebUI asks for these, one after the other, and VS Code for the first three and for each model.
fn first_requests(client: &Client) {
    let version = client.get("/api/version").json();
    // Copilot wants 0.6.4 at least.
    let parts: Vec<u32> =
        version["version"].as_str().unwrap().split('.').map(|it| it.parse().unwrap()).collect();
    assert!(parts >= vec![0, 6, 4], "{version}");
    let tags = client.get("/api/tags").json();
    let model = &tags["models"][0];
    let known = ["name", "model", "modified_at", "size", "digest", "details"];
    assert!(names(model).is_superset(&known.into()), "{model}");
    assert_eq!(model["model"], "Tiny-3.2-1B-Instruct:latest");
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    let details = ["parent_model", "format", "family", "families", "parameter_size"];
    assert!(names(&model["details"]).is_superset(&details.into()), "{model}");
    assert_eq!(model["details"]["quantization_level"], "F32");
    let size = fs::metadata(format!("{FIXTURES}llama_server/model.gguf")).unwrap().len();
    assert_eq!(model["size"], size);
    let ps = client.get("/api/ps").json();
    assert_eq!(ps["models"][0]["model"], model["model"]);
    assert_eq!(ps["models"][0]["context_length"], 2048);
    assert!(client.get("/v1/models").json()["data"][0]["id"].is_string());
    assert_eq!(client.get("/").status, 200);
    let show = client.ok("/api/show", &json!({ "model": model["model"] }));
    let capabilities: Vec<&str> =
        show["capabilities"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert_eq!(capabilities, ["completion", "tools", "insert"]);
    let info = &show["model_info"];
    assert_eq!(info["general.architecture"], "llama");
    assert_eq!(info["llama.context_length"], 4096);
    assert_eq!(info["tokenizer.ggml.tokens"], json!(null));
    let all = client.ok("/api/show", &json!({ "name": model["model"], "verbose": true }));
    assert_eq!(all["model_info"]["tokenizer.ggml.tokens"][1], "<s>");
}

/// The texts are those of the other APIs.
fn texts(client: &Client) {
    let messages = json!([{ "role": "user", "content": "fn a" }]);
    let openai = client.ok(
        "/v1/chat/completions",
        &json!({ "messages": messages, "temperature": 0, "max_tokens": 9 }),
    );
    let wanted = openai["choices"][0]["message"]["content"].as_str().unwrap();
    let options = json!({ "temperature": 0, "num_predict": 9 });
    let body = json!({ "model": "tiny3.2", "messages": messages, "options": options });
    let streamed: String = client
        .post("/api/chat", &body)
        .text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| line["message"]["content"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(streamed, wanted);
    let generate = |more: Value| {
        let mut body = json!({ "model": "tiny3.2", "stream": false, "options": options });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.ok("/api/generate", &body)
    };
    let turn = generate(json!({ "prompt": "fn a" }));
    assert_eq!(turn["response"], wanted);
    // The tokens of a turn begin the next one.
    let context = turn["context"].as_array().unwrap();
    assert_eq!(context.len() as u64, turn["prompt_eval_count"].as_u64().unwrap() + 9);
    let next = generate(json!({ "prompt": "b", "context": context }));
    assert!(next["prompt_eval_count"].as_u64().unwrap() > context.len() as u64);
    let raw = generate(json!({ "prompt": "fn a", "raw": true }));
    let completion = client
        .ok("/v1/completions", &json!({ "prompt": "fn a", "temperature": 0, "max_tokens": 9 }));
    assert_eq!(raw["response"], completion["choices"][0]["text"]);
    assert!(raw["context"].is_null());
    let gap = generate(json!({ "prompt": "fn a(b) {\n", "suffix": "}\n" }));
    let infill = json!({ "input_prefix": "fn a(b) {\n", "input_suffix": "}\n", "temperature": 0,
        "n_predict": 9 });
    assert_eq!(gap["response"], client.ok("/infill", &infill)["content"]);
    let embed = client.ok("/api/embed", &json!({ "model": "tiny3.2", "input": ["fn a", "b"] }));
    let openai = client.ok("/v1/embeddings", &json!({ "input": "fn a" }));
    assert_eq!(embed["embeddings"][0], openai["data"][0]["embedding"]);
    let short = json!({ "model": "tiny3.2", "input": "fn a", "dimensions": 3 });
    let short = client.ok("/api/embed", &short)["embeddings"][0].clone();
    let numbers: Vec<f64> = serde_json::from_value(short).unwrap();
    let length: f64 = numbers.iter().map(|it| it * it).sum();
    assert!(numbers.len() == 3 && (length - 1.0).abs() < 1e-5, "{numbers:?}");
    let schema = json!({ "type": "object", "properties": { "a": { "enum": [1] } },
        "required": ["a"], "additionalProperties": false });
    let body =
        json!({ "model": "tiny3.2", "messages": messages, "format": schema, "stream": false });
    let answer = client.ok("/api/chat", &body);
    assert_eq!(answer["message"]["content"], "{\"a\":1}");
    assert_eq!(answer["done_reason"], "stop");
}

fn names_and_refusals(client: &Client) {
    let ask = |model: &str| client.post("/api/chat", &json!({ "model": model, "messages": [] }));
    for name in ["Tiny-3.2-1B-Instruct", "tiny-3.2-1b-instruct:latest", "tiny3.2:1b"] {
        let reply = ask(name);
        assert_eq!(reply.json()["done_reason"], "load", "{name}: {}", reply.text);
    }
    let error = |reply: &crate::client::Reply| reply.json()["error"].as_str().unwrap().to_owned();
    let unknown = ask("qwen3:8b");
    assert_eq!(unknown.status, 404);
    assert!(error(&unknown).contains("halfwarp pull"), "{}", unknown.text);
    assert_eq!(ask("").status, 400);
    let of = |method: &str, path: &str, body: Value| client.run(method, path, &body);
    let copy = |to: &str| json!({ "source": "tiny3.2:1b", "destination": to });
    assert_eq!(of("POST", "/api/copy", copy("gpt-4")).status, 200);
    assert_eq!(ask("gpt-4").status, 200);
    assert_eq!(ask("gpt-4:latest").status, 200);
    let tags = client.get("/api/tags").text;
    assert!(tags.contains("gpt-4:latest"), "{tags}");
    assert_eq!(of("DELETE", "/api/delete", json!({ "model": "gpt-4" })).status, 200);
    assert_eq!(ask("gpt-4").status, 404);
    let images = json!([{ "role": "user", "content": "x", "images": ["aGk="] }]);
    for (path, body, status, why) in [
        ("/api/create", json!({ "model": "x", "from": "y" }), 501, "Modelfiles are not read"),
        ("/api/push", json!({ "model": "x" }), 501, "Modelfiles are not read"),
        ("/api/pull", json!({ "model": "qwen3:8b" }), 400, "Ollama's library"),
        (
            "/api/generate",
            json!({ "model": "tiny3.2", "prompt": "x", "template": "{{ .Prompt }}" }),
            400,
            "--chat-template",
        ),
        (
            "/api/generate",
            json!({ "model": "tiny3.2", "prompt": "x", "images": ["aGk="] }),
            400,
            "images",
        ),
        ("/api/chat", json!({ "model": "tiny3.2", "messages": images }), 400, "images"),
        (
            "/api/chat",
            json!({ "model": "tiny3.2", "messages": [], "keep_alive": "soon" }),
            400,
            "keep_alive",
        ),
        (
            "/api/chat",
            json!({ "model": "tiny3.2", "messages": [], "format": "xml" }),
            400,
            "format",
        ),
        (
            "/api/generate",
            json!({ "model": "tiny3.2", "prompt": "x", "options": { "num_ctx": 4096 } }),
            400,
            "num_ctx",
        ),
        (
            "/api/generate",
            json!({ "model": "tiny3.2", "prompt": "x", "options": { "wings": 2 } }),
            400,
            "wings",
        ),
        ("/api/show", json!({}), 400, "model"),
        ("/api/nothing", json!({}), 404, "path"),
    ] {
        let reply = client.post(path, &body);
        assert_eq!(reply.status, status, "{path} {body}: {}", reply.text);
        assert!(error(&reply).contains(why), "{path} {body}: {}", reply.text);
    }
    let served = of("DELETE", "/api/delete", json!({ "name": "tiny3.2" }));
    assert!(served.status == 400 && error(&served).contains("stop it first"), "{}", served.text);
    assert_eq!(of("DELETE", "/api/delete", json!({ "model": "org/none" })).status, 404);
}

#[test]
fn a_model_is_pulled_listed_and_deleted() {
    let file = |name: &str| fs::read(Path::new(LLAMA).join(name)).unwrap();
    let (config, weights) = (file("config.json"), file("model.safetensors"));
    let hub = Server::new(&[("config.json", &config[..]), ("model.safetensors", &weights[..])]);
    let cache = tempfile::tempdir().unwrap();
    let serving = serving(cache.path(), &[("HF_ENDPOINT", &hub.url)]);
    let client = &serving.client;
    let models = || {
        let tags = client.get("/api/tags").json();
        let name = |model: &Value| model["name"].as_str().unwrap().to_owned();
        tags["models"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(models().len(), 1);
    let name = format!("hf.co/{REPO}");
    let lines = client.post("/api/pull", &json!({ "model": name })).text;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({ "status": "pulling manifest" }));
    assert_eq!(lines.last().unwrap(), &json!({ "status": "success" }));
    let whole = lines.iter().filter(|line| line["digest"].is_string());
    let total: BTreeSet<u64> = whole
        .filter(|line| line["completed"] == line["total"])
        .map(|line| line["total"].as_u64().unwrap())
        .collect();
    assert!(total.contains(&(weights.len() as u64)), "{lines:?}");
    assert_eq!(models()[1], format!("{REPO}:latest"));
    // It is there, and another one is served.
    let other = client.post("/api/chat", &json!({ "model": REPO, "messages": [] }));
    assert_eq!(other.status, 404);
    assert!(other.text.contains(&format!("halfwarp serve -m {REPO}")), "{}", other.text);
    let again = client.ok("/api/pull", &json!({ "model": name, "stream": false }));
    assert_eq!(again, json!({ "status": "success" }));
    let missing = client.post("/api/pull", &json!({ "model": "org/none", "stream": false }));
    assert!(missing.status == 400 && missing.text.contains("org/none"), "{}", missing.text);
    assert_eq!(client.run("DELETE", "/api/delete", &json!({ "model": name })).status, 200);
    assert_eq!(models().len(), 1);
    assert!(
        fs::read_dir(cache.path().join("hub"))
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_str().unwrap().starts_with("models--") })
    );
}

/// Where anyone can reach the server, nobody fills its disk.
#[test]
fn models_are_managed_on_this_machine_or_with_a_key() {
    let model = format!("{FIXTURES}llama_server/model.gguf");
    let serving = Serving::start(&["-m", &model, "--host", "0.0.0.0"]);
    for (method, path) in [("POST", "/api/pull"), ("DELETE", "/api/delete"), ("POST", "/api/copy")]
    {
        let reply = serving.client.run(method, path, &json!({ "model": "org/model" }));
        assert_eq!(reply.status, 403, "{path}: {}", reply.text);
        assert!(reply.text.contains("--api-key"), "{}", reply.text);
    }
}
