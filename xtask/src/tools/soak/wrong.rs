//! Requests that the server has to refuse, or to take for what they happen to be.

use super::valid;
use crate::tools::{http, random::SplitMix64};
use serde_json::{Value, json};

/// A body that is not quite JSON: cut, or with bytes of another.
pub fn malformed(random: &mut SplitMix64) -> Vec<u8> {
    let post = valid::post(random);
    let mut body = post.body.to_string().into_bytes();
    match random.below(4) {
        0 => body.truncate(random.below(body.len())),
        1 => (0..1 + random.below(4)).for_each(|_| {
            let at = random.below(body.len());
            body[at] = random.next() as u8;
        }),
        2 => {
            let part = body[random.below(body.len())..].to_owned();
            let at = random.below(body.len());
            body.splice(at..at, part);
        }
        _ => body = (0..random.below(200)).map(|_| random.next() as u8).collect(),
    }
    http::post(post.path, &body)
}

/// A body with a field, at any depth, that is of another type, or is not known.
pub fn wrong_type(random: &mut SplitMix64) -> Vec<u8> {
    let make = random.pick(&[valid::post, valid::stream, valid::tools, valid::form]);
    let mut post = make(random);
    let field = random_field(random, &mut post.body);
    *field = random
        .pick(&[
            json!(null),
            json!(true),
            json!(-1),
            json!(0),
            json!(1e300),
            json!(u64::MAX),
            json!(0.5),
            json!(""),
            json!("soak"),
            json!([]),
            json!({}),
            json!([[[null]]]),
            json!({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}}),
            json!([1, "x", {}]),
        ])
        .clone();
    http::post(post.path, post.body.to_string().as_bytes())
}

/// A field of `value`, of one of its fields, and so on.
fn random_field<'a>(random: &mut SplitMix64, value: &'a mut Value) -> &'a mut Value {
    let len = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if len == 0 || random.one_in(3) {
        return value;
    }
    let index = random.below(len);
    match value {
        Value::Array(items) => random_field(random, &mut items[index]),
        Value::Object(fields) => {
            let field = fields.iter_mut().nth(index).expect("the index is below the length");
            random_field(random, field.1)
        }
        other => other,
    }
}

/// A body of megabytes, deep or long in one place.
pub fn huge(random: &mut SplitMix64) -> Vec<u8> {
    const MB: usize = 1 << 20;
    let chat = |content: Value| json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 1 });
    let long = |len: usize| Value::from(random_text(len));
    let path = "/v1/chat/completions";
    let body = match random.below(16) {
        0 => return http::post(path, &vec![b' '; 9 * MB]),
        1 => return chunked(path, &vec![b'['; 9 * MB]),
        2 => return http::post(path, &b"[".repeat(MB)),
        3 => return http::post(path, &b"{\"messages\":".repeat(MB / 12)),
        4 => chat(long(4 * MB)),
        5 => chat("a".repeat(4 * MB).into()),
        6 => chat(" ".repeat(4 * MB).into()),
        7 => {
            let message = json!({ "role": "user", "content": "x" });
            json!({ "messages": vec![message; 50_000], "max_tokens": 1 })
        }
        8 => with(chat("x".into()), "model", long(MB)),
        9 => with(chat("x".into()), "stop", json!(vec!["x"; 300_000])),
        10 => {
            let biases = (0..200_000).map(|id| (id.to_string(), json!(1))).collect();
            with(chat("x".into()), "logit_bias", Value::Object(biases))
        }
        11 => with(chat("x".into()), "guided_regex", "(a|b)*c{1,9}".repeat(60_000).into()),
        12 => with(chat("x".into()), "guided_json", nested_schema(40)),
        13 => with(chat("x".into()), "guided_choice", json!(vec!["yes"; 100_000])),
        14 => with(chat("x".into()), "unknown", long(4 * MB)),
        _ => {
            let prompt = json!(vec![1; MB]);
            let body = json!({ "prompt": prompt, "max_tokens": 1 });
            return http::post("/v1/completions", body.to_string().as_bytes());
        }
    };
    http::post(path, body.to_string().as_bytes())
}

fn with(mut body: Value, name: &str, value: Value) -> Value {
    body[name] = value;
    body
}

fn random_text(len: usize) -> String {
    let mut random = SplitMix64(len as u64);
    (0..len).map(|_| char::from(b' ' + random.below(95) as u8)).collect()
}

fn nested_schema(depth: usize) -> Value {
    (0..depth).fold(json!({ "type": "null" }), |inner, _| {
        json!({ "anyOf": [{ "type": "array", "items": inner, "maxItems": 2 }, { "type": "string" }] })
    })
}

/// A request whose length nobody is told.
fn chunked(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n"
    );
    let mut request = head.into_bytes();
    for chunk in body.chunks(1 << 16) {
        request.extend(format!("{:x}\r\n", chunk.len()).bytes());
        request.extend(chunk);
        request.extend(b"\r\n");
    }
    request.extend(b"0\r\n\r\n");
    request
}

/// What is not HTTP, or not quite.
pub fn bad_http(random: &mut SplitMix64) -> Vec<u8> {
    let good = String::from_utf8_lossy(&http::post("/v1/completions", b"{}")).into_owned();
    let with_header = |header: &str| {
        good.replacen("Host: localhost\r\n", &format!("Host: localhost\r\n{header}\r\n"), 1)
    };
    let request = match random.below(16) {
        0 => return (0..1 + random.below(300)).map(|_| random.next() as u8).collect(),
        1 => "GET\r\n\r\n".to_owned(),
        2 => "GET / HTTP/9.9\r\n\r\n".to_owned(),
        3 => "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        4 => "\r\n".repeat(100),
        5 => format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(100_000)),
        6 => with_header(&format!("X-Long: {}", "x".repeat(600_000))),
        7 => with_header(&"X-Many: x\r\n".repeat(500)).replacen("\r\n\r\n", "\r\n", 1),
        8 => with_header("Content-Length: 7"),
        9 => with_header("Transfer-Encoding: chunked"),
        10 => with_header("Transfer-Encoding: gzip"),
        11 => good.replace("Content-Length: 2", "Content-Length: -2"),
        12 => good.replace("Content-Length: 2", "Content-Length: 99999999999999999999"),
        13 => with_header("no colon here"),
        14 => {
            good.replace("application/json", ["text/plain", "", "application/xml"][random.below(3)])
        }
        _ => {
            // Bytes anywhere in the head.
            let mut bytes = good.into_bytes();
            let at = random.below(bytes.len());
            bytes[at] = random.next() as u8;
            return bytes;
        }
    };
    request.into_bytes()
}

/// A path that there is not, or not by that method.
pub fn bad_path(random: &mut SplitMix64) -> Vec<u8> {
    let methods = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"];
    let paths = [
        "/v1/chat/completions",
        "/v1/nothing",
        "/../../etc/passwd",
        "/v1/models/%00",
        "/v1/models/%ff",
        "/v1/models/a/b/c",
        "//",
        "/?x=y",
        "/metrics/",
    ];
    let (method, path) = (random.pick(&methods), random.pick(&paths));
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").into_bytes()
}
