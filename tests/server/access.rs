//! Who is served: keys, TLS, the origins of pages and the hosts by which they call the server.

use crate::client::{CERT, Client, KEY, OTHER_KEY, Reply, Serving, agent, reply};
use crate::support::{self, LLAMA};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpStream;

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
fn keys_stand_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    std::fs::write(&file, "# ours\nfirst\n\n  second \n#third\n").unwrap();
    let path = file.to_str().unwrap();
    let serving = Serving::start(&["-m", LLAMA, "--api-key-file", path, "--api-key", "fourth"]);
    let base = &serving.client.base;
    for (key, status) in
        [("first", 200), ("second", 200), ("fourth", 200), ("third", 401), ("#third", 401)]
    {
        let client = Client { base: base.clone(), key: Some(key) };
        assert_eq!(client.get("/v1/models").status, status, "{key}");
    }
    std::fs::write(&file, "# none\n").unwrap();
    for (path, why) in [(path, "there is no key in it"), ("no-such-file", "cannot read")] {
        let args = ["serve", "--device", "cpu", "-m", LLAMA, "--port", "0"];
        let output = support::run(&[&args[..], &["--api-key-file", path]].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(support::stderr(&output).contains(why), "{}", support::stderr(&output));
    }
}

#[test]
fn paths_come_after_a_prefix() {
    let serving =
        Serving::start_loading(&["-m", LLAMA, "--api-prefix", "/llm/a", "--api-key", "k"]);
    let base = serving.client.base.clone();
    let client = Client { base: format!("{base}/llm/a"), key: Some("k") };
    client.wait_for("/health", 200);
    let body = json!({ "prompt": [1], "max_tokens": 1 });
    assert_eq!(client.post("/v1/completions", &body).status, 200);
    assert!(client.get("/").text.contains("style.css"), "the page, whose links are relative");
    assert_eq!(client.get("/style.css?x=1").status, 200);
    let keyless = Client { base: client.base.clone(), key: None };
    assert_eq!(keyless.get("/v1/models").status, 401);
    // Anthropic's form of a failure, by the path after the prefix.
    assert_eq!(client.post("/v1/messages", &json!({})).json()["type"], "error");
    let outside = Client { base, key: Some("k") };
    for path in ["/v1/models", "/health", "/llm/av1/models", "/llm", "/"] {
        assert_eq!(outside.get(path).status, 404, "{path}");
    }
    // A browser is sent to where the page's links lead on.
    assert_eq!(outside.get("/llm/a").status, 200);
    let output = support::run(&["serve", "-m", LLAMA, "--api-prefix", "llm"]);
    assert!(support::stderr(&output).contains("such as /llm"), "{}", support::stderr(&output));
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
    let idle = TcpStream::connect(client.base.trim_start_matches("https://")).unwrap();
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
    for (args, why) in [
        (["--tls-cert", CERT], "--tls-key <PEM>"),
        (["--tls-key", KEY], "--tls-cert <PEM>"),
        (["--cors-origin", "example.com"], "an origin is"),
        (["--allowed-host", "http://chat.example"], "a host is"),
        (["--allowed-host", "chat.example:80"], "a host is"),
    ] {
        // Without a model it ends also where the arguments are taken.
        let output = support::run(&[&["serve", "-m", "none"][..], &args].concat());
        let said = support::stderr(&output);
        assert!(output.status.code() == Some(2) && said.contains(why), "{args:?}: {said}");
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

fn get_as(client: &Client, host: &str, path: &str) -> Reply {
    let request = agent().get(format!("{}{path}", client.base)).header("Host", host);
    reply(request.call().unwrap())
}

/// The first line of the answer to a request with these lines.
fn answer_to(client: &Client, lines: &str) -> String {
    let mut socket = TcpStream::connect(client.base.trim_start_matches("http://")).unwrap();
    let request = lines.replace('\n', "\r\n") + "\r\nConnection: close\r\n\r\n";
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap().to_owned()
}

#[test]
fn a_local_server_without_a_key_is_called_by_its_own_names() {
    let origin = ["--cors-origin", "http://evil.example"];
    let args = ["-m", LLAMA, "--allowed-host", "chat.example"];
    let serving = Serving::start(&[&args[..], &origin].concat());
    let client = &serving.client;
    for host in ["localhost", "LOCALHOST.:80", "127.0.0.1:8080", "[::1]:1", "Chat.Example:443"] {
        assert_eq!(get_as(client, host, "/v1/models").status, 200, "{host}");
    }
    let paths = ["/", "/health", "/ready", "/version", "/metrics", "/v1/models", "/v1/nothing"];
    for path in paths {
        for host in ["evil.example", "localhost.evil.example:8080", "192.168.0.1"] {
            let reply = get_as(client, host, path);
            let hint = host.trim_end_matches(":8080");
            let hint = format!("--allowed-host {hint}");
            assert!(reply.status == 403 && reply.message().ends_with(&hint), "{}", reply.text);
        }
    }
    assert_eq!(get_as(client, "evil.example", "/").json()["error"]["code"], "host_not_allowed");
    let url = format!("{}/v1/messages", client.base);
    let request = agent().post(url).header("Host", "evil.example");
    let refused = reply(request.header("Content-Type", "application/json").send("{}").unwrap());
    let error = refused.json();
    assert_eq!((refused.status, error["type"].as_str()), (403, Some("error")));
    assert_eq!(error["error"]["type"], "permission_error");
    // Not even a preflight request of an origin that is named.
    let preflight = agent()
        .options(format!("{}/v1/chat/completions", client.base))
        .header("Host", "evil.example")
        .header("Origin", "http://evil.example")
        .header("Access-Control-Request-Method", "POST");
    let refused = preflight.call().unwrap();
    assert_eq!(refused.status(), 403);
    assert!(!refused.headers().contains_key("access-control-allow-origin"), "{refused:?}");
    for (lines, status) in [
        ("GET /version HTTP/1.0", "HTTP/1.0 200 OK"),
        ("GET /version HTTP/1.0\nHost: evil.example", "HTTP/1.0 403 Forbidden"),
        ("GET /version HTTP/1.1", "HTTP/1.1 400 Bad Request"),
        ("GET /version HTTP/1.1\nHost: a@localhost", "HTTP/1.1 400 Bad Request"),
        ("GET /version HTTP/1.1\nHost: localhost\nHost: a.b", "HTTP/1.1 400 Bad Request"),
        ("GET http://evil.example/version HTTP/1.1\nHost: localhost", "HTTP/1.1 403 Forbidden"),
    ] {
        assert_eq!(answer_to(client, lines), status, "{lines}");
    }
}

#[test]
fn a_server_with_a_key_or_for_other_machines_is_called_by_any_name_unless_some_are_given() {
    let host = "evil.example";
    for args in [["--api-key", "first"], ["--host", "0.0.0.0"]] {
        let serving = Serving::start(&[&["-m", LLAMA][..], &args].concat());
        for path in ["/", "/health", "/version"] {
            assert_eq!(get_as(&serving.client, host, path).status, 200, "{args:?} {path}");
        }
        assert_eq!(answer_to(&serving.client, "GET / HTTP/1.1"), "HTTP/1.1 200 OK");
    }
    let args = ["-m", LLAMA, "--api-key", "first", "--allowed-host", "chat.example"];
    let serving = Serving::start(&args);
    for (host, status) in [(host, 403), ("chat.example", 401), ("localhost", 401)] {
        assert_eq!(get_as(&serving.client, host, "/metrics").status, status, "{host}");
    }
}
