//! `cargo xtask clients`: the server, talked to by the clients that people use: openai-python,
//! langchain-openai and lm-eval.

use crate::{process, server::Server, setup};
use anyhow::Result;
use std::{fs, path::PathBuf, process::Command};

/// In the repository: a script for each client, and the packages that they need.
const SCRIPTS: &str = "tests/clients";
const CLIENTS: [&str; 3] = ["openai_python.py", "langchain_chat.py", "lm_eval_task.py"];
const REQUIREMENTS: &str = "requirements.txt";

/// Sets up the default model and the clients, builds and starts the server on the CPU, and runs every client's script.
///
/// # Errors
/// If anything of it fails.
pub fn run() -> Result<()> {
    setup::run()?;
    let scripts = process::repository().join(SCRIPTS);
    let python = python()?;
    let server = Server::start(&["-c", "2048", "--log-level", "off"])?;
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
