//! Under which conditions a report is made.

use halfwarp::Device;
use halfwarp::exec::cuda;
use halfwarp::validate::{Conditions, now};
use std::process::Command;

/// The conditions of this process, for `model` on `device`.
pub fn here(model: String, device: Device) -> Conditions {
    let ordinal = device.cuda_ordinal();
    Conditions {
        command: command(std::env::args()),
        model,
        version: version(),
        driver: ordinal.and_then(|_| driver()),
        clocks: ordinal.and_then(clocks),
        date: now(),
    }
}

/// The command line as a shell takes it.
fn command(args: impl Iterator<Item = String>) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "-_./=:,+@%".contains(char);
    let quoted = args.skip(1).map(|arg| match arg.chars().all(is_plain) && !arg.is_empty() {
        true => arg,
        false => format!("'{}'", arg.replace('\'', r"'\''")),
    });
    ["halfwarp".to_owned()].into_iter().chain(quoted).collect::<Vec<_>>().join(" ")
}

/// The version, and the commit where the build knew it.
fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("HALFWARP_COMMIT").filter(|&commit| commit != "unknown") {
        Some(commit) => format!("{version}, commit {commit}"),
        None => version.to_owned(),
    }
}

/// The CUDA that the driver serves, and its release where the kernel module says it.
fn driver() -> Option<String> {
    let cuda = format!("CUDA {}", cuda::driver_version().ok()?);
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let release = module.split_whitespace().find(|word| {
        word.contains('.') && word.chars().all(|char| char.is_ascii_digit() || char == '.')
    });
    Some(match release {
        Some(release) => format!("{release}, {cuda}"),
        None => cuda,
    })
}

/// Clocks of the GPU's multiprocessors and memory, and the highest they can be, where `nvidia-smi`
/// is installed.
fn clocks(ordinal: usize) -> Option<String> {
    let query = "--query-gpu=clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem";
    let ordinal = ordinal.to_string();
    let args = [query, "--format=csv,noheader,nounits", "-i", &ordinal];
    let output = Command::new("nvidia-smi").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut values = text.trim().split(", ");
    let [sm, max_sm, mem, max_mem] = [(); 4].map(|()| values.next().unwrap_or("?"));
    let line = format!("SM {sm} of {max_sm} MHz, memory {mem} of {max_mem} MHz, after the runs");
    output.status.success().then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_run_again() {
        let args = ["/usr/bin/halfwarp", "validate", "-m", "my model's.gguf", "--seed=3", ""];
        let shown = command(args.map(str::to_owned).into_iter());
        assert_eq!(shown, r"halfwarp validate -m 'my model'\''s.gguf' --seed=3 ''");
    }
}
