//! `cargo xtask soak`: the server after thousands of requests, good and bad.
//!
//! A tiny random model on the CPU, so that requests and not tokens cost time. Every request is known by the seed and its
//! number: `--seed` repeats a run, apart from the order in which the server sees them.

mod case;
mod valid;
mod watch;
mod wrong;

use crate::process;
use crate::tools::{
    http::Client,
    options::Options,
    random::SplitMix64,
    server::{Server, make_tiny_model},
};
use anyhow::{Context, Result, bail, ensure};
use case::{CLIENT_TIMEOUT, KINDS, Kind, Outcome};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

/// Clients at once.
const NUM_CLIENTS: usize = 32;
/// After each round the server has to be idle.
const NUM_ROUNDS: usize = 10;
/// How much more memory may be resident at the end than in the first half. Until then what an allocator keeps for its threads
/// grows, and later goes up and down by half of this; a request that left 32 KB would leave 160 MB of the second half of 10,000.
const MAX_GROWTH_MB: f64 = 128.0;
/// So many have all that is to happen in the cache.
const MIN_REQUESTS: usize = 2000;
/// Failures that are told before the rest is given up.
const MAX_FAILURES: usize = 5;
/// A word of many texts, which no log may show.
const MARK: &str = "zanzibar";

/// A cache of 32 pages and a queue of 24: at times both are full.
const SIZES: [&str; 8] =
    ["-c", "2048", "--kv-cache-tokens", "2048", "--max-num-seqs", "8", "--max-queue", "24"];

/// Outcomes of requests, by kind.
type Counts = BTreeMap<(Kind, Outcome), usize>;

/// Runs the requests and checks the server after each round, then ends it in the middle of streams.
///
/// # Errors
/// What was not as it has to be.
pub fn run(options: Options) -> Result<()> {
    let model = tempfile::tempdir()?;
    // Its template knows tools and opens the reasoning of an answer.
    make_tiny_model(model.path(), "public/Qwen-QwQ-32B")?;
    let mut server = start(model.path())?;
    let start = Instant::now();
    let mut counts = Counts::new();
    let mut resident = Vec::new();
    for round in 1..=NUM_ROUNDS {
        let first = options.requests * (round - 1) / NUM_ROUNDS;
        let last = options.requests * round / NUM_ROUNDS;
        let answered = run_round(server.address(), options.seed, first..last, &mut counts);
        // What else is wrong follows from it.
        server.check()?;
        answered?;
        watch::wait_until_idle(&server)?;
        watch::check_log(&server.log())?;
        let mb = watch::memory_mb(server.id(), "VmRSS")?;
        resident.push(mb);
        eprintln!("{last} requests in {:.0} s, {mb:.0} MB", start.elapsed().as_secs_f64());
    }
    println!("{}", table(&counts));
    println!("{}", watch::counters(&server, options.requests >= MIN_REQUESTS)?);
    let warm = resident[..NUM_ROUNDS / 2].iter().copied().fold(0.0, f64::max);
    let end = resident[NUM_ROUNDS - 1];
    let peak = watch::memory_mb(server.id(), "VmHWM")?;
    println!(
        "memory    {warm:.0} MB in the first half, {end:.0} MB at the end, {peak:.0} MB at most"
    );
    let seconds = watch::end_in_mid_stream(&mut server)?;
    println!("SIGTERM   in mid-stream: all streams ended, exit code 0 after {seconds:.2} s");
    ensure!(
        end - warm <= MAX_GROWTH_MB,
        "memory grows from {warm:.0} to {end:.0} MB: {MAX_GROWTH_MB} MB are allowed"
    );
    Ok(())
}

fn start(model: &Path) -> Result<Server> {
    let model = model.to_str().context("the temporary directory is not UTF-8")?;
    let timeout = CLIENT_TIMEOUT.as_secs().to_string();
    let name = ["-m", model, "--served-model-name", "soak", "--timeout", &timeout];
    Server::start(&[&name[..], &SIZES].concat())
}

/// Sends requests of some numbers from all clients.
fn run_round(
    address: &str,
    seed: u64,
    numbers: std::ops::Range<usize>,
    counts: &mut Counts,
) -> Result<()> {
    let next = AtomicUsize::new(numbers.start);
    let results = Mutex::new((counts, Vec::new()));
    let lock = || results.lock().unwrap_or_else(PoisonError::into_inner);
    let run_client = || {
        let client = Client::new(address);
        while lock().1.len() < MAX_FAILURES && !process::interrupted() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return;
            }
            let mut random = SplitMix64(seed.rotate_left(32) ^ number as u64);
            let kind = Kind::any(&mut random);
            match kind.run(&client, &mut random) {
                Ok(outcome) => *lock().0.entry((kind, outcome)).or_default() += 1,
                Err(error) => lock().1.push(format!("request {number} ({kind:?}): {error:#}")),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..NUM_CLIENTS {
            scope.spawn(run_client);
        }
    });
    process::check_interrupt()?;
    let (_, failures) = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failures.is_empty() {
        bail!("{}", failures.join("\n  "));
    }
    Ok(())
}

/// How the requests of each kind ended.
fn table(counts: &Counts) -> String {
    let row = |(kind, _): &(Kind, usize)| {
        let own = || counts.iter().filter(|((of, _), _)| of == kind);
        let sum: usize = own().map(|(_, count)| count).sum();
        let outcomes: Vec<String> =
            own().map(|((_, outcome), count)| format!("{outcome}: {count}")).collect();
        format!("{:<14} {sum:>6}  {}", format!("{kind:?}"), outcomes.join(", "))
    };
    let rows: Vec<String> = KINDS.iter().map(row).collect();
    format!("{:<14} {:>6}  outcomes\n{}\n", "requests", "", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_comes() {
        let mut random = SplitMix64(1);
        let kinds: Vec<Kind> = (0..3000).map(|_| Kind::any(&mut random)).collect();
        assert!(KINDS.iter().all(|(kind, _)| kinds.contains(kind)));
    }
}
