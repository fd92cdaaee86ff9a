//! The seeds under which tests run kernels.

use std::env::{self, VarError};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// The variable that holds the number of seeds.
const VARIABLE: &str = "HALFWARP_EMULATE_SEEDS";

/// The number of seeds if it is not set.
const DEFAULT: u64 = 5;

/// The variable that holds the number of seeds of one case, if not all.
const PER_CASE_VARIABLE: &str = "HALFWARP_EMULATE_SEEDS_PER_CASE";

/// Cases that have taken seeds so far.
static CASES: AtomicU64 = AtomicU64::new(0);

/// The seeds under which a test case runs a kernel: 5, or as many as the environment variable
/// `HALFWARP_EMULATE_SEEDS` says. With `HALFWARP_EMULATE_SEEDS_PER_CASE` each case takes only so
/// many of them, and the next case the following ones.
///
/// # Panics
/// If a variable holds no positive number.
pub fn seeds() -> Range<u64> {
    let seeds = number(VARIABLE).unwrap_or(DEFAULT);
    let per_case = number(PER_CASE_VARIABLE).unwrap_or(seeds);
    case_seeds(CASES.fetch_add(1, Ordering::Relaxed), seeds, per_case)
}

/// The positive number in an environment variable, if it is set.
fn number(variable: &str) -> Option<u64> {
    match env::var(variable) {
        Err(VarError::NotPresent) => None,
        value => match value.as_deref().map(str::parse) {
            Ok(Ok(number @ 1..)) => Some(number),
            _ => panic!("{variable} is {value:?}: expected a positive number"),
        },
    }
}

/// At most `per_case` of `seeds` seeds.
fn case_seeds(case: u64, seeds: u64, per_case: u64) -> Range<u64> {
    let start = case % seeds.div_ceil(per_case) * per_case;
    start..seeds.min(start.saturating_add(per_case))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_take_all_seeds_in_turn() {
        let taken =
            |seeds, per_case| (0..4).map(|case| case_seeds(case, seeds, per_case)).collect();
        let taken: [Vec<_>; 3] = [taken(5, 5), taken(5, 2), taken(5, 9)];
        assert_eq!(taken, [vec![0..5; 4], vec![0..2, 2..4, 4..5, 0..2], vec![0..5; 4]]);
    }
}
