//! Many models behind one server: each API reaches each of them, and swaps leave nothing.

use crate::client::{Client, Reply, Serving};
use crate::support::{self, LLAMA, QWEN3, generate_json};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

pub const GGUF: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/llama_server/model.gguf");

/// `alpha.gguf` and `beta.gguf`, which have tokenizers and other weights, and the directories
/// `llama` and `qwen`.
pub fn models() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(GGUF).unwrap();
    fs::write(dir.path().join("alpha.gguf"), &bytes).unwrap();
    let len = bytes.len();
    bytes[len - len / 3..].fill(0);
    fs::write(dir.path().join("beta.gguf"), &bytes).unwrap();
    for (name, golden) in [("llama", LLAMA), ("qwen", QWEN3)] {
        fs::create_dir(dir.path().join(name)).unwrap();
        for file in ["config.json", "generation_config.json", "model.safetensors"] {
            fs::copy(Path::new(golden).join(file), dir.path().join(name).join(file)).unwrap();
        }
    }
    dir
}

/// A server of these models and no others.
pub fn serving(dir: &Path, args: &[&str]) -> Serving {
    let none = dir.join("none");
    let none = none.to_str().unwrap();
    let caches = [("HF_HOME", none), ("HF_HUB_CACHE", ""), ("HALFWARP_CACHE", none)];
    let models = ["--models-dir", dir.to_str().unwrap()];
    let serving = Serving::start_in(&[&models[..], args].concat(), &caches);
    serving.client.wait_for("/ready", 200);
    serving
}

/// What `generate` says of a model.
pub fn generated(model: &Path, prompt: &[&str]) -> String {
    let model = ["-m", model.to_str().unwrap(), "--temp", "0", "-n", "6"];
    generate_json(&[&model[..], prompt].concat())["text"].as_str().unwrap().to_owned()
}

fn state(client: &Client, name: &str) -> String {
    let list = client.get("/v1/models").json();
    let models = list["data"].as_array().unwrap();
    let model = models.iter().find(|model| model["id"] == name);
    let model = model.unwrap_or_else(|| panic!("{name}: {list}"));
    model["status"]["value"].as_str().unwrap().to_owned()
}

fn wait_for_state(client: &Client, name: &str, wanted: &str) {
    while state(client, name) != wanted {
        thread::sleep(Duration::from_millis(10));
    }
}

/// The sum of a metric of a model.
fn metric(client: &Client, metric: &str, model: &str) -> f64 {
    let text = client.get("/metrics").text;
    let begin = format!("halfwarp:{metric}{{model_name=\"{model}\"");
    let lines = text.lines().filter(|line| line.starts_with(&begin));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[test]
fn every_api_reaches_every_model() {
    let dir = models();
    let serving = serving(dir.path(), &["-c", "256"]);
    let client = &serving.client;
    let names: Vec<String> = client.get("/models").json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["alpha", "beta", "llama", "qwen"]);
    let question = "What is this?";
    let messages = json!([{ "role": "user", "content": question }]);
    let mut texts = Vec::new();
    for name in ["alpha", "beta"] {
        let path = dir.path().join(format!("{name}.gguf"));
        let wanted = generated(&path, &["--chat", "-p", question]);
        let body =
            json!({ "model": name, "messages": messages, "max_tokens": 6, "temperature": 0 });
        let chat = client.ok("/v1/chat/completions", &body);
        assert_eq!(
            (&chat["model"], &chat["choices"][0]["message"]["content"]),
            (&json!(name), &json!(wanted))
        );
        let chunks = client.stream("/v1/chat/completions", &body).rest();
        assert_eq!(crate::client::deltas(&chunks), wanted);
        let message = client.ok("/v1/messages", &body);
        assert_eq!(message["content"][0]["text"], wanted);
        let response = client.ok(
            "/v1/responses",
            &json!({ "model": name, "input": question, "max_output_tokens": 6, "temperature": 0 }),
        );
        assert_eq!(response["output"][0]["content"][0]["text"], wanted, "{response}");
        let options = json!({ "temperature": 0, "num_predict": 6 });
        let ollama = client.ok(
            "/api/chat",
            &json!({ "model": name, "messages": messages, "stream": false, "options": options }),
        );
        assert_eq!(ollama["message"]["content"], wanted);
        let native = client.ok(
            "/completion",
            &json!({ "model": name, "prompt": question, "n_predict": 6, "temperature": 0 }),
        );
        assert_eq!(native["content"], generated(&path, &["-p", question]));
        let tokens = client.ok("/tokenize", &json!({ "model": name, "content": question }));
        assert!(tokens["tokens"].is_array(), "{tokens}");
        assert_eq!(client.get(&format!("/props?model={name}")).json()["model_alias"], name);
        let show = client.ok("/api/show", &json!({ "model": name }));
        assert_eq!(show["details"]["format"], "gguf");
        assert!(metric(client, "generation_tokens_total", name) >= 30.0);
        texts.push(wanted);
    }
    assert_ne!(texts[0], texts[1], "the models are told apart");
    assert_eq!(metric(client, "generation_tokens_total", "llama"), 0.0);
    unknown_names(client);
}

/// Each API says in its own way that there is no such model; no name is a path.
fn unknown_names(client: &Client) {
    let long = "x".repeat(100_000);
    let hostile = ["../..", "/etc/passwd", "../alpha", "alpha\0", "a/../../b", "none", &long];
    for name in hostile {
        let messages = json!([{ "role": "user", "content": "Hi" }]);
        let chat = json!({ "model": name, "messages": messages, "max_tokens": 1 });
        let openai = client.post("/v1/chat/completions", &chat);
        assert_eq!(
            (openai.status, openai.json()["error"]["code"].as_str()),
            (404, Some("model_not_found"))
        );
        assert!(openai.message().len() < 400, "{}", openai.message());
        let anthropic = client.post("/v1/messages", &chat);
        assert_eq!(anthropic.status, 404);
        assert_eq!(anthropic.json()["error"]["type"], "not_found_error");
        for path in ["/api/chat", "/api/show", "/api/embed"] {
            let ollama = client.post(path, &json!({ "model": name }));
            assert_eq!(ollama.status, 404, "{path}: {}", ollama.text);
            assert!(ollama.json()["error"].as_str().unwrap().contains("not found"));
        }
        for path in ["/completion", "/models/load", "/models/unload"] {
            let body = match path {
                "/completion" => json!({ "model": name, "prompt": "x" }),
                _ => json!({ "model": name }),
            };
            let native = client.post(path, &body);
            assert_eq!(native.status, 404, "{path}: {}", native.text);
        }
    }
    let several = client.post("/v1/completions", &json!({ "prompt": [1], "max_tokens": 1 }));
    assert_eq!((several.status, several.json()["error"]["param"].as_str()), (400, Some("model")));
    assert_eq!(client.post("/api/chat", &json!({ "messages": [] })).status, 400);
    assert_eq!(client.post("/v1/completions", &json!({ "model": 3, "prompt": [1] })).status, 400);
}

/// Threads of a process.
fn num_threads(serving: &Serving) -> usize {
    fs::read_dir(format!("/proc/{}/task", serving.child.id())).map_or(0, Iterator::count)
}

#[test]
fn swaps_lose_no_request_and_leave_no_thread() {
    let dir = models();
    let serving = serving(dir.path(), &["-c", "64", "--models-max", "1", "--keep-alive", "-1"]);
    let client = &serving.client;
    let ask = |name: &str| {
        let body = json!({ "model": name, "prompt": [1, 2, 3], "max_tokens": 5,
                           "temperature": 0, "return_token_ids": true, "ignore_eos": true });
        client.ok("/v1/completions", &body)["choices"][0]["token_ids"].clone()
    };
    let oracle = |golden| {
        let args = ["-m", golden, "--tokens", "1,2,3", "-n", "5", "--temp", "0", "--ignore-eos"];
        generate_json(&args)["tokens"].clone()
    };
    let wanted = [("llama", oracle(LLAMA)), ("qwen", oracle(QWEN3))];
    for (name, tokens) in &wanted {
        assert_eq!(ask(name), *tokens, "{name}");
    }
    wait_for_state(client, "llama", "unloaded");
    let before = num_threads(&serving);
    thread::scope(|scope| {
        for start in 0..4 {
            let (ask, wanted) = (&ask, &wanted);
            scope.spawn(move || {
                for turn in start..start + 10 {
                    let (name, tokens) = &wanted[turn % 2];
                    assert_eq!(ask(name), *tokens, "{name}");
                }
            });
        }
    });
    let loaded = || ["llama", "qwen"].map(|name| metric(client, "model_loaded", name));
    while loaded().iter().sum::<f64>() > 1.0 {
        thread::sleep(Duration::from_millis(10));
    }
    // Threads of the server itself come and go with its requests.
    assert!(num_threads(&serving) <= before + 8, "{before} {}", num_threads(&serving));
    let served = ["llama", "qwen"].map(|name| metric(client, "request_success_total", name));
    assert_eq!(served, [21.0, 21.0]);
}

/// Memory of a process that is of no file, in MiB; 0 where the system does not say.
fn anonymous_mib(serving: &Serving) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", serving.child.id()));
    let status = status.unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    kib.map_or(0, |kib| kib.trim().trim_end_matches(" kB").parse::<usize>().unwrap() / 1024)
}

#[test]
fn memory_after_swaps_under_load_is_as_before() {
    let dir = models();
    let none = dir.path().join("none");
    let caches = [("HF_HOME", none.to_str().unwrap()), ("HF_HUB_CACHE", "")];
    let args = ["--models-dir", dir.path().to_str().unwrap(), "-c", "64", "--models-max", "1"];
    let serving = Serving::start_in(&args, &caches);
    let client = &serving.client;
    client.wait_for("/ready", 200);
    // One of them is as large as those that are used.
    let names = ["llama", "smollm2-135m-instruct", "qwen"];
    let ask = |name: &str| {
        let body = json!({ "model": name, "prompt": [1, 2, 3], "max_tokens": 4,
                           "temperature": 0, "return_token_ids": true, "ignore_eos": true });
        client.ok("/v1/completions", &body)["choices"][0]["token_ids"].clone()
    };
    let unload_all = || {
        for name in names {
            client.post("/models/unload", &json!({ "model": name }));
            wait_for_state(client, name, "unloaded");
        }
        anonymous_mib(&serving)
    };
    let wanted = names.map(ask);
    let before = unload_all();
    thread::scope(|scope| {
        for start in 0..4 {
            let (ask, wanted) = (&ask, &wanted);
            scope.spawn(move || {
                for turn in start..start + 12 {
                    assert_eq!(ask(names[turn % 3]), wanted[turn % 3], "{}", names[turn % 3]);
                }
            });
        }
    });
    let log = serving.log.lock().unwrap().clone();
    let num_swaps = log.matches(" with a context of ").count();
    assert!(num_swaps > 15, "{num_swaps} swaps");
    let after = unload_all();
    // The server itself takes 5 MiB; what glibc keeps by itself is 50, and more after each load.
    assert!(before.max(after) < 40, "{before} MiB, {after} MiB after {num_swaps} swaps");
}

#[test]
fn models_are_loaded_and_unloaded_by_name() {
    let dir = models();
    let serving = serving(dir.path(), &["-c", "64", "--no-models-autoload"]);
    let client = &serving.client;
    let completion = json!({ "model": "llama", "prompt": [1], "max_tokens": 1 });
    let refused = client.post("/v1/completions", &completion);
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (400, Some("model_not_loaded"))
    );
    assert_eq!(client.ok("/models/load", &json!({ "model": "llama" })), json!({ "success": true }));
    wait_for_state(client, "llama", "loaded");
    assert_eq!(client.post("/models/load", &json!({ "model": "llama" })).status, 400);
    client.ok("/v1/completions", &completion);
    let card = client.get("/v1/models/llama").json();
    assert_eq!((&card["max_model_len"], &card["meta"]["n_ctx"]), (&json!(64), &json!(64)));
    let ps = client.get("/api/ps").json();
    assert_eq!(ps["models"].as_array().unwrap().len(), 1);
    assert_eq!(ps["models"][0]["name"], "llama:latest");
    assert!(ps["models"][0]["size_vram"].as_u64().unwrap() > 0);
    assert_eq!(client.get("/api/tags").json()["models"].as_array().unwrap().len(), 4);
    client.ok("/models/unload", &json!({ "model": "llama" }));
    wait_for_state(client, "llama", "unloaded");
    assert_eq!(client.get("/api/ps").json(), json!({ "models": [] }));
    let again = client.post("/models/unload", &json!({ "model": "llama" }));
    assert_eq!((again.status, again.message()), (400, "the model llama is not loaded".to_owned()));
    // Other names.
    client.ok("/api/copy", &json!({ "source": "llama", "destination": "other" }));
    client.ok("/models/load", &json!({ "model": "other" }));
    wait_for_state(client, "llama", "loaded");
    let loaded = client.run("DELETE", "/api/delete", &json!({ "model": "llama" }));
    assert_eq!(loaded.status, 400, "{}", loaded.text);
    let file = client.run("DELETE", "/api/delete", &json!({ "model": "qwen" }));
    assert!(file.text.contains("not in the hub's cache"), "{}", file.text);
    assert!(dir.path().join("qwen/model.safetensors").exists());
}

#[test]
fn ollamas_clients_say_how_long_a_model_stays() {
    let dir = models();
    let serving = serving(dir.path(), &["-c", "256", "--keep-alive", "-1"]);
    let client = &serving.client;
    let ask = |keep_alive: Value| {
        client.ok(
            "/api/generate",
            &json!({ "model": "alpha", "prompt": "Hi", "stream": false, "raw": true,
                     "options": { "num_predict": 2 }, "keep_alive": keep_alive }),
        )
    };
    let expires = || client.get("/api/ps").json()["models"][0]["expires_at"].clone();
    ask(json!(null));
    assert!(expires().as_str().unwrap().starts_with("2318-"), "{}", expires());
    ask(json!("10m"));
    assert!(!expires().as_str().unwrap().starts_with("2318-"), "{}", expires());
    ask(json!(0));
    wait_for_state(client, "alpha", "unloaded");
    // Without a prompt it is only loaded, and only unloaded.
    let load = client.ok("/api/generate", &json!({ "model": "alpha", "stream": false }));
    assert_eq!((&load["done_reason"], state(client, "alpha").as_str()), (&json!("load"), "loaded"));
    let unload =
        client.ok("/api/generate", &json!({ "model": "alpha", "stream": false, "keep_alive": 0 }));
    assert_eq!(unload["done_reason"], "unload");
    wait_for_state(client, "alpha", "unloaded");
}

#[test]
fn a_preset_has_the_settings_of_each_model() {
    let dir = models();
    let preset = dir.path().join("preset.toml");
    let text = format!(
        "[\"*\"]\nctx-size = 128\n[alpha]\nalias = \"first\"\nload-on-startup = true\npin = true\n\
         chat-template = \"{{{{ messages[0].content }}}}!\"\n\
         [elsewhere]\nmodel = {LLAMA:?}\nctx-size = 32\nn-predict = 1\n"
    );
    // An option of no server is refused, and named.
    fs::write(&preset, &text).unwrap();
    let args = ["serve", "--device", "cpu", "--models-preset", preset.to_str().unwrap()];
    let refused = support::run(&args);
    let said = support::stderr(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("preset.toml: [elsewhere] "), "{said}");
    fs::write(&preset, text.replace("n-predict = 1", "port = 1")).unwrap();
    let said = support::stderr(&support::run(&args));
    assert!(said.contains("[elsewhere] port: this is of the whole server"), "{said}");
    fs::write(&preset, text.replace("n-predict = 1", "temp = -1")).unwrap();
    assert_eq!(support::run(&args).status.code(), Some(2));

    fs::write(&preset, text.replace("n-predict = 1\n", "")).unwrap();
    let serving = serving(
        dir.path(),
        &["--models-preset", preset.to_str().unwrap(), "--models-max", "1", "-c", "512"],
    );
    let client = &serving.client;
    wait_for_state(client, "alpha", "loaded");
    let card = client.get("/v1/models/first").json();
    assert_eq!((&card["id"], &card["max_model_len"]), (&json!("alpha"), &json!(128)));
    let body = json!({ "model": "first", "messages": [{ "role": "user", "content": "Hi" }] });
    assert_eq!(client.ok("/apply-template", &body)["prompt"], "Hi!");
    // The only place is pinned.
    let completion = json!({ "model": "elsewhere", "prompt": [1], "max_tokens": 1 });
    let refused = client.post("/v1/completions", &completion);
    assert_eq!((refused.status, refused.retry_after), (503, true), "{}", refused.text);
    assert!(refused.message().contains("pinned models have all places (alpha)"));
    client.ok("/models/unload", &json!({ "model": "alpha" }));
    wait_for_state(client, "alpha", "unloaded");
    client.ok("/v1/completions", &completion);
    assert_eq!(client.get("/v1/models/elsewhere").json()["max_model_len"], 32);
}

#[test]
fn what_does_not_fit_is_a_503_that_says_what_would() {
    let dir = models();
    let serving = serving(dir.path(), &["-c", "64", "--gpu-memory-utilization", "0.000001"]);
    let refused = |client: &Client| -> Reply {
        client.post("/v1/completions", &json!({ "model": "llama", "prompt": [1] }))
    };
    let refused = refused(&serving.client);
    assert_eq!((refused.status, refused.retry_after), (503, true), "{}", refused.text);
    assert_eq!(refused.json()["error"]["code"], "model_does_not_fit");
    assert!(refused.message().contains("would fit"), "{}", refused.message());
    let card = serving.client.get("/v1/models/llama").json();
    assert_eq!(
        (&card["status"]["value"], &card["status"]["failed"]),
        (&json!("unloaded"), &json!(true))
    );
}

#[test]
fn a_server_of_one_model_loads_no_other() {
    let output = support::run(&["serve", "-m", LLAMA, "--models-max", "2"]);
    assert_eq!(output.status.code(), Some(2));
    let serving = Serving::start(&["-m", LLAMA]);
    let refused = serving.client.post("/models/load", &json!({ "model": "llama-gqa" }));
    assert_eq!(refused.status, 501, "{}", refused.text);
    let list = serving.client.get("/v1/models").json();
    assert_eq!(list["data"][0]["status"]["value"], "loaded");
}
