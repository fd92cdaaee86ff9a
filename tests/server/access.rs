//! Who is served: keys, TLS and the origins of pages.

use crate::client::{CERT, Client, KEY, OTHER_KEY, Serving, agent, reply};
use crate::support::{self, LLAMA};
use serde_json::json;

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
    // As Anthropic's clients send it, and in the form of their failures.
    for (key, status, kind) in
        [("wrong", 401, "authentication_error"), ("second", 400, "invalid_request_error")]
    {
        let request = agent().post(format!("{base}/v1/messages")).header("x-api-key", key);
        let request = request.header("Content-Type", "application/json");
        let reply = reply(request.send(&b"{}"[..]).unwrap());
        let error = reply.json();
        assert_eq!((reply.status, error["error"]["type"].as_str()), (status, Some(kind)));
        assert_eq!(error["type"], "error");
    }
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
