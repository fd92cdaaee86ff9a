//! Running other programs, and being interrupted while they run.

use anyhow::{Context, Result, bail};
use std::{
    env, fs, io,
    path::{Path, PathBuf, absolute},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C ends the program that is running, not this one: it cleans up first.
pub fn note_interrupts() {
    let noted = ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed));
    noted.expect("no other handler is set");
}

/// Whether Ctrl-C was pressed.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// An error if Ctrl-C was pressed.
///
/// # Errors
/// "interrupted".
pub fn check_interrupt() -> Result<()> {
    if interrupted() {
        bail!("interrupted");
    }
    Ok(())
}

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a directory of the repository")
}

/// cargo, in the repository's root, with the cache where this program sees it, and without what `cargo run` says of this
/// package: ring would be built again for each change of it, and all that needs it.
///
/// # Errors
/// If there is no place for the cache.
pub fn cargo() -> Result<Command> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(repository()).env("HALFWARP_CACHE", cache_dir()?);
    for (name, _) in env::vars_os() {
        let of_package = ["CARGO_PKG_", "CARGO_MANIFEST_"];
        if name.to_str().is_some_and(|name| of_package.iter().any(|of| name.starts_with(of))) {
            cargo.env_remove(name);
        }
    }
    Ok(cargo)
}

/// Builds the program `halfwarp` with these options of cargo; returns a command of it.
///
/// # Errors
/// If it cannot be built, or there is no place for the cache.
pub fn halfwarp(options: &[&str]) -> Result<Command> {
    show(cargo()?.args(["build", "--package", "halfwarp"]).args(options))?;
    let profile = if options.contains(&"--release") { "release" } else { "debug" };
    let name = format!("halfwarp{}", env::consts::EXE_SUFFIX);
    let mut halfwarp = Command::new(target_dir()?.join(profile).join(name));
    halfwarp.env("HALFWARP_CACHE", cache_dir()?).env_remove("HALFWARP_API_KEY");
    Ok(halfwarp)
}

/// A command as one types it.
pub fn shell_line(program: &str, words: &[&str]) -> String {
    let quoted = |word: &&str| {
        if word.contains(' ') { format!("{word:?}") } else { (*word).to_owned() }
    };
    [program.to_owned()].into_iter().chain(words.iter().map(quoted)).collect::<Vec<_>>().join(" ")
}

/// A command of cargo in `dir`, a workspace of its own, with the target directory and the profile of this one: dependencies
/// that the tests have built serve there too.
///
/// # Errors
/// If the profile cannot be read or written, or there is no place for the cache.
pub fn guest_cargo(dir: &Path, command: &str) -> Result<Command> {
    let manifest = fs::read_to_string(repository().join("Cargo.toml"))?;
    let target_dir = target_dir()?;
    let profile = target_dir.join("xtask/dev-profile.toml");
    fs::create_dir_all(target_dir.join("xtask"))?;
    fs::write(&profile, dev_profile(&manifest))?;
    let mut cargo = cargo()?;
    cargo.current_dir(dir).env("CARGO_TARGET_DIR", target_dir);
    // In this order: commands that are programs of their own, as clippy is, do not get options of cargo.
    cargo.args([command, "--config"]).arg(profile);
    Ok(cargo)
}

/// The tables of the profile `dev` in a manifest.
fn dev_profile(manifest: &str) -> String {
    let mut is_kept = false;
    let lines = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            is_kept = line.starts_with("[profile.dev.") || *line == "[profile.dev]";
        }
        is_kept
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// The cache, whatever directory the programs that are started run in.
///
/// # Errors
/// If there is no place for it.
pub fn cache_dir() -> Result<PathBuf> {
    Ok(absolute(model_cache::cache_dir()?)?)
}

/// Where cargo builds: `CARGO_TARGET_DIR`, else `target` in the repository.
///
/// # Errors
/// If the current directory is unknown.
pub fn target_dir() -> Result<PathBuf> {
    Ok(match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => absolute(dir)?,
        None => repository().join("target"),
    })
}

/// What rustc compiles for on this machine, as `x86_64-unknown-linux-gnu`.
///
/// # Errors
/// If rustc cannot be run.
pub fn host_target() -> Result<String> {
    let printed = capture(Command::new("rustc").arg("-vV").current_dir(repository()))?;
    let host = printed.stdout.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV names no host")?.to_owned())
}

/// Runs a command that reports its own progress to the user.
///
/// # Errors
/// If it cannot be started or fails.
pub fn show(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| cannot_start(command))?;
    check_interrupt()?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs a command, with its progress on stderr; if it fails, its own last word is the error.
///
/// # Errors
/// If it cannot be started or fails.
pub fn progress(command: &mut Command) -> Result<()> {
    command.stdout(Stdio::from(io::stderr())).stderr(Stdio::piped());
    output(command).map(drop)
}

/// What a command printed.
pub struct Printed {
    /// On its standard output.
    pub stdout: String,
    /// On its standard error.
    pub stderr: String,
}

/// Runs a command and returns what it printed.
///
/// # Errors
/// If it cannot be started or fails.
pub fn capture(command: &mut Command) -> Result<Printed> {
    let output = output(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Printed { stdout: text(output.stdout), stderr: text(output.stderr) })
}

fn output(command: &mut Command) -> Result<Output> {
    let child = command.stdin(Stdio::null()).spawn().with_context(|| cannot_start(command))?;
    let output = child.wait_with_output()?;
    check_interrupt()?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let why = cause(&stderr).map_or_else(|| output.status.to_string(), str::to_owned);
        bail!("{why}\n  in: {}", shown(command));
    }
    Ok(output)
}

/// The line that says why a program failed: the one about a full disk, else the last.
fn cause(stderr: &str) -> Option<&str> {
    let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().find(|line| line.contains("No space left on device")).or_else(|| lines().next_back())
}

fn cannot_start(command: &Command) -> String {
    format!("cannot start {}", command.get_program().to_string_lossy())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_of_tests_is_found_in_the_manifest() {
        let manifest = "[a]\nb = 1\n[profile.dev]\nc = 2\n\n[profile.dev.package.\"*\"]\nd = 3\n\
                        [profile.development]\ne = 4\n[profile.release]\nf = 5\n";
        let want = "[profile.dev]\nc = 2\n\n[profile.dev.package.\"*\"]\nd = 3\n";
        assert_eq!(dev_profile(manifest), want);
        let manifest = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
        assert!(dev_profile(&manifest).contains("[profile.dev.package.simt]\nopt-level = 3\n"));
    }
}
