//! The processes: two workers and the frontend, and what the workers count.

use super::Device;
use super::client::Client;
use crate::process;
use crate::tools::server;
use anyhow::{Context, Result, bail, ensure};
use std::{
    array, fmt,
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

const NUM_WORKERS: usize = 2;
/// How long everything may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);
/// Lines of each log that an error shows.
const LOG_LINES: usize = 12;
/// What clients call the model.
pub const MODEL: &str = "tiny";

/// Passes the events of workers on to the frontend: without it each worker would bind all interfaces.
const BROKER: &str = "
import sys, zmq
context = zmq.Context()
xsub, xpub = context.socket(zmq.XSUB), context.socket(zmq.XPUB)
xsub.bind(sys.argv[1])
xpub.bind(sys.argv[2])
zmq.proxy(xsub, xpub)
";
/// Sockets of the broker in the directory of the demo: for workers, and for the frontend.
const SOCKETS: [&str; 2] = ["xsub", "xpub"];

/// A process; killed when it is dropped.
struct Process {
    child: Child,
    log: PathBuf,
    /// Where it serves HTTP, on 127.0.0.1; 0 for nowhere.
    port: u16,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a worker has counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    cached_tokens: usize,
    generated_tokens: usize,
}

/// The workers and the frontend.
pub struct Cluster {
    device: Device,
    /// The frontend is dropped first, the broker last.
    frontend: Process,
    workers: [Process; NUM_WORKERS],
    broker: Process,
    client: Client,
}

impl Cluster {
    /// Starts the processes, which find each other by files in `dir`.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start(
        dir: &Path,
        model: &Path,
        python: &Path,
        worker: &Path,
        device: Device,
    ) -> Result<Self> {
        let ports = free_ports::<{ NUM_WORKERS + 1 }>()?;
        let spawn = |name: &str, command: &mut Command, port| spawn(dir, name, command, port);
        let threads = thread::available_parallelism().map_or(1, |cores| cores.get());
        let mut command = Command::new(python);
        command.args(["-c", BROKER]).args(SOCKETS.map(|socket| ipc(dir, socket)));
        let broker = spawn("broker", &mut command, 0)?;
        let mut workers = Vec::new();
        for (index, &port) in ports[..NUM_WORKERS].iter().enumerate() {
            let mut command = Command::new(worker);
            command.arg("-m").arg(model).args(["--served-model-name", MODEL]);
            command.args(["--device", &device_name(device, index), "--max-num-seqs", "4"]);
            command.env("DYN_SYSTEM_PORT", port.to_string());
            command.env("RAYON_NUM_THREADS", (threads / NUM_WORKERS).max(1).to_string());
            workers.push(spawn(&format!("worker-{index}"), &mut command, port)?);
        }
        let port = ports[NUM_WORKERS];
        let mut command = Command::new(python);
        command.args(["-m", "dynamo.frontend", "--router-mode", "kv", "--migration-limit", "3"]);
        command.args(["--http-host", "127.0.0.1", "--http-port", &port.to_string()]);
        let frontend = spawn("frontend", &mut command, port)?;
        let workers = workers.try_into().ok().context("a worker each")?;
        let client = Client::new(port);
        Ok(Cluster { device, frontend, workers, broker, client })
    }

    /// A client of the frontend.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until the workers have loaded the model and the frontend has found them.
    ///
    /// # Errors
    /// If a process ends, or it takes too long.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.is_ready() {
            process::check_interrupt()?;
            if let Some(status) = self.ended()? {
                bail!("a process has ended ({status}); the logs say\n{}", self.logs());
            }
            if start.elapsed() > START_TIMEOUT {
                bail!("the frontend has not found the workers; the logs say\n{}", self.logs());
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// How a process has ended, if one has.
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        for process in self.workers.iter_mut().chain([&mut self.frontend, &mut self.broker]) {
            if let Some(status) = process.child.try_wait()? {
                return Ok(Some(status));
            }
        }
        Ok(None)
    }

    fn is_ready(&self) -> bool {
        (0..NUM_WORKERS).all(|worker| self.counts_of(worker).is_ok())
            && self.client.num_workers().is_ok_and(|found| found == NUM_WORKERS)
    }

    /// What the workers have counted; nothing for one that was killed.
    ///
    /// # Errors
    /// If none of them says it.
    pub fn counts(&self) -> Result<[Counts; NUM_WORKERS]> {
        let counts: [_; NUM_WORKERS] = array::from_fn(|worker| self.counts_of(worker));
        ensure!(counts.iter().any(Result::is_ok), "no worker answers");
        Ok(counts.map(Result::unwrap_or_default))
    }

    fn counts_of(&self, worker: usize) -> Result<Counts> {
        Ok(Counts {
            cached_tokens: self.metric(worker, "prefix_cache_hits_total")?,
            generated_tokens: self.metric(worker, "generation_tokens_total")?,
        })
    }

    fn metrics(&self, worker: usize) -> Result<String> {
        server::metrics(&format!("127.0.0.1:{}", self.workers[worker].port))
    }

    fn metric(&self, worker: usize, name: &str) -> Result<usize> {
        Ok(server::metric(&self.metrics(worker)?, name)? as usize)
    }

    /// The worker that Dynamo knows by `id`.
    ///
    /// # Errors
    /// If none is.
    pub fn worker(&self, id: u64) -> Result<usize> {
        let label = format!("worker_id=\"{id:x}\"");
        let is_it = |&worker: &usize| self.metrics(worker).is_ok_and(|text| text.contains(&label));
        (0..NUM_WORKERS).find(is_it).with_context(|| format!("no worker {id}"))
    }

    /// Tokens of prompts that a worker has found in its cache after `before`.
    ///
    /// # Errors
    /// If it does not say it.
    pub fn cached_since(&self, worker: usize, before: &[Counts]) -> Result<usize> {
        Ok(self.counts_of(worker)?.cached_tokens - before[worker].cached_tokens)
    }

    /// Tokens that a worker has generated after `before`.
    ///
    /// # Errors
    /// If it does not say it.
    pub fn generated_since(&self, worker: usize, before: &[Counts]) -> Result<usize> {
        Ok(self.counts_of(worker)?.generated_tokens - before[worker].generated_tokens)
    }

    /// The worker that runs a request.
    ///
    /// # Errors
    /// If there is none.
    pub fn running_worker(&self) -> Result<usize> {
        let is_running = |&worker: &usize| {
            self.metric(worker, "num_requests_running").is_ok_and(|running| running > 0)
        };
        (0..NUM_WORKERS).find(is_running).context("no worker runs the stream")
    }

    /// Kills a worker: it has no time to say goodbye.
    ///
    /// # Errors
    /// If the system refuses it.
    pub fn kill(&mut self, worker: usize) -> Result<()> {
        let child = &mut self.workers[worker].child;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// The ends of all logs.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for process in self.workers.iter().chain([&self.frontend, &self.broker]) {
            text += &format!("{}\n", process.log.display());
            let log = fs::read(&process.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).into_owned();
            let lines: Vec<&str> = log.lines().collect();
            for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                text += &format!("  {line}\n");
            }
        }
        text
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Process { child, port, .. }) in self.workers.iter().enumerate() {
            let (device, id) = (device_name(self.device, index), child.id());
            writeln!(
                f,
                "worker {index}   {device}, process {id}, http://127.0.0.1:{port}/metrics"
            )?;
        }
        let Process { child, port, .. } = &self.frontend;
        writeln!(f, "frontend   process {}, http://127.0.0.1:{port}/v1", child.id())
    }
}

fn device_name(device: Device, worker: usize) -> String {
    match device {
        Device::Cpu => "cpu".to_owned(),
        Device::Cuda => format!("cuda:{worker}"),
    }
}

fn ipc(dir: &Path, socket: &str) -> String {
    format!("ipc://{}", dir.join(socket).display())
}

/// Starts a process that binds nothing but 127.0.0.1, with its output in a file.
fn spawn(dir: &Path, name: &str, command: &mut Command, port: u16) -> Result<Process> {
    let log = dir.join(format!("{name}.log"));
    let file = File::create(&log)?;
    command.env("DYN_DISCOVERY_BACKEND", "file").env("DYN_FILE_KV", dir.join("discovery"));
    command.env("DYN_REQUEST_PLANE", "tcp").env("DYN_EVENT_PLANE", "zmq");
    let broker = SOCKETS.map(|socket| format!("{socket}={}", ipc(dir, socket)));
    command.env("DYN_ZMQ_BROKER_URL", broker.join(","));
    command.env("DYN_NAMESPACE", "halfwarp-demo");
    for host in ["TCP_RPC_HOST", "TCP_RESPONSE_STREAM_HOST", "EVENT_PLANE_HOST", "SYSTEM_HOST"] {
        command.env(format!("DYN_{host}"), "127.0.0.1");
    }
    // The frontend keeps copies of models' files at home.
    command
        .env("DYN_SDK_DISABLE_ANSI_LOGGING", "1")
        .env("HOME", dir)
        .env("HALFWARP_CACHE", process::cache_dir()?);
    let child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn();
    let child = child.with_context(|| format!("cannot start {name}"))?;
    Ok(Process { child, log, port })
}

/// Ports that nobody listens at now, all different. Dynamo reads that of metrics as an i16.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // Not the first ones: another demo may be about to take them.
    let first = 20_000 + std::process::id() as u16 % 10_000;
    let is_free = |&port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let ports: Vec<u16> = (first..i16::MAX as u16).filter(is_free).take(N).collect();
    ports.try_into().ok().context("no port is free")
}
