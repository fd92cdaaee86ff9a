//! The vector registers of x86: AVX2's and AVX-512's.

use super::{Lanes, array_of};
use pulp::x86::{V3, V4};
use std::arch::x86_64::{__m128i, __m256, __m256i, __m512, __m512i};
use std::array;

impl Lanes for V3 {
    type F32s = [__m256; 2];
    type I32s = [__m256i; 2];

    #[inline(always)]
    fn zero(self) -> [__m256; 2] {
        [self.avx._mm256_setzero_ps(); 2]
    }

    #[inline(always)]
    fn zero_i32s(self) -> [__m256i; 2] {
        [self.avx._mm256_setzero_si256(); 2]
    }

    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> [__m256; 2] {
        pulp::cast(*values)
    }

    #[inline(always)]
    fn multiply_add_halves(self, a: &[u32; 16], b: u32, acc: [__m256i; 2]) -> [__m256i; 2] {
        let a: [__m256i; 2] = pulp::cast(*a);
        let b = self.avx._mm256_set1_epi32(b.cast_signed());
        array::from_fn(|i| self.avx2._mm256_add_epi32(acc[i], self.avx2._mm256_madd_epi16(a[i], b)))
    }

    #[inline(always)]
    fn scale_add(
        self,
        ints: [__m256i; 2],
        scales: &[f32; 16],
        factor: f32,
        acc: [__m256; 2],
    ) -> [__m256; 2] {
        let scales: [__m256; 2] = pulp::cast(*scales);
        let factor = self.avx._mm256_set1_ps(factor);
        array::from_fn(|i| {
            let scale = self.avx._mm256_mul_ps(scales[i], factor);
            self.fma._mm256_fmadd_ps(self.avx._mm256_cvtepi32_ps(ints[i]), scale, acc[i])
        })
    }

    #[inline(always)]
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], acc: [__m256; 2]) -> [__m256; 2] {
        let [a, b]: [[__m256; 2]; 2] = [pulp::cast(*a), pulp::cast(*b)];
        array::from_fn(|i| self.fma._mm256_fmadd_ps(a[i], b[i], acc[i]))
    }

    #[inline(always)]
    fn multiply_add_pairs(
        self,
        levels: &[i8; 32],
        x: &[i16; 32],
        scales: [f32; 2],
        acc: [__m256; 2],
    ) -> [__m256; 2] {
        let levels: [__m128i; 2] = pulp::cast(*levels);
        let x: [_; 2] = pulp::cast(*x);
        array::from_fn(|i| {
            let levels = self.avx2._mm256_cvtepi8_epi16(levels[i]);
            let pairs = self.avx._mm256_cvtepi32_ps(self.avx2._mm256_madd_epi16(levels, x[i]));
            self.fma._mm256_fmadd_ps(pairs, self.avx._mm256_set1_ps(scales[i]), acc[i])
        })
    }

    #[inline(always)]
    fn values(self, acc: [__m256; 2]) -> [f32; 16] {
        pulp::cast(acc)
    }

    #[inline(always)]
    fn has_byte_products(self) -> bool {
        true
    }

    #[inline(always)]
    fn multiply_bytes(self, levels: &[u8; 64], x: &[[i8; 64]; 2]) -> [__m256i; 2] {
        let levels: [__m256i; 2] = pulp::cast(*levels);
        let [high, low]: [[__m256i; 2]; 2] = [pulp::cast(x[0]), pulp::cast(x[1])];
        let factors = [256, 1].map(|factor| self.avx._mm256_set1_epi16(factor));
        array::from_fn(
            #[inline(always)]
            |i| {
                let high = self.avx2._mm256_maddubs_epi16(levels[i], high[i]);
                let low = self.avx2._mm256_maddubs_epi16(levels[i], low[i]);
                let high = self.avx2._mm256_madd_epi16(high, factors[0]);
                self.avx2._mm256_add_epi32(high, self.avx2._mm256_madd_epi16(low, factors[1]))
            },
        )
    }

    #[inline(always)]
    fn multiply_words(self, levels: &[i8; 32], x: &[i16; 32]) -> [__m256i; 2] {
        let levels: [__m128i; 2] = pulp::cast(*levels);
        let x: [__m256i; 2] = pulp::cast(*x);
        array::from_fn(
            #[inline(always)]
            |i| self.avx2._mm256_madd_epi16(self.avx2._mm256_cvtepi8_epi16(levels[i]), x[i]),
        )
    }

    #[inline(always)]
    fn multiply_add_ints(
        self,
        ints: [__m256i; 2],
        scales: &[f32; 16],
        acc: [__m256; 2],
    ) -> [__m256; 2] {
        let scales: [__m256; 2] = pulp::cast(*scales);
        array::from_fn(
            #[inline(always)]
            |i| self.fma._mm256_fmadd_ps(self.avx._mm256_cvtepi32_ps(ints[i]), scales[i], acc[i]),
        )
    }

    #[inline(always)]
    fn permute(self, values: &[f32; 16], indices: &[u32; 16]) -> [f32; 16] {
        let [low, high]: [__m256; 2] = pulp::cast(*values);
        let indices: [__m256i; 2] = pulp::cast(*indices);
        let pick = |indices: __m256i| {
            let low = self.avx2._mm256_permutevar8x32_ps(low, indices);
            let high = self.avx2._mm256_permutevar8x32_ps(high, indices);
            // The fourth bit of an index, where a blend looks for a sign.
            let is_high = pulp::cast(self.avx2._mm256_slli_epi32::<28>(indices));
            self.avx._mm256_blendv_ps(low, high, is_high)
        };
        pulp::cast([pick(indices[0]), pick(indices[1])])
    }

    #[inline(always)]
    fn widen(self, levels: &[i8; 16], out: &mut [f32; 16]) {
        let low = pulp::cast(*levels);
        let high = self.sse2._mm_unpackhi_epi64(low, low);
        for (levels, out) in [low, high].into_iter().zip(out.as_chunks_mut::<8>().0) {
            *out = pulp::cast(self.avx._mm256_cvtepi32_ps(self.avx2._mm256_cvtepi8_epi32(levels)));
        }
    }

    #[inline(always)]
    fn look_up(self, table: &[i8; 16], indices: [u8; 16]) -> [i8; 16] {
        pulp::cast(self.ssse3._mm_shuffle_epi8(pulp::cast(*table), pulp::cast(indices)))
    }
}

impl Lanes for V4 {
    type F32s = __m512;
    type I32s = __m512i;

    #[inline(always)]
    fn has_32_registers(self) -> bool {
        true
    }

    /// Four times, the first eight rows and the last eight are interleaved: the index of an element
    /// turns by a bit.
    #[inline(always)]
    fn transpose(self, rows: &[[u32; 16]; 16]) -> [[u32; 16]; 16] {
        const LOW: [u32; 16] = [0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23];
        const HIGH: [u32; 16] = [8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31];
        let [low, high]: [__m512i; 2] = [pulp::cast(LOW), pulp::cast(HIGH)];
        let mut rows: [__m512i; 16] = pulp::cast(*rows);
        for _ in 0..4 {
            let mut next = rows;
            for i in 0..8 {
                let [a, b] = [rows[i], rows[i + 8]];
                next[2 * i] = self.avx512f._mm512_permutex2var_epi32(a, low, b);
                next[2 * i + 1] = self.avx512f._mm512_permutex2var_epi32(a, high, b);
            }
            rows = next;
        }
        pulp::cast(rows)
    }

    #[inline(always)]
    fn multiply(self, a: &[f32; 16], b: &[f32; 16]) -> [f32; 16] {
        pulp::cast(self.avx512f._mm512_mul_ps(pulp::cast(*a), pulp::cast(*b)))
    }

    #[inline(always)]
    fn widen_pairs(self, levels: &[i8; 32]) -> [u32; 16] {
        pulp::cast(self.avx512bw._mm512_cvtepi8_epi16(pulp::cast(*levels)))
    }

    #[inline(always)]
    fn zero(self) -> __m512 {
        self.avx512f._mm512_setzero_ps()
    }

    #[inline(always)]
    fn zero_i32s(self) -> __m512i {
        self.avx512f._mm512_setzero_si512()
    }

    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> __m512 {
        pulp::cast(*values)
    }

    #[inline(always)]
    fn multiply_add_halves(self, a: &[u32; 16], b: u32, acc: __m512i) -> __m512i {
        let b = self.avx512f._mm512_set1_epi32(b.cast_signed());
        let products = self.avx512bw._mm512_madd_epi16(pulp::cast(*a), b);
        self.avx512f._mm512_add_epi32(acc, products)
    }

    #[inline(always)]
    fn scale_add(self, ints: __m512i, scales: &[f32; 16], factor: f32, acc: __m512) -> __m512 {
        let factor = self.avx512f._mm512_set1_ps(factor);
        let scales = self.avx512f._mm512_mul_ps(pulp::cast(*scales), factor);
        self.avx512f._mm512_fmadd_ps(self.avx512f._mm512_cvtepi32_ps(ints), scales, acc)
    }

    #[inline(always)]
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], acc: __m512) -> __m512 {
        self.avx512f._mm512_fmadd_ps(pulp::cast(*a), pulp::cast(*b), acc)
    }

    #[inline(always)]
    fn multiply_add_pairs(
        self,
        levels: &[i8; 32],
        x: &[i16; 32],
        [first, second]: [f32; 2],
        acc: __m512,
    ) -> __m512 {
        let levels = self.avx512bw._mm512_cvtepi8_epi16(pulp::cast(*levels));
        let pairs = self.avx512bw._mm512_madd_epi16(levels, pulp::cast(*x));
        let [first, second] = [first, second].map(|scale| self.avx512f._mm512_set1_ps(scale));
        let scales = self.avx512f._mm512_mask_blend_ps(0xFF00, first, second);
        self.avx512f._mm512_fmadd_ps(self.avx512f._mm512_cvtepi32_ps(pairs), scales, acc)
    }

    #[inline(always)]
    fn values(self, acc: __m512) -> [f32; 16] {
        pulp::cast(acc)
    }

    #[inline(always)]
    fn has_byte_products(self) -> bool {
        true
    }

    /// With VNNI the compiler makes one instruction of the last product and the sum.
    #[inline(always)]
    fn multiply_bytes(self, levels: &[u8; 64], x: &[[i8; 64]; 2]) -> __m512i {
        let [high, low] = [0, 1].map(
            #[inline(always)]
            |i| self.avx512bw._mm512_maddubs_epi16(pulp::cast(*levels), pulp::cast(x[i])),
        );
        let high = self.avx512bw._mm512_madd_epi16(high, self.avx512f._mm512_set1_epi16(256));
        let low = self.avx512bw._mm512_madd_epi16(low, self.avx512f._mm512_set1_epi16(1));
        self.avx512f._mm512_add_epi32(high, low)
    }

    #[inline(always)]
    fn multiply_words(self, levels: &[i8; 32], x: &[i16; 32]) -> __m512i {
        let levels = self.avx512bw._mm512_cvtepi8_epi16(pulp::cast(*levels));
        self.avx512bw._mm512_madd_epi16(levels, pulp::cast(*x))
    }

    #[inline(always)]
    fn multiply_add_ints(self, ints: __m512i, scales: &[f32; 16], acc: __m512) -> __m512 {
        let ints = self.avx512f._mm512_cvtepi32_ps(ints);
        self.avx512f._mm512_fmadd_ps(ints, pulp::cast(*scales), acc)
    }

    #[inline(always)]
    fn permute(self, values: &[f32; 16], indices: &[u32; 16]) -> [f32; 16] {
        let indices = pulp::cast(*indices);
        pulp::cast(self.avx512f._mm512_permutexvar_ps(indices, pulp::cast(*values)))
    }

    /// Words turn, as no bit of the mask comes from another byte.
    #[inline(always)]
    fn shift_halves(self, [first, second]: [&[u8; 32]; 2], left: [i32; 2], mask: u8) -> [u8; 64] {
        let bytes: __m512i = pulp::cast([*first, *second]);
        let left: [u32; 16] = array_of(|i| left[i / 8] as u32 & 31);
        let turned = self.avx512f._mm512_rolv_epi32(bytes, pulp::cast(left));
        let mask = self.avx512f._mm512_set1_epi8(mask.cast_signed());
        pulp::cast(self.avx512f._mm512_and_si512(turned, mask))
    }

    #[inline(always)]
    fn nibbles(self, [first, second]: [&[u8; 16]; 2]) -> [u8; 64] {
        let bytes: __m512i = pulp::cast([*first, *first, *second, *second]);
        let right: [u32; 16] = array_of(|i| i as u32 / 4 % 2 * 4);
        let turned = self.avx512f._mm512_srlv_epi32(bytes, pulp::cast(right));
        pulp::cast(self.avx512f._mm512_and_si512(turned, self.avx512f._mm512_set1_epi8(15)))
    }

    #[inline(always)]
    fn widen(self, levels: &[i8; 16], out: &mut [f32; 16]) {
        let levels = self.avx512f._mm512_cvtepi8_epi32(pulp::cast(*levels));
        *out = pulp::cast(self.avx512f._mm512_cvtepi32_ps(levels));
    }

    #[inline(always)]
    fn widen_halves(self, stored: &[[u8; 2]; 16]) -> [f32; 16] {
        pulp::cast(self.avx512f._mm512_cvtph_ps(pulp::cast(*stored)))
    }

    #[inline(always)]
    fn look_up(self, table: &[i8; 16], indices: [u8; 16]) -> [i8; 16] {
        pulp::cast(self.ssse3._mm_shuffle_epi8(pulp::cast(*table), pulp::cast(indices)))
    }

    #[inline(always)]
    fn spread_bits(self, bits: u64, value: u8) -> [u8; 64] {
        pulp::cast(self.avx512bw._mm512_maskz_set1_epi8(bits, value.cast_signed()))
    }

    #[inline(always)]
    fn half_to_f32(self, bits: u16) -> f32 {
        let [number, ..]: [f32; 16] =
            pulp::cast(self.avx512f._mm512_cvtph_ps(pulp::cast([bits; 16])));
        number
    }
}
