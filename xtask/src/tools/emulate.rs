//! `cargo xtask emulate`: the emulator's tests with a given number of seeds.

use anyhow::{Context, Result, bail};
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    time::Instant,
};

use crate::process;

/// Environment variables for `simt::seeds`: the number of seeds, and the number of seeds per case.
const SEEDS_VARIABLE: &str = "HALFWARP_EMULATE_SEEDS";
const PER_CASE_VARIABLE: &str = "HALFWARP_EMULATE_SEEDS_PER_CASE";

/// Environment variable of the library's tests: cases that show no kernel that others do not run too.
const ALL_VARIABLE: &str = "HALFWARP_EMULATE_ALL";

/// Tests that run kernels on the emulator: `cargo test`'s arguments, and the most seeds per case.
struct Suite {
    arguments: &'static [&'static str],
    seeds_per_case: Option<u64>,
}

impl Suite {
    const fn with_all_seeds(arguments: &'static [&'static str]) -> Self {
        Suite { arguments, seeds_per_case: None }
    }
}

/// Most seeds per case of `kernels`, whose cases are large.
const SEEDS_PER_KERNEL_CASE: u64 = 40;

const SUITES: [Suite; 5] = [
    Suite::with_all_seeds(&["--package", "simt"]),
    Suite::with_all_seeds(&["--package", "cuda_std"]),
    Suite::with_all_seeds(&["--package", "conformance", "--test", "conformance", "emulated::"]),
    Suite {
        arguments: &["--package", "kernels", "--test", "kernels"],
        seeds_per_case: Some(SEEDS_PER_KERNEL_CASE),
    },
    Suite::with_all_seeds(&[
        "--package",
        "halfwarp",
        "--features",
        "emulator",
        "--test",
        "batch_invariance",
        "--test",
        "executors",
        "--test",
        "goldens",
    ]),
];

/// Runs all suites with `seeds` seeds; prints the number of tests and the time.
///
/// # Errors
/// If `seeds` is not a positive number, or if a test fails.
pub fn run(seeds: &str) -> Result<()> {
    let Some(seeds) = seeds.parse::<u64>().ok().filter(|&seeds| seeds > 0) else {
        bail!("--seeds {seeds}: expected a positive number");
    };
    let start = Instant::now();
    let mut passed = 0;
    for suite in &SUITES {
        passed += run_suite(suite, seeds)?;
    }
    let seconds = start.elapsed().as_secs();
    let of_kernels = match SEEDS_PER_KERNEL_CASE {
        per_case if per_case < seeds => {
            format!(", {per_case} of them per case of `kernels`")
        }
        _ => String::new(),
    };
    println!("{passed} tests passed with {seeds} seeds{of_kernels}, in {seconds} s");
    Ok(())
}

/// Runs one suite and prints its output; returns the number of tests that passed.
fn run_suite(suite: &Suite, seeds: u64) -> Result<u64> {
    let mut cargo = process::cargo()?;
    cargo.arg("test").args(suite.arguments).stdout(Stdio::piped());
    let per_case = suite.seeds_per_case.unwrap_or(seeds);
    cargo.env(SEEDS_VARIABLE, seeds.to_string()).env(PER_CASE_VARIABLE, per_case.to_string());
    cargo.env(ALL_VARIABLE, "1");
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
        bail!("cargo test {} failed ({status})", suite.arguments.join(" "));
    }
    Ok(passed)
}

/// The number of passed tests, if `line` is the last line of a test program.
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
