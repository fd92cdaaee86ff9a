//! Inner products in the shape that the compiler turns into vector code.

/// Partial sums of one inner product: independent, so that they fill vector registers.
const LANES: usize = 16;

/// Inner product of `a` and `b`, of one length.
///
/// Two rows at a time would read half as much, but the compiler's vectors come and go with their surroundings: from 1.3
/// times as fast to three times as slow.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a_chunks, a_tail), (b_chunks, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let tail: f32 = a_tail.iter().zip(b_tail).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + tail
}
