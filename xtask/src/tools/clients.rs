//! `cargo xtask clients`: the server, talked to by the clients that people use (openai-python, anthropic's client,
//! langchain-openai, lm-eval), and used by agents: openai-agents, and Codex and Claude Code where there is npm.

use crate::tools::{programs, server::Server};
use crate::{process, setup};
use anyhow::{Result, ensure};
use std::{ffi::OsString, fs, path::Path, path::PathBuf, process::Command};

/// In the repository: a script for each client, and the packages that they need.
const SCRIPTS: &str = "tests/clients";
const CLIENTS: [&str; 4] =
    ["openai_python.py", "anthropic_python.py", "langchain_chat.py", "lm_eval_task.py"];
const AGENTS: &str = "coding_agents.py";
const JSON_SCHEMA: &str = "json_schema.py";
const REQUIREMENTS: &str = "requirements.txt";
const PACKAGES: &str = "package.json";
/// The agents' model: the first layer of the default one, as their prompts are long.
const SHORT_MODEL: &str = "short_model.py";

/// Sets up the default model and the clients, builds and starts the server on the CPU, and runs every client's script.
///
/// # Errors
/// If anything of it fails.
pub fn run() -> Result<()> {
    setup::run()?;
    let scripts = process::repository().join(SCRIPTS);
    let python = python()?;
    let script = |name: &str| {
        eprintln!("{name}");
        let mut command = Command::new(&python);
        command.arg("-B").arg(scripts.join(name));
        command
    };
    let server = Server::start(&["-c", "2048", "--log-level", "off"])?;
    for client in CLIENTS {
        process::show(script(client).arg(&server.url))?;
    }
    drop(server);
    let dir = process::cache_dir()?;
    let (whole, short) = (model_cache::DEFAULT.path(&dir), dir.join("clients/short.gguf"));
    process::show(script(SHORT_MODEL).arg(whole).arg(&short))?;
    let short = short.to_string_lossy();
    let options = ["-m", &*short, "--served-model-name", "scripted", "-c", "65536"];
    let server = Server::start(&[&options[..], &["--log-level", "off"]].concat())?;
    let mut agents = script(AGENTS);
    agents.args([&*server.url, "scripted"]).args(node_modules(&scripts)?);
    process::show(&mut agents)
}

/// Asks the default model on the CPU for JSON of schemas: each answer has to parse and validate. `args` go to the script.
///
/// # Errors
/// The first answers that are not of their schema.
pub fn json_schema(args: &[OsString]) -> Result<()> {
    setup::run()?;
    let mut script = Command::new(python()?);
    let server = Server::start(&["-c", "2048", "--log-level", "off"])?;
    script.arg("-B").arg(process::repository().join(SCRIPTS).join(JSON_SCHEMA));
    process::show(script.arg(&server.url).args(args))
}

/// Where npm has installed the agents that it has, in the cache; none without npm.
fn node_modules(scripts: &Path) -> Result<Option<PathBuf>> {
    if !Command::new("npm").arg("--version").output().is_ok_and(|ended| ended.status.success()) {
        eprintln!("clients: without npm there are no Codex and no Claude Code");
        return Ok(None);
    }
    let dir = process::cache_dir()?.join("clients-npm");
    fs::create_dir_all(&dir)?;
    let wanted = fs::read_to_string(scripts.join(PACKAGES))?;
    let (packages, modules) = (dir.join(PACKAGES), dir.join("node_modules"));
    if !modules.is_dir() || !fs::read_to_string(&packages).is_ok_and(|there| there == wanted) {
        fs::write(&packages, wanted)?;
        let mut install = Command::new("npm");
        install.current_dir(&dir).args(["install", "--no-audit", "--no-fund"]);
        let installed = process::progress(&mut install);
        // An environment without it is made again.
        installed.inspect_err(|_| drop(fs::remove_file(&packages)))?;
    }
    ensure!(modules.is_dir(), "npm has installed nothing in {}", dir.display());
    Ok(Some(modules))
}

/// Python with the packages of the requirements, in a virtual environment in the cache.
///
/// # Errors
/// If they cannot be installed.
pub fn python() -> Result<PathBuf> {
    let requirements = process::repository().join(SCRIPTS).join(REQUIREMENTS);
    let wanted = fs::read_to_string(&requirements)?;
    programs::python("clients", &wanted, &[&["-r", &requirements.to_string_lossy()]])
}
