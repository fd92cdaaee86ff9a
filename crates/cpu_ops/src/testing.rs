//! What the tests of operations share.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// `len` values in -1 .. 1.
pub fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Asserts that `got` is within `tolerance` of `wanted`, in units of the largest of `wanted`; no
/// NaN passes.
pub fn assert_close(got: &[f32], wanted: &[f64], tolerance: f64, case: &str) {
    assert_eq!(got.len(), wanted.len(), "{case}");
    let scale = wanted.iter().fold(1e-30, |max: f64, value| max.max(value.abs()));
    for (index, (&got, &wanted)) in got.iter().zip(wanted).enumerate() {
        let error = (got as f64 - wanted).abs() / scale;
        assert!(error <= tolerance, "{case}, element {index}: got {got}, wanted {wanted}");
    }
}
