//! HTTP/1.1: by a client library, which keeps its connections, and byte by byte, for what no library sends.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};
use ureq::http::Response;

/// A request that takes longer hangs: large bodies wait for each other.
const TIMEOUT: Duration = Duration::from_secs(300);

/// An answer of the server.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
    /// Whether the whole body has come.
    pub is_whole: bool,
}

/// A client: of its own connections, as those of users.
pub struct Client {
    /// As `127.0.0.1:PORT`.
    pub address: String,
    agent: ureq::Agent,
}

impl Client {
    /// For the server at `address`.
    pub fn new(address: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(TIMEOUT))
            .build();
        Client { address: address.to_owned(), agent: config.into() }
    }

    /// The answer at `path`.
    ///
    /// # Errors
    /// If there is none in time, or it is cut.
    pub fn get(&self, path: &str) -> Result<Reply> {
        reply(self.agent.get(self.url(path)).call())
    }

    /// The answer to `body`.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn post(&self, path: &str, body: &Value) -> Result<Reply> {
        reply(self.send(path, body))
    }

    /// The response to `body`, whose own body comes as it is read.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn send(&self, path: &str, body: &Value) -> Result<Response<ureq::Body>, ureq::Error> {
        let request = self.agent.post(self.url(path));
        request.header("Content-Type", "application/json").send(body.to_string())
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

fn reply(response: Result<Response<ureq::Body>, ureq::Error>) -> Result<Reply> {
    let response = response?;
    let status = response.status().as_u16();
    let body = response.into_body().read_to_vec()?;
    Ok(Reply { status, body, is_whole: true })
}

/// Connects, with bounded waits.
///
/// # Errors
/// What the system says.
pub fn connect(address: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// The bytes of a request with a JSON body.
pub fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The bytes of a request without a body.
pub fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").into_bytes()
}

/// Sends `request` and returns the answer; `None` if the server closed the connection without one.
///
/// # Errors
/// If the server can't be reached, does not answer in time, or what it answers is not HTTP.
pub fn exchange(address: &str, request: &[u8]) -> Result<Option<Reply>> {
    let mut socket = connect(address)?;
    // The server may refuse a request before all of it was sent.
    match socket.write_all(request) {
        Err(error) if !is_closed(&error) => Err(error.into()),
        Ok(()) | Err(_) => receive(&mut socket),
    }
}

/// Reads an answer to its end, which is that of the connection.
///
/// # Errors
/// As [`exchange`].
pub fn receive(socket: &mut TcpStream) -> Result<Option<Reply>> {
    receive_rest(socket, Vec::new())
}

/// Reads what comes after the first `bytes` of an answer.
///
/// # Errors
/// As [`exchange`].
pub fn receive_rest(socket: &mut TcpStream, mut bytes: Vec<u8>) -> Result<Option<Reply>> {
    match socket.read_to_end(&mut bytes) {
        Err(error) if !is_closed(&error) => Err(error).context("no answer"),
        Ok(_) | Err(_) if bytes.is_empty() => Ok(None),
        Ok(_) | Err(_) => parse(&bytes).map(Some),
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted
    )
}

fn parse(bytes: &[u8]) -> Result<Reply> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").context("no head")?;
    let head = std::str::from_utf8(&bytes[..end])?.to_ascii_lowercase();
    let body = &bytes[end + 4..];
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.strip_prefix("http/1.")?.get(2..5));
    let status = status.context("no status")?.parse()?;
    let header = |name: &str| lines.clone().find_map(|line| line.strip_prefix(name));
    if header("transfer-encoding: chunked").is_some() {
        let (body, is_whole) = dechunk(body)?;
        return Ok(Reply { status, body, is_whole });
    }
    let length: usize = header("content-length: ").map_or(Ok(0), str::parse)?;
    let is_whole = body.len() >= length;
    // What comes after it answers a request that was sent with it.
    Ok(Reply { status, body: body[..length.min(body.len())].to_owned(), is_whole })
}

/// The chunks of a body, and whether the last one is among them.
fn dechunk(mut rest: &[u8]) -> Result<(Vec<u8>, bool)> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|two| two == b"\r\n") {
        let len = usize::from_str_radix(std::str::from_utf8(&rest[..end])?, 16)?;
        let chunk = &rest[end + 2..];
        match (len, chunk.len() >= len + 2) {
            (0, _) => return Ok((body, true)),
            (_, true) => body.extend_from_slice(&chunk[..len]),
            (_, false) => break,
        }
        ensure!(chunk[len..].starts_with(b"\r\n"), "a chunk has no end");
        rest = &chunk[len + 2..];
    }
    Ok((body, false))
}

impl Reply {
    /// An error unless it is what the server's own code answers: JSON, an object of OpenAI's for a failure.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<()> {
        ensure!(self.is_whole, "the body is cut");
        if self.body.starts_with(b"data: ") || self.body.starts_with(b"event: ") {
            return self.check_events();
        }
        let body: Value = serde_json::from_slice(&self.body).context("the body is not JSON")?;
        ensure!(
            self.status == 200 || body["error"]["message"].is_string(),
            "an error without a message"
        );
        Ok(())
    }

    /// The JSON of its server-sent events, without the last.
    fn check_events(&self) -> Result<()> {
        let text = std::str::from_utf8(&self.body)?;
        let mut data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let last = data.next_back().context("no event")?;
        let is_end = last == "[DONE]" || is_end(last);
        ensure!(is_end, "the last event is {last}");
        for event in data {
            let event: Value = serde_json::from_str(event).context("an event is not JSON")?;
            if let Some(message) = event["error"]["message"].as_str() {
                bail!("a stream failed: {message}");
            }
        }
        Ok(())
    }

    /// Whether it is a stream that ends with all of its answers.
    pub fn is_finished_stream(&self) -> bool {
        let text = String::from_utf8_lossy(&self.body);
        self.check().is_ok() && text.contains("\"finish_reason\":\"length\"")
    }
}

/// The last event of `/v1/responses` or `/v1/messages`.
fn is_end(event: &str) -> bool {
    let kind = serde_json::from_str::<Value>(event).map(|event| event["type"].clone());
    let ends = ["response.completed", "response.incomplete", "message_stop"];
    kind.is_ok_and(|kind| ends.iter().any(|end| kind == *end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_or_cut() {
        let fixed = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}";
        let reply = parse(fixed).unwrap();
        assert_eq!((reply.status, &*reply.body, reply.is_whole), (400, &b"{}"[..], true));
        assert!(reply.check().is_err(), "no message");
        assert!(!parse(&fixed[..fixed.len() - 1]).unwrap().is_whole);
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                       3\r\ndat\r\nb\r\na: [DONE]\n\n\r\n0\r\n\r\n";
        let reply = parse(chunked.as_bytes()).unwrap();
        assert_eq!((&*reply.body, reply.is_whole), (&b"data: [DONE]\n\n"[..], true));
        reply.check().unwrap();
        assert!(!parse(&chunked.as_bytes()[..chunked.len() - 8]).unwrap().is_whole);
    }
}
