//! One request of each kind: how it is sent, and what may come back.

use super::{
    valid::{self, Post},
    wrong,
};
use crate::tools::{
    http::{self, Client, Reply},
    random::SplitMix64,
};
use anyhow::{Result, bail, ensure};
use serde_json::json;
use std::{
    fmt,
    io::{Read, Write},
    net::Shutdown,
    thread::sleep,
    time::Duration,
};

/// What the server gives a client to send a body, or to take a part of an answer: `--timeout`.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// What kind of request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Plain,
    Streamed,
    Tools,
    Form,
    Get,
    /// The client leaves before the answer has ended.
    Aborted,
    MalformedJson,
    WrongType,
    Huge,
    BadHttp,
    BadPath,
    /// A head or a body that comes slowly, or never as a whole.
    SlowWriter,
    /// A client that does not read, or slowly.
    SlowReader,
}

/// Each kind with its share of the requests, in per mille.
pub const KINDS: [(Kind, usize); 13] = [
    (Kind::Plain, 200),
    (Kind::Streamed, 120),
    (Kind::Tools, 60),
    (Kind::Form, 60),
    (Kind::Get, 60),
    (Kind::Aborted, 150),
    (Kind::MalformedJson, 110),
    (Kind::WrongType, 110),
    (Kind::Huge, 20),
    (Kind::BadHttp, 50),
    (Kind::BadPath, 30),
    (Kind::SlowWriter, 20),
    (Kind::SlowReader, 10),
];

/// What there is to get.
const PATHS: [&str; 9] = [
    "/",
    "/app.js",
    "/health",
    "/ready",
    "/version",
    "/metrics",
    "/v1/models",
    "/v1/models/soak",
    "/tokenizer_info",
];

/// How a request ended for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// With an answer of this status.
    Status(u16),
    /// The server closed the connection without an answer.
    Closed,
    /// The client left.
    Left,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Status(status) => status.fmt(f),
            Outcome::Closed => f.write_str("closed"),
            Outcome::Left => f.write_str("left"),
        }
    }
}

impl Kind {
    /// One of all kinds, by their shares.
    pub fn any(random: &mut SplitMix64) -> Self {
        let mut at = random.below(KINDS.iter().map(|(_, share)| share).sum());
        for (kind, share) in KINDS {
            match at.checked_sub(share) {
                Some(rest) => at = rest,
                None => return kind,
            }
        }
        unreachable!("the shares add up")
    }

    /// The statuses that a request may have. 429 is a full queue; no kind may have a status from 500 on.
    fn allowed(self) -> &'static [u16] {
        match self {
            Kind::Plain | Kind::Streamed | Kind::Tools | Kind::Form => &[200, 429],
            Kind::Get => &[200],
            Kind::Aborted => &[],
            // Another byte may be as good, or that of the model's name.
            Kind::MalformedJson | Kind::WrongType => &[200, 400, 404, 429],
            Kind::Huge => &[200, 400, 404, 413, 429],
            Kind::BadHttp => &[400, 403, 404, 405, 408, 413, 414, 415, 431],
            Kind::BadPath => &[200, 400, 404, 405],
            Kind::SlowWriter => &[200, 400, 408, 429],
            Kind::SlowReader => &[200, 429],
        }
    }

    /// Whether the server may close the connection instead of an answer.
    fn may_close(self) -> bool {
        // A body over the limit is refused while it is being sent: the answer may be lost.
        matches!(self, Kind::BadHttp | Kind::Huge | Kind::SlowWriter | Kind::SlowReader)
    }

    /// Sends a request and judges what comes back.
    ///
    /// # Errors
    /// If that is not allowed.
    pub fn run(self, client: &Client, random: &mut SplitMix64) -> Result<Outcome> {
        let address = &client.address;
        let reply = match self {
            Kind::Aborted => return abort(address, random),
            Kind::SlowWriter => write_slowly(address, random)?,
            Kind::SlowReader => return read_slowly(address, random),
            Kind::BadHttp => {
                let mut socket = http::connect(address)?;
                // It may be refused before its end.
                let _ = socket.write_all(&wrong::bad_http(random));
                let _ = socket.shutdown(Shutdown::Write);
                http::receive(&mut socket)?
            }
            Kind::MalformedJson => http::exchange(address, &wrong::malformed(random))?,
            Kind::WrongType => http::exchange(address, &wrong::wrong_type(random))?,
            Kind::Huge => http::exchange(address, &wrong::huge(random))?,
            Kind::BadPath => http::exchange(address, &wrong::bad_path(random))?,
            _ => Some(self.good(client, random)?),
        };
        let Some(reply) = reply else {
            ensure!(self.may_close(), "the connection was closed without an answer");
            return Ok(Outcome::Closed);
        };
        ensure!(
            self.allowed().contains(&reply.status),
            "status {}: {:.300}",
            reply.status,
            String::from_utf8_lossy(&reply.body)
        );
        let is_the_servers_own = !matches!(self, Kind::BadHttp | Kind::BadPath | Kind::Get);
        if is_the_servers_own {
            reply.check()?;
        }
        Ok(Outcome::Status(reply.status))
    }

    /// The answer to a request with which nothing is wrong.
    fn good(self, client: &Client, random: &mut SplitMix64) -> Result<Reply> {
        let Post { path, body } = match self {
            Kind::Plain => valid::post(random),
            Kind::Streamed => valid::stream(random),
            Kind::Tools => valid::tools(random),
            Kind::Form => valid::form(random),
            _ => return client.get(PATHS[random.below(PATHS.len())]),
        };
        client.post(path, &body)
    }
}

/// Leaves in the middle: of the request, before the answer, or in its stream.
fn abort(address: &str, random: &mut SplitMix64) -> Result<Outcome> {
    let mut post = match random.below(3) {
        0 => valid::post(random),
        _ => valid::stream(random),
    };
    if post.body.get("max_tokens").is_some() {
        post.body["max_tokens"] = 400.into();
    }
    let request = http::post(post.path, post.body.to_string().as_bytes());
    let mut socket = http::connect(address)?;
    match random.below(4) {
        0 => socket.write_all(&request[..random.below(request.len())])?,
        1 => socket.write_all(&request)?,
        _ => {
            socket.write_all(&request)?;
            let mut bytes = vec![0; 1 + random.below(3000)];
            // The answer may be shorter, and have ended.
            let _ = socket.read_exact(&mut bytes);
            ensure!(
                bytes.starts_with(b"HTTP/1.1 200")
                    || bytes.starts_with(b"HTTP/1.1 429")
                    || bytes.len() < 12,
                "not the beginning of an answer"
            );
        }
    }
    Ok(Outcome::Left)
}

/// Sends a request in pieces: in time, too slowly, or never to its end.
fn write_slowly(address: &str, random: &mut SplitMix64) -> Result<Option<Reply>> {
    let post = valid::post(random);
    let request = http::post(post.path, post.body.to_string().as_bytes());
    let body = request.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
    let mut socket = http::connect(address)?;
    match random.below(3) {
        // In time.
        0 => {
            for piece in request.chunks(request.len().div_ceil(8)) {
                sleep(Duration::from_millis(20));
                socket.write_all(piece)?;
            }
        }
        // Half of the body.
        1 => socket.write_all(&request[..body + (request.len() - body) / 2])?,
        // Half of the head; nobody waits for the end of that.
        _ => {
            socket.write_all(&request[..body / 2])?;
            sleep(Duration::from_millis(200));
            return Ok(None);
        }
    }
    http::receive(&mut socket)
}

/// Takes an answer slowly, or a part of one that is larger than what a connection buffers.
fn read_slowly(address: &str, random: &mut SplitMix64) -> Result<Outcome> {
    let is_in_time = random.one_in(2);
    let mut post = valid::stream(random);
    if !is_in_time {
        // The server sends it back, three times.
        let metadata = json!({ "of": "x".repeat(6 << 20) });
        let body =
            json!({ "input": "x", "max_output_tokens": 8, "stream": true, "metadata": metadata });
        post = Post { path: "/v1/responses", body };
    }
    let mut socket = http::connect(address)?;
    socket.write_all(&http::post(post.path, post.body.to_string().as_bytes()))?;
    let mut bytes = vec![0; 700];
    for _ in 0..5 {
        sleep(Duration::from_millis(100));
        if socket.read(&mut bytes)? == 0 {
            break;
        }
    }
    if is_in_time {
        // The rest at once.
        socket.read_to_end(&mut bytes)?;
        return Ok(Outcome::Left);
    }
    sleep(2 * CLIENT_TIMEOUT);
    bytes.clear();
    let _ = socket.read_to_end(&mut bytes);
    if String::from_utf8_lossy(&bytes).contains("event: response.incomplete") {
        bail!("a client that did not read for {:?} got its answer", 2 * CLIENT_TIMEOUT);
    }
    Ok(Outcome::Closed)
}
