//! Sixteen small integers to f32, in vector registers where the processor has them.

use super::half_to_f32;
#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};
use std::array;

/// What a block's elements are computed with. Products and sums are rounded one by one, as ggml's
/// are.
pub trait Lanes: Copy {
    /// Sixteen f32.
    type Sums: Copy;

    /// Zeros.
    fn zero(self) -> Self::Sums;

    /// `a[i] * b[i] + sums[i]`.
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], sums: Self::Sums) -> Self::Sums;

    /// What `sums` holds.
    fn values(self, sums: Self::Sums) -> [f32; 16];

    /// `q[i]` as f32.
    fn widen(self, q: [u8; 16], out: &mut [f32; 16]);

    /// The number of an f16.
    #[inline(always)]
    fn half_to_f32(self, bits: u16) -> f32 {
        half_to_f32(bits)
    }

    /// `scale * q[i] + offset`.
    #[inline(always)]
    fn affine(self, q: [u8; 16], scale: f32, offset: f32, out: &mut [f32; 16]) {
        self.widen(q, out);
        out.iter_mut().for_each(|out| *out = scale * *out + offset);
    }

    /// `scale * (q[i] - zero)`.
    #[inline(always)]
    fn centred(self, q: [u8; 16], zero: f32, scale: f32, out: &mut [f32; 16]) {
        self.widen(q, out);
        out.iter_mut().for_each(|out| *out = scale * (*out - zero));
    }
}

/// Without vector registers, or with those that the compiler may use everywhere.
#[derive(Clone, Copy)]
pub struct Portable;

impl Lanes for Portable {
    type Sums = [f32; 16];

    #[inline(always)]
    fn zero(self) -> [f32; 16] {
        [0.0; 16]
    }

    #[inline(always)]
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], sums: [f32; 16]) -> [f32; 16] {
        array::from_fn(|i| a[i] * b[i] + sums[i])
    }

    #[inline(always)]
    fn values(self, sums: [f32; 16]) -> [f32; 16] {
        sums
    }

    #[inline(always)]
    fn widen(self, q: [u8; 16], out: &mut [f32; 16]) {
        out.iter_mut().zip(q).for_each(|(out, q)| *out = f32::from(q));
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for V3 {
    type Sums = [__m256; 2];

    #[inline(always)]
    fn zero(self) -> [__m256; 2] {
        [self.avx._mm256_setzero_ps(); 2]
    }

    #[inline(always)]
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], sums: [__m256; 2]) -> [__m256; 2] {
        let [a, b]: [[__m256; 2]; 2] = [pulp::cast(*a), pulp::cast(*b)];
        array::from_fn(|i| self.fma._mm256_fmadd_ps(a[i], b[i], sums[i]))
    }

    #[inline(always)]
    fn values(self, sums: [__m256; 2]) -> [f32; 16] {
        pulp::cast(sums)
    }

    #[inline(always)]
    fn widen(self, q: [u8; 16], out: &mut [f32; 16]) {
        let low = pulp::cast(q);
        let high = self.sse2._mm_unpackhi_epi64(low, low);
        for (q, out) in [low, high].into_iter().zip(out.as_chunks_mut::<8>().0) {
            *out = pulp::cast(self.avx._mm256_cvtepi32_ps(self.avx2._mm256_cvtepu8_epi32(q)));
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for V4 {
    type Sums = __m512;

    #[inline(always)]
    fn zero(self) -> __m512 {
        self.avx512f._mm512_setzero_ps()
    }

    #[inline(always)]
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], sums: __m512) -> __m512 {
        self.avx512f._mm512_fmadd_ps(pulp::cast(*a), pulp::cast(*b), sums)
    }

    #[inline(always)]
    fn values(self, sums: __m512) -> [f32; 16] {
        pulp::cast(sums)
    }

    #[inline(always)]
    fn widen(self, q: [u8; 16], out: &mut [f32; 16]) {
        let q = self.avx512f._mm512_cvtepu8_epi32(pulp::cast(q));
        *out = pulp::cast(self.avx512f._mm512_cvtepi32_ps(q));
    }

    #[inline(always)]
    fn half_to_f32(self, bits: u16) -> f32 {
        let [number, ..]: [f32; 16] =
            pulp::cast(self.avx512f._mm512_cvtph_ps(pulp::cast([bits; 16])));
        number
    }
}
