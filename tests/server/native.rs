//! llama.cpp's own API, beside llama-server's answers to the same requests
//! (`tests/fixtures/make_llama_server.py`).

use crate::client::{Client, Serving, reply};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/llama_server/");

/// Fields that are left out, with the reason.
const NOT_HERE: [&str; 8] = [
    // Of settings that requests here cannot have.
    "adaptive_target",
    "grammar",
    "chat_format",
    "speculative.types",
    "backend_sampling",
    "lora",
    "logit_bias",
    "dry_sequence_breakers",
];

fn answers() -> Vec<Value> {
    let file = std::fs::read(format!("{FIXTURES}answers.json")).unwrap();
    serde_json::from_slice(&file).unwrap()
}

fn names(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

/// What depends on the machine, on the cache or on how an answer is drawn.
fn stable(answer: &Value) -> Map<String, Value> {
    let names = ["content", "tokens", "stop", "tokens_predicted", "tokens_evaluated", "prompt"];
    let more =
        ["has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached", "index"];
    let object = answer.as_object().unwrap();
    let stable = object.iter().filter(|(name, _)| [names, more].concat().contains(&&***name));
    stable.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The beginning of the sequence, which llama-server has after other files, is here before them.
fn with_bos_first(answer: &mut Map<String, Value>) {
    if let Some(Value::String(prompt)) = answer.get_mut("prompt")
        && let Some((files, gap)) = prompt.split_once("<s><|fim_prefix|>")
    {
        *prompt = format!("<s>{files}<|fim_prefix|>{gap}");
    }
}

fn serving() -> Serving {
    let model = format!("{FIXTURES}model.gguf");
    let args = ["-m", &model, "-c", "1024", "--dtype", "f32", "--served-model-name", "tiny"];
    Serving::start(&args)
}

#[test]
fn answers_are_llama_servers() {
    let serving = serving();
    let client = &serving.client;
    for it in answers() {
        let (path, request, wanted) = (it["path"].as_str().unwrap(), &it["request"], &it["answer"]);
        if let Some(chunks) = it["chunks"].as_array() {
            streamed(client, path, request, chunks);
            continue;
        }
        let answer = match request {
            Value::Null => client.get(path).json(),
            // The one answer that is another on purpose: an embedding has the length 1.
            request if request["embd_normalize"] == -1 => {
                assert_eq!(client.post(path, request).status, 400);
                continue;
            }
            request => client.ok(path, request),
        };
        match path {
            "/completion" | "/completions" | "/infill" => {
                completion(path, request, &answer, wanted);
            }
            "/tokenize" | "/apply-template" | "/health" => assert_eq!(&answer, wanted, "{request}"),
            "/detokenize" => assert_eq!(answer["content"], wanted["content"]),
            "/embedding" => embedding(&answer, wanted),
            "/props" => props(&answer, wanted),
            "/slots" => {
                let known = ["id", "n_ctx", "speculative", "is_processing"];
                assert_eq!(names(&answer[0]), BTreeSet::from(known), "{answer}");
                assert_eq!(answer[0]["is_processing"], false);
            }
            "/v1/models" => {
                for name in ["n_vocab", "n_ctx", "n_ctx_train", "n_embd"] {
                    let meta = |models: &Value| models["data"][0]["meta"][name].clone();
                    assert_eq!(meta(&answer), meta(wanted), "{name}");
                }
            }
            other => panic!("{other}"),
        }
    }
    keystrokes_find_the_prompt_in_the_cache(client);
    samplers_change_the_answer(client);
    gaps_of_other_apis(client);
    refusals(client);
}

fn completion(path: &str, request: &Value, answer: &Value, wanted: &Value) {
    if let (Some(answers), Some(wanted)) = (answer.as_array(), wanted.as_array()) {
        assert_eq!(answers.len(), wanted.len());
        answers.iter().zip(wanted).for_each(|(own, wanted)| completion(path, request, own, wanted));
        return;
    }
    if request.get("response_fields").is_some() {
        assert_eq!(names(answer), names(wanted), "{request}");
        if path == "/completion" {
            assert_eq!(answer["content"], wanted["content"]);
        }
        return;
    }
    let missing: Vec<&str> = names(wanted).difference(&names(answer)).copied().collect();
    assert_eq!(missing, [] as [&str; 0], "{request}");
    let settings = |answer: &Value| answer["generation_settings"].clone();
    for (name, value) in settings(wanted).as_object().unwrap() {
        let own = &settings(answer)[name];
        let is_same = match (own.as_f64(), value.as_f64()) {
            (Some(own), Some(value)) => (own - value).abs() < 1e-6,
            _ => own == value,
        };
        // What a list of samplers leaves out is off here, and still told by llama-server.
        let is_off = !request["samplers"].is_null();
        let is_drawn = name == "seed" || name == "samplers" || own.is_null() || is_off;
        assert!(is_same || is_drawn || NOT_HERE.contains(&&**name), "{name}: {own} for {value}");
    }
    assert_eq!(names(&answer["timings"]), names(&wanted["timings"]));
    let (mut own, mut llama_cpps) = (stable(answer), stable(wanted));
    with_bos_first(&mut llama_cpps);
    let is_fully_drawn = request["temperature"] != 0;
    if path == "/infill" {
        // The prompts differ by the place of one token, and what follows with them; the answer to no prediction is empty
        // here.
        let drawn = ["content", "tokens_predicted", "stop_type", "tokens_cached", "has_new_line"];
        drawn.iter().for_each(|name| drop((own.remove(*name), llama_cpps.remove(*name))));
    }
    assert!(!is_fully_drawn || path == "/infill");
    assert_eq!(own, llama_cpps, "{request}");
    if let Some(wanted) = wanted["completion_probabilities"].as_array() {
        let own = answer["completion_probabilities"].as_array().unwrap();
        assert_eq!(own.len(), wanted.len());
        for (own, wanted) in own.iter().zip(wanted) {
            probabilities(own, wanted);
            let tops = [own, wanted].map(|it| it["top_logprobs"].as_array().unwrap());
            assert_eq!(tops[0].len(), tops[1].len());
            tops[0].iter().zip(tops[1]).for_each(|(own, wanted)| probabilities(own, wanted));
        }
    }
}

/// llama-server cuts the text of a token that is part of a character.
fn probabilities(own: &Value, wanted: &Value) {
    assert_eq!((&own["id"], &own["bytes"]), (&wanted["id"], &wanted["bytes"]));
    assert!(own["token"].is_string());
    let [own, wanted] = [own, wanted].map(|it| it["logprob"].as_f64().unwrap());
    assert!((own - wanted).abs() < 0.01, "{own} for {wanted}");
}

fn streamed(client: &Client, path: &str, request: &Value, wanted: &[Value]) {
    let events = client.stream(path, request);
    let chunks: Vec<Value> = events.map(|event| serde_json::from_str(&event).unwrap()).collect();
    assert_eq!(chunks.len(), wanted.len(), "{chunks:?}");
    for (own, wanted) in chunks.iter().zip(wanted) {
        assert_eq!(stable(own), stable(wanted));
    }
}

fn embedding(answer: &Value, wanted: &Value) {
    let numbers = |value: &Value| -> Vec<f64> {
        let vector = value[0]["embedding"][0].as_array().unwrap();
        vector.iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let (own, wanted) = (numbers(answer), numbers(wanted));
    let cosine: f64 = own.iter().zip(&wanted).map(|(a, b)| a * b).sum();
    assert!(own.len() == wanted.len() && cosine > 0.999, "{cosine}");
}

fn props(answer: &Value, wanted: &Value) {
    for name in ["model_alias", "chat_template", "bos_token", "eos_token", "is_sleeping"] {
        assert_eq!(answer[name], wanted[name], "{name}");
    }
    let settings = |props: &Value| props["default_generation_settings"].clone();
    assert_eq!(settings(answer)["n_ctx"], settings(wanted)["n_ctx"]);
    for name in ["temperature", "top_k", "top_p", "min_p"] {
        let of = |props: &Value| settings(props)["params"][name].as_f64().unwrap();
        assert!((of(answer) - of(wanted)).abs() < 1e-6, "{name}");
    }
    assert!(answer["total_slots"].as_u64().unwrap() > 0);
    assert_eq!(answer["model_path"], "model.gguf");
}

/// What comes before the cursor is computed once, also where a long file is cut.
fn keystrokes_find_the_prompt_in_the_cache(client: &Client) {
    let file = "let a = fn(b);\n".repeat(200);
    let typed = "return a";
    let mut cached = Vec::new();
    for end in 1..=typed.len() {
        let body = json!({
            "input_prefix": file, "input_suffix": "}\n", "prompt": typed[..end], "n_predict": 2,
            "temperature": 0, "response_fields": ["tokens_evaluated", "timings/cache_n", "truncated"],
        });
        let answer = client.ok("/infill", &body);
        let of = |name: &str| answer[name].as_u64().unwrap();
        assert!(of("tokens_evaluated") <= 1022, "{answer}");
        assert!(of("tokens_evaluated") > 700, "{answer}");
        cached.push(of("timings/cache_n"));
    }
    let found = cached.iter().filter(|&&cached| cached > 600).count();
    assert!(found + 1 >= cached.len(), "{cached:?}");
}

fn samplers_change_the_answer(client: &Client) {
    let content = |more: Value| {
        let mut body = json!({ "prompt": "let a = ", "n_predict": 12, "seed": 7, "temperature": 2,
            "top_k": 0, "top_p": 1, "min_p": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.ok("/completion", &body)["content"].clone()
    };
    let plain = content(json!({}));
    assert_eq!(plain, content(json!({ "typical_p": 1, "mirostat": 0, "dry_multiplier": 0 })));
    // The same draws where the host chooses by the same probabilities.
    assert_eq!(plain, content(json!({ "xtc_probability": 0.5, "xtc_threshold": 0.5 })));
    for more in [
        json!({ "typical_p": 0.2 }),
        json!({ "mirostat": 2, "mirostat_tau": 0.5 }),
        json!({ "samplers": ["top_k"], "top_k": 2 }),
        json!({ "dynatemp_range": 1.9, "dynatemp_exponent": 3 }),
        json!({ "top_n_sigma": 0.5 }),
        json!({ "repeat_penalty": 30, "repeat_last_n": 4 }),
    ] {
        assert_ne!(plain, content(more.clone()), "{more}");
    }
    let binary = json!({ "grammar": "root ::= [01]+", "n_predict": 5 });
    let binary = content(binary);
    assert!(binary.as_str().unwrap().chars().all(|char| "01".contains(char)), "{binary}");
}

/// A gap of `/v1/completions`, without other files, is that of `/infill`.
fn gaps_of_other_apis(client: &Client) {
    let body =
        json!({ "prompt": "fn a(b) {\n", "suffix": "}\n", "temperature": 0, "max_tokens": 8 });
    let completion = client.ok("/v1/completions", &body);
    let body = json!({ "input_prefix": "fn a(b) {\n", "input_suffix": "}\n", "temperature": 0,
        "n_predict": 8 });
    let infill = client.ok("/infill", &body);
    assert_eq!(completion["choices"][0]["text"], infill["content"]);
    assert_eq!(completion["usage"]["prompt_tokens"], infill["tokens_evaluated"]);
}

fn refusals(client: &Client) {
    for (path, body, param) in [
        ("/completion", json!({ "prompt": [] }), "prompt"),
        ("/completion", json!({ "prompt": "a", "lora": [{ "id": 0 }] }), "lora"),
        (
            "/completion",
            json!({ "prompt": "a", "post_sampling_probs": true }),
            "post_sampling_probs",
        ),
        (
            "/completion",
            json!({ "prompt": { "prompt_string": "a", "multimodal_data": ["x"] } }),
            "prompt.multimodal_data",
        ),
        ("/infill", json!({ "input_prefix": "a" }), "input_suffix"),
        (
            "/infill",
            json!({ "input_prefix": "a", "input_suffix": "b", "input_extra": [{}] }),
            "input_extra[0].text",
        ),
        ("/tokenize", json!({ "content": 3 }), "content"),
        ("/v1/completions", json!({ "prompt": [1], "suffix": "b" }), "suffix"),
    ] {
        let refusal = client.post(path, &body);
        assert_eq!(refusal.status, 400, "{path} {body}: {}", refusal.text);
        assert_eq!(refusal.json()["error"]["param"], param, "{path} {body}");
    }
    assert_eq!(client.post("/props", &json!({})).status, 501);
}

/// A real model, which does not fill in.
pub fn paths_without_v1(client: &Client) {
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 4,
        "temperature": 0 });
    let [short, long] = ["/chat/completions", "/v1/chat/completions"]
        .map(|path| client.ok(path, &body)["choices"].clone());
    assert_eq!(short, long);
    assert_eq!(client.get("/models").text, client.get("/v1/models").text);
    let refusal = client.post("/infill", &json!({ "input_prefix": "a", "input_suffix": "b" }));
    assert_eq!(refusal.status, 400);
    assert!(refusal.message().contains("does not fill in the middle"), "{}", refusal.text);
    // What is held back of a text with several lines.
    let body = json!({ "prompt": "Once upon a time", "n_predict": 3, "n_probs": 1, "stream": true,
        "timings_per_token": true, "return_progress": true });
    let events = reply(client.send("/completion", body.to_string().as_bytes())).text;
    assert!(events.contains("prompt_progress") && events.contains("\"timings\""), "{events}");
    assert!(!events.contains("[DONE]"), "{events}");
}
