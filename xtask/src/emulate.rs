//! The emulator's tests, under as many seeds as one likes.

use anyhow::{Context, Result, bail};
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    time::Instant,
};

use crate::process;

/// The variables by which `simt::seeds` knows how many seeds there are, and how many of them a case takes.
const SEEDS_VARIABLE: &str = "HALFWARP_EMULATE_SEEDS";
const PER_CASE_VARIABLE: &str = "HALFWARP_EMULATE_SEEDS_PER_CASE";

/// Tests that run kernels on the emulator: `cargo test`'s arguments, and how many seeds a case takes at most.
struct Suite {
    arguments: &'static [&'static str],
    seeds_per_case: Option<u64>,
}

impl Suite {
    const fn of_all_seeds(arguments: &'static [&'static str]) -> Self {
        Suite { arguments, seeds_per_case: None }
    }
}

/// So many seeds a case of the kernels takes, which are large, at most.
const SEEDS_PER_KERNEL_CASE: u64 = 40;

const SUITES: [Suite; 4] = [
    Suite::of_all_seeds(&["--package", "simt"]),
    Suite::of_all_seeds(&["--package", "cuda_std"]),
    Suite::of_all_seeds(&["--package", "conformance", "--test", "conformance", "emulated::"]),
    Suite {
        arguments: &["--package", "kernels", "--test", "emulated"],
        seeds_per_case: Some(SEEDS_PER_KERNEL_CASE),
    },
];

/// Runs all suites under `seeds` seeds; prints how many tests they are, and how long they took.
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
            format!(", a case of `kernels` under {per_case} of them in turn")
        }
        _ => String::new(),
    };
    println!("{passed} tests passed under {seeds} seeds{of_kernels}, in {seconds} s");
    Ok(())
}

/// Runs one suite, showing its output, and returns how many tests passed.
fn run_suite(suite: &Suite, seeds: u64) -> Result<u64> {
    let mut cargo = process::cargo()?;
    cargo.arg("test").args(suite.arguments).stdout(Stdio::piped());
    let per_case = suite.seeds_per_case.unwrap_or(seeds);
    cargo.env(SEEDS_VARIABLE, seeds.to_string()).env(PER_CASE_VARIABLE, per_case.to_string());
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
