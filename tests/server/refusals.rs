//! What is refused, on every path, and why.

use crate::client::{Client, Serving, agent, chat, reply};
use crate::support::{self, LLAMA};
use serde_json::json;

pub fn refusals_of_a_model_with_text(client: &Client) {
    let long = "word ".repeat(600);
    let mut body = chat();
    body["messages"][0]["content"] = json!(long);
    let reply = client.post("/v1/chat/completions", &body);
    assert_eq!(
        (reply.status, reply.json()["error"]["code"].as_str()),
        (400, Some("context_length_exceeded"))
    );
    // Not encoded, as no tokens are so long.
    let endless = "word ".repeat(600_000);
    for (path, field) in [("/v1/completions", "prompt"), ("/v1/embeddings", "input")] {
        let reply = client.post(path, &json!({ field: endless }));
        assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
        assert!(reply.message().starts_with("the prompt has 3000000 bytes, "), "{}", reply.text);
    }
    let reply =
        client.post("/v1/completions", &json!({ "prompt": "", "add_special_tokens": false }));
    assert_eq!(
        (reply.status, &*reply.message()),
        (400, "the prompt is empty: it needs at least one token")
    );
    let reply = client.post("/detokenize", &json!({ "tokens": [4_000_000] }));
    assert_eq!(reply.status, 400);
    let mut body = chat();
    body["guided_choice"] = (0..100_000).map(|number| format!("choice {number}")).collect();
    let reply = client.post("/v1/chat/completions", &body);
    assert_eq!(reply.status, 400);
    assert!(reply.message().starts_with("guided_choice: a grammar of 1"), "{}", reply.text);
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
        ("/v1/audio/speech", "{}", 404, "there is no such path"),
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
