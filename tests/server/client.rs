//! What the tests share: a client, its replies, and a server that runs.

use crate::support::{Copy, halfwarp};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// How long a test waits before it looks again.
const PAUSE: Duration = Duration::from_millis(20);
pub const QUESTION: &str = "What is the capital of France?";

/// A certificate of localhost, its key, and the key of another: EC on P-256, signed by themselves, until 2126
/// (`openssl req -x509 -newkey ec -addext basicConstraints=critical,CA:FALSE`).
pub const CERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tls/server.pem");
pub const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tls/server.key");
pub const OTHER_KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/tls/other.key");

/// It trusts [`CERT`] alone.
pub fn agent() -> ureq::Agent {
    let cert = Certificate::from_pem(&std::fs::read(CERT).unwrap()).unwrap();
    let tls = TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&[cert]))
        .build();
    ureq::Agent::config_builder().http_status_as_error(false).tls_config(tls).build().into()
}

/// A client of one server.
pub struct Client {
    pub base: String,
    pub key: Option<&'static str>,
}

pub struct Reply {
    pub status: u16,
    pub retry_after: bool,
    pub text: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn message(&self) -> String {
        let error = &self.json()["error"];
        assert!(error["type"].is_string(), "{}", self.text);
        error["message"].as_str().unwrap().to_owned()
    }
}

impl Client {
    pub fn get(&self, path: &str) -> Reply {
        let mut request = agent().get(format!("{}{path}", self.base));
        if let Some(key) = self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        reply(request.call().unwrap())
    }

    pub fn send(&self, path: &str, body: &[u8]) -> ureq::http::Response<ureq::Body> {
        let mut request = agent().post(format!("{}{path}", self.base));
        if let Some(key) = self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        request.header("Content-Type", "application/json").send(body).unwrap()
    }

    /// A request of any method.
    pub fn run(&self, method: &str, path: &str, body: &Value) -> Reply {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("Content-Type", "application/json")
            .body(body.to_string())
            .unwrap();
        reply(agent().run(request).unwrap())
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        reply(self.send(path, body.to_string().as_bytes()))
    }

    /// The body of a reply that has to be good.
    pub fn ok(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    }

    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = true.into();
        let response = self.send(path, body.to_string().as_bytes());
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events(BufReader::new(Box::new(response.into_body().into_reader()) as Box<_>).lines())
    }

    /// The value of a metric, 0 if there is none.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let is_named = |line: &&str| line.split(['{', ' ']).next() == Some(name);
        let line = text.lines().find(is_named);
        line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    pub fn wait_for(&self, path: &str, status: u16) {
        while self.get(path).status != status {
            thread::sleep(PAUSE);
        }
    }

    pub fn wait_for_metric(&self, name: &str, value: f64) {
        while self.metric(name) != value {
            thread::sleep(PAUSE);
        }
    }
}

pub fn reply(response: ureq::http::Response<ureq::Body>) -> Reply {
    Reply {
        status: response.status().as_u16(),
        retry_after: response.headers().contains_key("retry-after"),
        text: response.into_body().read_to_string().unwrap(),
    }
}

/// Server-sent events; dropping it closes the connection.
pub struct Events(Lines<BufReader<Box<dyn std::io::Read + Send>>>);

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
    pub fn chunk(&mut self) -> Value {
        serde_json::from_str(&self.next().unwrap()).unwrap()
    }

    /// The chunks up to `[DONE]`, which has to be the end.
    pub fn rest(self) -> Vec<Value> {
        let mut events: Vec<String> = self.collect();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"), "{events:?}");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// The binary, serving; killed when it is dropped.
pub struct Serving {
    pub child: Child,
    pub client: Client,
    pub log: Arc<Mutex<String>>,
}

impl Serving {
    pub fn start(args: &[&str]) -> Serving {
        let serving = Self::start_loading(args);
        serving.client.wait_for("/health", 200);
        serving
    }

    pub fn start_loading(args: &[&str]) -> Serving {
        Self::start_in(args, &[])
    }

    /// With variables of the environment.
    pub fn start_in(args: &[&str], environment: &[(&str, &str)]) -> Serving {
        let mut command = halfwarp(&["serve", "--device", "cpu", "--port", "0"]);
        command.envs(environment.iter().copied());
        if !args.iter().any(|arg| *arg == "-m" || arg.starts_with("--models-")) {
            command.args(["-m", "smollm2-135m-instruct"]);
        }
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
    pub fn endless(args: &[&str]) -> (Serving, Copy) {
        let model = Copy::new().config(|config| {
            config.insert("max_position_embeddings".into(), json!(100_000));
        });
        let base = ["-m", model.path(), "--served-model-name", "tiny", "-c", "50000"];
        let serving = Serving::start(&[&base[..], args].concat());
        (serving, model)
    }

    pub fn signal(&self, signal: &str) {
        let kill = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    pub fn exit_code(&mut self) -> Option<i32> {
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
pub fn without_end() -> Value {
    json!({ "prompt": [1, 2, 3], "max_tokens": 40_000, "ignore_eos": true, "temperature": 0,
            "return_token_ids": true })
}

pub fn chat() -> Value {
    json!({ "messages": [{ "role": "user", "content": QUESTION }], "temperature": 0,
            "max_tokens": 24 })
}

/// The text of a chat's chunks.
pub fn deltas(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
}
