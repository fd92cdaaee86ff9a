//! The vector registers of the processor that the program runs on.

#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};
use pulp::{Arch, Scalar, Simd};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m128i;

/// What operations need of vector registers, beside what `pulp` has for all.
pub trait Vectors: Simd {
    /// `a * b + c`, in one instruction where there is one: in a loop the compiler vectorises it.
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32;

    /// `out[i] = scale * (bytes[i] - 128)`, of four words of bytes that hold their even columns
    /// first.
    #[inline(always)]
    fn scale_bytes(self, bytes: &[u8; 16], scale: f32, out: &mut [f32; 16]) {
        for (bytes, out) in bytes.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
            for (out, column) in out.iter_mut().zip([0, 2, 1, 3]) {
                *out = scale * (f32::from(bytes[column]) - 128.0);
            }
        }
    }

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

/// Less 128, as signed bytes, in the order of their columns.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn levels_in_order(simd: V3, bytes: &[u8; 16]) -> __m128i {
    let order = pulp::cast([0u8, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15]);
    let ordered = simd.ssse3._mm_shuffle_epi8(pulp::cast(*bytes), order);
    simd.sse2._mm_xor_si128(ordered, pulp::cast([128u8; 16]))
}

#[cfg(target_arch = "x86_64")]
impl Vectors for V3 {
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn scale_bytes(self, bytes: &[u8; 16], scale: f32, out: &mut [f32; 16]) {
        let low = levels_in_order(self, bytes);
        let high = self.sse2._mm_unpackhi_epi64(low, low);
        for (levels, out) in [low, high].into_iter().zip(out.as_chunks_mut::<8>().0) {
            let levels = self.avx._mm256_cvtepi32_ps(self.avx2._mm256_cvtepi8_epi32(levels));
            *out = pulp::cast(self.avx._mm256_mul_ps(levels, self.avx._mm256_set1_ps(scale)));
        }
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
    fn scale_bytes(self, bytes: &[u8; 16], scale: f32, out: &mut [f32; 16]) {
        let levels = self.avx512f._mm512_cvtepi8_epi32(levels_in_order(*self, bytes));
        let levels = self.avx512f._mm512_cvtepi32_ps(levels);
        *out = pulp::cast(self.avx512f._mm512_mul_ps(levels, self.avx512f._mm512_set1_ps(scale)));
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
