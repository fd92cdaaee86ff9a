//! `cargo xtask dynamo-demo`: two workers of `crates/dynamo` behind NVIDIA Dynamo's frontend, on one machine.
//!
//! Prompts go to the worker that has their beginning, and a stream goes on when its worker is killed. The model is a tiny
//! one with random weights: what it says means nothing.

mod client;
mod cluster;
mod install;

use crate::tools::server;
use anyhow::{Result, anyhow, bail, ensure};
use client::{Answer, Chat, Usage};
use cluster::Cluster;
use std::{fs, path::Path, thread, time::Duration};

/// The frontend looks for it.
const TOKENIZER_CONFIG: &str = r#"{"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}"#;

/// How long events of the cache take to the router, with room to spare.
const SETTLING: Duration = Duration::from_secs(1);

/// Tokens of the stream, and those after which its worker is killed.
const STREAM_TOKENS: usize = 1500;
const TOKENS_BEFORE_KILL: usize = 100;

/// What the workers run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Both on the CPU.
    Cpu,
    /// The first on the first GPU, the second on the second.
    Cuda,
}

/// Installs and builds what is missing, starts everything on 127.0.0.1, and sends the requests.
///
/// # Errors
/// What is missing, or was not as it has to be. All processes have ended then too.
pub fn run(device: Device) -> Result<()> {
    install::check_tools()?;
    let python = install::frontend()?;
    let worker = install::worker()?;
    let dir = tempfile::tempdir()?;
    let model = dir.path().join("tiny");
    make_model(&model)?;
    let mut cluster = Cluster::start(dir.path(), &model, &python, &worker, device)?;
    cluster.wait_until_ready()?;
    println!("{cluster}");
    let shown = route_by_prefix(&cluster).and_then(|()| go_on_after_a_kill(&mut cluster));
    shown.map_err(|error| anyhow!("{error:#}; the logs say\n{}", cluster.logs()))
}

fn make_model(dir: &Path) -> Result<()> {
    server::make_tiny_model(dir, "smollm2")?;
    Ok(fs::write(dir.join("tokenizer_config.json"), TOKENIZER_CONFIG)?)
}

/// Two conversations that begin at the same time, each of which has to stay with its worker.
fn route_by_prefix(cluster: &Cluster) -> Result<()> {
    const SUBJECTS: [&str; 2] = ["fox", "whale"];
    println!("{:<36}{:>8}{:>9}{:>9}{:>9}", "request", "worker", "prompt", "cached", "answer");
    let show = |request: String, worker: usize, usage: Usage, cached: usize| {
        let Usage { prompt_tokens, completion_tokens } = usage;
        println!("{request:<36}{worker:>8}{prompt_tokens:>9}{cached:>9}{completion_tokens:>9}");
    };
    let mut chats = SUBJECTS.map(|subject| Chat::about(subject, 60));
    let firsts = thread::scope(|scope| {
        let ask = |chat| scope.spawn(move || cluster.client().complete(chat, 200));
        chats.each_ref().map(ask).map(|asked| asked.join().unwrap_or_else(|_| bail!("a panic")))
    });
    let mut homes = Vec::new();
    for ((subject, chat), first) in SUBJECTS.into_iter().zip(&mut chats).zip(firsts) {
        let Answer { text, usage, worker_id } = first?;
        let worker = cluster.worker(worker_id)?;
        show(format!("the tale of the {subject}"), worker, usage, 0);
        homes.push(worker);
        chat.go_on(&text);
    }
    thread::sleep(SETTLING);
    for what in ["goes on", "goes on again"] {
        for ((subject, chat), &home) in SUBJECTS.into_iter().zip(&mut chats).zip(&homes) {
            let before = cluster.counts()?;
            let Answer { text, usage, worker_id } = cluster.client().complete(chat, 16)?;
            thread::sleep(SETTLING);
            let worker = cluster.worker(worker_id)?;
            let cached = cluster.cached_since(worker, &before)?;
            show(format!("the tale of the {subject} {what}"), worker, usage, cached);
            ensure!(worker == home, "the router sent it to another worker");
            ensure!(cached > usage.prompt_tokens / 2, "most of the prompt was computed again");
            chat.go_on(&text);
        }
    }
    Ok(())
}

/// A stream whose worker is killed: another one has to go on, and no token may be lost or counted twice.
fn go_on_after_a_kill(cluster: &mut Cluster) -> Result<()> {
    let chat = Chat::about("stork", 4);
    let Usage { prompt_tokens, .. } = cluster.client().complete(&chat, 1)?.usage;
    thread::sleep(SETTLING);
    let before = cluster.counts()?;
    let mut stream = cluster.client().stream(&chat, STREAM_TOKENS)?;
    stream.read_tokens(TOKENS_BEFORE_KILL)?;
    let killed = cluster.running_worker()?;
    cluster.kill(killed)?;
    println!(
        "a stream of {STREAM_TOKENS} tokens: worker {killed} is killed after {}",
        stream.tokens()
    );
    let end = stream.read_to_end()?;
    thread::sleep(SETTLING);
    let survivor = 1 - killed;
    let generated = cluster.generated_since(survivor, &before)?;
    println!(
        "worker {survivor} generates the last {generated}: {} tokens, finish_reason {}; the prompt has {} tokens",
        end.usage.completion_tokens, end.finish_reason, end.usage.prompt_tokens
    );
    ensure!((1..STREAM_TOKENS).contains(&generated), "no other worker went on");
    ensure!(end.finish_reason == "length", "the stream ended too early");
    ensure!(end.usage.completion_tokens == STREAM_TOKENS, "tokens were lost or counted twice");
    ensure!(
        end.usage.prompt_tokens == prompt_tokens,
        "the prompt was {prompt_tokens} tokens before"
    );
    Ok(())
}
