//! The emulator's tests, under as many seeds as one likes.

use anyhow::{Context, Result, bail};
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    time::Instant,
};

use crate::process;

/// The variable that tells tests how many seeds there are: `simt::seeds` reads it.
const SEEDS_VARIABLE: &str = "HALFWARP_EMULATE_SEEDS";

/// All tests that run kernels on the emulator under these seeds: `cargo test`'s arguments.
const SUITES: [&[&str]; 4] = [
    &["--package", "simt"],
    &["--package", "cuda_std"],
    &["--package", "conformance", "--test", "conformance", "emulated::"],
    &["--package", "kernels", "--test", "emulated"],
];

/// Runs them under `seeds` seeds; prints how many they are, and how long they took.
///
/// # Errors
/// If `seeds` is no positive number, or if a test fails.
pub fn run(seeds: &str) -> Result<()> {
    if !seeds.parse::<u64>().is_ok_and(|seeds| seeds > 0) {
        bail!("--seeds {seeds}: expected a positive number");
    }
    let start = Instant::now();
    let mut passed = 0;
    for suite in SUITES {
        passed += run_suite(suite, seeds)?;
    }
    let seconds = start.elapsed().as_secs();
    println!("{passed} tests passed under {seeds} seeds each, in {seconds} s");
    Ok(())
}

/// Runs one suite, with its output shown; gives how many tests have passed.
fn run_suite(suite: &[&str], seeds: &str) -> Result<u64> {
    let mut cargo = process::cargo()?;
    cargo.arg("test").args(suite).env(SEEDS_VARIABLE, seeds).stdout(Stdio::piped());
    let mut tests = cargo.spawn().context("cannot start cargo")?;
    let stdout = tests.stdout.take().expect("it is piped");
    let mut passed = 0;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        println!("{line}");
        passed += passed_tests(&line);
    }
    let status = tests.wait()?;
    process::check_interrupt()?;
    if !status.success() {
        bail!("cargo test {} failed ({status})", suite.join(" "));
    }
    Ok(passed)
}

/// The tests that have passed, if it is the line that says so at the end of a test program.
fn passed_tests(line: &str) -> u64 {
    let count = line.strip_prefix("test result: ok. ").and_then(|rest| rest.split_once(" passed"));
    count.and_then(|(count, _)| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_counted_at_the_end() {
        let last = "test result: ok. 30 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out";
        assert_eq!(passed_tests(last), 30);
        assert_eq!(passed_tests("test result: FAILED. 29 passed; 1 failed"), 0);
        assert_eq!(passed_tests("test a::b ... ok"), 0);
    }
}
