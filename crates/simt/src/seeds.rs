//! Under how many seeds tests run kernels.

use std::env::{self, VarError};
use std::ops::Range;

/// The variable that says how many.
const VARIABLE: &str = "HALFWARP_EMULATE_SEEDS";

/// How many they are if it says nothing.
const DEFAULT: u64 = 5;

/// The seeds that a test runs a kernel under: 5 of them, or as many as the environment variable
/// `HALFWARP_EMULATE_SEEDS` says.
///
/// # Panics
/// If the variable holds no positive number.
pub fn seeds() -> Range<u64> {
    match env::var(VARIABLE) {
        Err(VarError::NotPresent) => 0..DEFAULT,
        value => match value.as_deref().map(str::parse) {
            Ok(Ok(seeds @ 1..)) => 0..seeds,
            _ => panic!("{VARIABLE} is {value:?}: expected a positive number"),
        },
    }
}
