//! The vector registers of the processor that the program runs on.

#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};
use pulp::{Arch, Scalar, Simd};

/// What operations need of vector registers, beside what `pulp` has for all.
pub trait Vectors: Simd {
    /// `a * b + c`, in one instruction where there is one: in a loop the compiler vectorises it.
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32;

    /// The sum of the elements of each vector.
    #[inline(always)]
    fn sums(self, [a, b, c, d]: [Self::f32s; 4]) -> [f32; 4] {
        let sum = |vector| self.reduce_sum_f32s(vector);
        [sum(a), sum(b), sum(c), sum(d)]
    }
}

/// Work that is compiled for the instructions of every processor.
pub trait WithVectors {
    /// Does it. `#[inline(always)]`, and so all that it calls: what is not inlined is compiled for
    /// any processor.
    fn run<V: Vectors>(self, simd: V);
}

/// Does `work` with the instructions of `arch`.
#[inline(always)]
pub fn dispatch(arch: Arch, work: impl WithVectors) {
    match arch {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => simd.vectorize(
            #[inline(always)]
            || work.run(simd),
        ),
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => simd.vectorize(
            #[inline(always)]
            || work.run(simd),
        ),
        #[cfg(target_arch = "aarch64")]
        Arch::Neon(simd) => simd.vectorize(
            #[inline(always)]
            || work.run(simd),
        ),
        _ => work.run(Scalar),
    }
}

impl Vectors for Scalar {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

#[cfg(target_arch = "aarch64")]
impl Vectors for pulp::aarch64::Neon {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

#[cfg(target_arch = "x86_64")]
impl Vectors for V3 {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn sums(self, vectors: [Self::f32s; 4]) -> [f32; 4] {
        let [a, b, c, d] = pulp::cast::<_, [_; 4]>(vectors);
        let avx = self.avx;
        let pair =
            |a, b| avx._mm256_add_ps(avx._mm256_unpacklo_ps(a, b), avx._mm256_unpackhi_ps(a, b));
        let (ab, cd) = (avx._mm256_castps_pd(pair(a, b)), avx._mm256_castps_pd(pair(c, d)));
        let low = avx._mm256_castpd_ps(avx._mm256_unpacklo_pd(ab, cd));
        let high = avx._mm256_castpd_ps(avx._mm256_unpackhi_pd(ab, cd));
        let [low, high]: [[f32; 4]; 2] = pulp::cast(avx._mm256_add_ps(low, high));
        std::array::from_fn(|i| low[i] + high[i])
    }
}

#[cfg(target_arch = "x86_64")]
impl Vectors for V4 {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn sums(self, vectors: [Self::f32s; 4]) -> [f32; 4] {
        let [a, b, c, d] = pulp::cast::<_, [_; 4]>(vectors);
        let (avx512, avx, sse) = (self.avx512f, self.avx, self.sse);
        let pair = |a, b| {
            avx512._mm512_add_ps(avx512._mm512_unpacklo_ps(a, b), avx512._mm512_unpackhi_ps(a, b))
        };
        let (ab, cd) = (avx512._mm512_castps_pd(pair(a, b)), avx512._mm512_castps_pd(pair(c, d)));
        let low = avx512._mm512_castpd_ps(avx512._mm512_unpacklo_pd(ab, cd));
        let high = avx512._mm512_castpd_ps(avx512._mm512_unpackhi_pd(ab, cd));
        let [low, high] = pulp::cast::<_, [_; 2]>(avx512._mm512_add_ps(low, high));
        let [low, high] = pulp::cast::<_, [_; 2]>(avx._mm256_add_ps(low, high));
        pulp::cast(sse._mm_add_ps(low, high))
    }
}

/// The instructions that this processor has, for tests of all of them.
#[cfg(test)]
pub fn archs() -> Vec<Arch> {
    let mut archs = vec![Arch::Scalar];
    #[cfg(target_arch = "x86_64")]
    {
        archs.extend(V3::try_new().map(Arch::V3));
        archs.extend(V4::try_new().map(Arch::V4));
    }
    archs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    struct Sums<'a>(&'a mut [f32; 4]);

    impl WithVectors for Sums<'_> {
        #[inline(always)]
        fn run<V: Vectors>(self, simd: V) {
            let values = random(1, 4 * V::F32_LANES);
            let vectors = V::as_simd_f32s(&values).0;
            *self.0 = simd.sums([vectors[0], vectors[1], vectors[2], vectors[3]]);
            for (sum, values) in self.0.iter_mut().zip(values.chunks_exact(V::F32_LANES)) {
                *sum -= values.iter().sum::<f32>();
            }
        }
    }

    #[test]
    fn sums_are_of_each_vector() {
        for arch in archs() {
            let mut differences = [f32::NAN; 4];
            dispatch(arch, Sums(&mut differences));
            let is_close = |difference: &f32| difference.abs() < 1e-5;
            assert!(differences.iter().all(is_close), "{arch:?}: {differences:?}");
        }
    }
}
