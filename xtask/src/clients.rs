//! `cargo xtask clients`: the server, talked to by the clients that people use: openai-python,
//! langchain-openai and lm-eval.

use crate::{process, setup};
use anyhow::{Context, Result, ensure};
use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// In the repository: a script for each client, and the packages that they need.
const SCRIPTS: &str = "tests/clients";
const CLIENTS: [&str; 3] = ["openai_python.py", "langchain_chat.py", "lm_eval_task.py"];
const REQUIREMENTS: &str = "requirements.txt";

/// How long the model may load.
const LOAD_TIMEOUT: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(200);

/// Sets up the default model and the clients, builds and starts the server on the CPU, and runs every client's script.
///
/// # Errors
/// If anything of it fails.
pub fn run() -> Result<()> {
    setup::run()?;
    let scripts = process::repository().join(SCRIPTS);
    let python = python()?;
    process::show(process::cargo()?.args(["build", "--package", "halfwarp"]))?;
    let server = Server::start()?;
    for client in CLIENTS {
        eprintln!("{client}");
        process::show(Command::new(&python).arg(scripts.join(client)).arg(&server.url))?;
    }
    Ok(())
}

/// Python with the packages of the requirements, in a virtual environment in the cache.
///
/// # Errors
/// If they cannot be installed.
pub fn python() -> Result<PathBuf> {
    let requirements = process::repository().join(SCRIPTS).join(REQUIREMENTS);
    let dir = process::cache_dir()?.join("clients");
    let (python, installed) = (dir.join("bin/python"), dir.join(REQUIREMENTS));
    let wanted = fs::read_to_string(&requirements)?;
    if fs::read_to_string(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    eprintln!("clients: {}", dir.display());
    process::progress(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    process::progress(Command::new(&python).args(pip).arg(requirements))?;
    // Last: an environment without it is made again.
    fs::write(installed, wanted)?;
    Ok(python)
}

/// `halfwarp serve` with the default model; ended when it is dropped.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start() -> Result<Self> {
        let name = format!("halfwarp{}", env::consts::EXE_SUFFIX);
        let mut serve = Command::new(process::target_dir()?.join("debug").join(name));
        serve.args(["serve", "--device", "cpu", "--port", "0", "-c", "2048", "--log-level", "off"]);
        serve.env("HALFWARP_CACHE", process::cache_dir()?).env_remove("HALFWARP_API_KEY");
        let child = serve.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
        let child = child.context("cannot start halfwarp")?;
        let mut server = Server { child, url: String::new() };
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
        thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
        server.wait()?;
        Ok(server)
    }

    /// Waits until the model is loaded.
    fn wait(&mut self) -> Result<()> {
        let start = Instant::now();
        while !self.is_ready() {
            process::check_interrupt()?;
            let ended = self.child.try_wait()?;
            ensure!(ended.is_none(), "the server ended while it loaded its model");
            ensure!(start.elapsed() < LOAD_TIMEOUT, "the server does not load its model");
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let address = self.url.trim_start_matches("http://");
        let ask = || -> io::Result<String> {
            let mut socket = TcpStream::connect(address)?;
            socket.set_read_timeout(Some(LOAD_TIMEOUT))?;
            write!(socket, "GET /ready HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            socket.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
