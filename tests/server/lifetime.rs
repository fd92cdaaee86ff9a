//! How a server starts and ends, and what it does when a client leaves.

use crate::client::{Client, Serving, without_end};
use crate::support::{self, LLAMA};
use halfwarp::engine::{Engine, EngineError, EngineOptions};
use halfwarp::exec::Device;
use halfwarp::server::{ModelSettings, Server, ServerOptions};
use halfwarp::{Model, ServiceOptions};
use serde_json::json;
use std::sync::{Arc, mpsc};
use std::thread;

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

/// In this process, with an engine that takes as long to load as the test says.
#[test]
fn requests_are_refused_until_the_model_is_loaded() {
    let model = Arc::new(Model::open(LLAMA).unwrap());
    let options =
        ServerOptions { service: ServiceOptions { max_waiting: 1 }, ..ServerOptions::default() };
    let server =
        Server::bind("127.0.0.1", 0, Arc::clone(&model), ModelSettings::default(), options)
            .unwrap();
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
