//! Inner products in the shape that the compiler turns into vector code.

/// Partial sums of one inner product: independent, so that they fill vector registers.
const LANES: usize = 16;

/// Inner products of `w` with each of `x`, all of one length. The order of the additions depends on the length alone:
/// a row's result is the same whatever other rows are computed with it.
pub fn dots<const M: usize>(w: &[f32], x: [&[f32]; M]) -> [f32; M] {
    let (w_chunks, w_tail) = w.as_chunks::<LANES>();
    let x_chunks = x.map(|x| &x.as_chunks::<LANES>().0[..w_chunks.len()]);
    let mut sums = [[0.0; LANES]; M];
    for (i, w) in w_chunks.iter().enumerate() {
        for (sums, x) in sums.iter_mut().zip(&x_chunks) {
            for lane in 0..LANES {
                sums[lane] += w[lane] * x[i][lane];
            }
        }
    }
    let mut dots = sums.map(|sums| sums.iter().sum::<f32>());
    for (dot, x) in dots.iter_mut().zip(x) {
        let x_tail = &x[w.len() - w_tail.len()..];
        *dot += w_tail.iter().zip(x_tail).map(|(w, x)| w * x).sum::<f32>();
    }
    dots
}

/// Inner product of `a` and `b`, of one length.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    dots(a, [b])[0]
}
