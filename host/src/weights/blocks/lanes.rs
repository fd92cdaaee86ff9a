//! Sixteen small integers to f32, in vector registers where the processor has them.

#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};

/// What a block's elements are computed with. Products and sums are rounded one by one, as ggml's
/// are.
pub trait Lanes: Copy {
    /// `q[i]` as f32.
    fn widen(self, q: [u8; 16], out: &mut [f32; 16]);

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
    #[inline(always)]
    fn widen(self, q: [u8; 16], out: &mut [f32; 16]) {
        out.iter_mut().zip(q).for_each(|(out, q)| *out = f32::from(q));
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for V3 {
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
    #[inline(always)]
    fn widen(self, q: [u8; 16], out: &mut [f32; 16]) {
        let q = self.avx512f._mm512_cvtepu8_epi32(pulp::cast(q));
        *out = pulp::cast(self.avx512f._mm512_cvtepi32_ps(q));
    }
}
