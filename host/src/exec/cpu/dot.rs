//! Inner products in the shape that the compiler turns into vector code.

/// Partial sums of one inner product: independent, so that they fill vector registers.
const LANES: usize = 16;

/// Inner products of `w` with each of `x`, all of one length. The order of the additions depends on the length alone:
/// a row's result is the same whatever other rows are computed with it.
pub fn dots<const M: usize>(w: &[f32], x: [&[f32]; M]) -> [f32; M] {
    let (w_chunks, w_tail) = w.as_chunks::<LANES>();
    let x = x.map(|x| x[..w.len()].as_chunks::<LANES>());
    let x_chunks = x.map(|(chunks, _)| &chunks[..w_chunks.len()]);
    let mut sums = [[0.0; LANES]; M];
    for (i, w) in w_chunks.iter().enumerate() {
        for (sums, x) in sums.iter_mut().zip(&x_chunks) {
            for lane in 0..LANES {
                sums[lane] += w[lane] * x[i][lane];
            }
        }
    }
    std::array::from_fn(|m| {
        let tail: f32 = w_tail.iter().zip(x[m].1).map(|(w, x)| w * x).sum();
        sum(sums[m]) + tail
    })
}

/// Inner product of `a` and `b`, of one length.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    dots(a, [b])[0]
}

/// Pairwise sum of the lanes.
fn sum(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
