//! What the server itself shows: metrics, log, memory, and its end.

use super::MARK;
use crate::process;
use crate::tools::{http, server::Server};
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use std::{
    fs,
    io::{Read, Write},
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// How long requests whose clients have left may go on.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(50);
/// How long a server that is told to end may take.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const NUM_LAST_STREAMS: usize = 4;

/// Waits until no request runs or waits and no page of the cache is held.
///
/// # Errors
/// If there is one for too long.
pub fn wait_until_idle(server: &Server) -> Result<()> {
    const NAMES: [&str; 3] =
        ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"];
    let start = Instant::now();
    loop {
        let values = server.metrics(NAMES)?;
        if values.iter().all(|&value| value == 0.0) {
            return Ok(());
        }
        ensure!(
            start.elapsed() < IDLE_TIMEOUT,
            "the server is not idle: {NAMES:?} are {values:?} {IDLE_TIMEOUT:?} after the last request"
        );
        thread::sleep(PAUSE);
    }
}

/// What the scheduler and the cache did; `all`: something of everything.
///
/// # Errors
/// If there is nothing of one.
pub fn counters(server: &Server, all: bool) -> Result<String> {
    const NAMES: [&str; 3] =
        ["num_preemptions_total", "prefix_cache_queries_total", "prefix_cache_hits_total"];
    let values = server.metrics(NAMES)?;
    ensure!(!all || values.iter().all(|&value| value > 0.0), "{NAMES:?} are {values:?}");
    let [preemptions, queries, hits] = values;
    Ok(format!("cache     {preemptions} preemptions, {hits} of {queries} tokens of prompts found"))
}

/// Looks for a panic, a failure of the server, and texts of requests.
///
/// # Errors
/// The line.
pub fn check_log(log: &str) -> Result<()> {
    for line in log.lines() {
        let is_bad = ["panicked", "ERROR", MARK].iter().any(|mark| line.contains(mark));
        ensure!(!is_bad, "the server's log says: {line}");
    }
    Ok(())
}

/// Memory of a process in RAM now (`VmRSS`) or at most (`VmHWM`).
///
/// # Errors
/// If the system does not tell it as Linux does.
pub fn memory_mb(process: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kb = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no such memory")?;
    Ok(kb.parse::<f64>()? * 1024.0 / 1e6)
}

/// Tells the server to end while it streams; every stream has to end with all of its tokens. Returns the seconds until the
/// process had ended.
///
/// # Errors
/// If one does not, or the exit code is not 0.
pub fn end_in_mid_stream(server: &mut Server) -> Result<f64> {
    let body = json!({ "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true });
    let request = http::post("/v1/completions", body.to_string().as_bytes());
    let mut streams = Vec::new();
    for _ in 0..NUM_LAST_STREAMS {
        let mut socket = http::connect(server.address())?;
        socket.write_all(&request)?;
        streams.push(socket);
    }
    let mut begun = Vec::new();
    for socket in &mut streams {
        let mut bytes = vec![0; 400];
        socket.read_exact(&mut bytes)?;
        begun.push(bytes);
    }
    let start = Instant::now();
    process::show(Command::new("kill").args(["-TERM", &server.id().to_string()]))?;
    for (mut socket, bytes) in streams.into_iter().zip(begun) {
        let reply = http::receive_rest(&mut socket, bytes)?.context("a stream has no answer")?;
        if !reply.is_finished_stream() {
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            bail!("a stream did not end: {}", text.lines().last().unwrap_or_default());
        }
    }
    let status = server.wait(END_TIMEOUT)?;
    ensure!(status.success(), "the server ended with {status}");
    check_log(&server.log())?;
    Ok(start.elapsed().as_secs_f64())
}
