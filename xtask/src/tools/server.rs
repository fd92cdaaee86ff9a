//! The real `halfwarp serve` on the CPU, for what talks to it.

use crate::process;
use crate::tools::http;
use anyhow::{Context, Result, bail, ensure};
use std::{
    ffi::OsStr,
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// The model of a server where none is named.
const DEFAULT_MODEL: &str = "smollm2-135m-instruct";
/// How long the model may load.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);

/// `halfwarp serve`; killed when it is dropped.
pub struct Server {
    child: Child,
    /// As `http://127.0.0.1:PORT`.
    pub url: String,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Builds the program for development, starts it with `args`, and waits until it has loaded its model: the default one
    /// unless `args` name another.
    ///
    /// # Errors
    /// If it cannot be built or ends.
    pub fn start<A: AsRef<OsStr>>(args: &[A]) -> Result<Self> {
        let mut serve = process::halfwarp(&[])?;
        serve.args(["serve", "--device", "cpu", "--port", "0"]).args(args);
        if !args.iter().any(|arg| arg.as_ref() == "-m") {
            serve.args(["-m", DEFAULT_MODEL]);
        }
        let child = serve.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let child = child.context("cannot start halfwarp")?;
        let mut server = Server { child, url: String::new(), log: Arc::default() };
        let stderr = server.child.stderr.take().context("it is piped")?;
        let mut lines = BufReader::new(stderr).lines();
        while server.url.is_empty() {
            let line = lines.next().context("the server ended before it listened")??;
            match line.strip_prefix("listening on ") {
                Some(url) => url.clone_into(&mut server.url),
                None => eprintln!("{line}"),
            }
        }
        // A full pipe would block it.
        let log = Arc::clone(&server.log);
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                // A panic, a failure.
                if !line.contains(" INFO ") {
                    eprintln!("{line}");
                }
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                *log += &line;
                log.push('\n');
            }
        });
        server.wait_until_ready()?;
        Ok(server)
    }

    /// As `127.0.0.1:PORT`.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Process id of the server.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to its standard error since it listened.
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An error if it has ended.
    ///
    /// # Errors
    /// What it wrote last.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = self.log();
            bail!("the server has ended ({status}): {}", log.lines().last().unwrap_or_default());
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it takes longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(start.elapsed() < limit, "the server has not ended after {limit:?}");
            thread::sleep(PAUSE);
        }
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.is_ready() {
            process::check_interrupt()?;
            self.check()?;
            ensure!(start.elapsed() < LOAD_TIMEOUT, "the server does not load its model");
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let reply = http::exchange(self.address(), &http::get("/ready"));
        reply.is_ok_and(|reply| reply.is_some_and(|reply| reply.status == 200))
    }

    /// The values of some metrics, by their names without `halfwarp:`.
    ///
    /// # Errors
    /// If there is no such metric.
    pub fn metrics<const N: usize>(&self, names: [&str; N]) -> Result<[f64; N]> {
        let text = metrics(self.address())?;
        let mut values = [0.0; N];
        for (value, name) in values.iter_mut().zip(names) {
            *value = metric(&text, name)?;
        }
        Ok(values)
    }
}

/// The metrics of the server at `address`.
///
/// # Errors
/// If it does not answer.
pub fn metrics(address: &str) -> Result<String> {
    let reply = http::exchange(address, &http::get("/metrics"))?.context("no metrics")?;
    Ok(String::from_utf8(reply.body)?)
}

/// A value of `metrics`, by its name without `halfwarp:`.
///
/// # Errors
/// If there is no such metric.
pub fn metric(metrics: &str, name: &str) -> Result<f64> {
    let start = format!("halfwarp:{name}{{");
    let line = metrics.lines().find(|line| line.starts_with(&start));
    let line = line.with_context(|| format!("no metric {name}"))?;
    line.rsplit(' ').next().unwrap_or_default().parse().context(line.to_owned())
}

/// Writes a tiny model with random weights to `dir`: what it says means nothing, and costs next to nothing. Its chat
/// template is that of a model of the fixtures.
///
/// # Errors
/// If `halfwarp` cannot be built, or a file not written.
pub fn make_tiny_model(dir: &Path, template: &str) -> Result<()> {
    process::show(process::halfwarp(&[])?.args(["random-model", "tiny"]).arg(dir))?;
    let template = format!("templates/{template}.jinja");
    for (from, to) in
        [("byte_level/tokenizer.json", "tokenizer.json"), (&template, "chat_template.jinja")]
    {
        let from = process::repository().join("tests/fixtures/text").join(from);
        fs::copy(&from, dir.join(to)).with_context(|| from.display().to_string())?;
    }
    Ok(())
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
