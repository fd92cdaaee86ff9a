//! Sixteen numbers at a time, in vector registers where the processor has them.

use super::half_to_f32;
#[cfg(target_arch = "aarch64")]
use pulp::aarch64::Neon;
#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};
#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::{
    float32x4_t, int8x16_t, int16x4_t, int16x8_t, int32x4_t, uint32x4_t, uint64x2_t,
};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m128i, __m256, __m256i, __m512, __m512i};
use std::array;

/// What a block's elements are computed with. Products and sums are rounded one by one, as ggml's
/// are, but for those that are named "multiply-add".
pub trait Lanes: Copy {
    /// Sixteen f32.
    type F32s: Copy;
    /// Sixteen i32.
    type I32s: Copy;

    /// Whether sixteen f32 fill one of 32 registers, not two of 16.
    fn has_32_registers(self) -> bool {
        false
    }

    /// Zeros.
    fn zero(self) -> Self::F32s;

    /// Zeros.
    fn zero_i32s(self) -> Self::I32s;

    /// What `values` holds.
    fn load(self, values: &[f32; 16]) -> Self::F32s;

    /// Adds the products of both 16-bit halves of pair `i` and `b` to lane `i`; the pairs are a column
    /// of [`transpose_pairs`](Self::transpose_pairs).
    fn multiply_add_halves(self, a: &[u32; 16], b: u32, acc: Self::I32s) -> Self::I32s;

    /// `ints[i] * (scales[i] * factor) + acc[i]`, with multiply-add.
    fn scale_add(
        self,
        ints: Self::I32s,
        scales: &[f32; 16],
        factor: f32,
        acc: Self::F32s,
    ) -> Self::F32s;

    /// `a[i] * b[i] + acc[i]`.
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], acc: Self::F32s) -> Self::F32s;

    /// `a[i] * b[i]`, where the compiler might take sixteen instructions.
    #[inline(always)]
    fn multiply(self, a: &[f32; 16], b: &[f32; 16]) -> [f32; 16] {
        array_of(|i| a[i] * b[i])
    }

    /// Adds the products of `levels` and `x` to some lanes, those of each half times its scale, with
    /// multiply-add. At most four are added before, which is exact.
    fn multiply_add_pairs(
        self,
        levels: &[i8; 32],
        x: &[i16; 32],
        scales: [f32; 2],
        acc: Self::F32s,
    ) -> Self::F32s;

    /// Pairs of `levels` that follow each other, as 16-bit halves.
    #[inline(always)]
    fn widen_pairs(self, levels: &[i8; 32]) -> [u32; 16] {
        let half = |level: i8| u32::from(i16::from(level).cast_unsigned());
        array_of(|i| half(levels[2 * i]) | half(levels[2 * i + 1]) << 16)
    }

    /// Transposes sixteen rows of sixteen 32-bit elements.
    #[inline(always)]
    fn transpose(self, rows: &[[u32; 16]; 16]) -> [[u32; 16]; 16] {
        array_of(|i| array_of(|j| rows[j][i]))
    }

    /// Transposes sixteen rows of [`widen_pairs`](Self::widen_pairs), for
    /// [`multiply_add_halves`](Self::multiply_add_halves).
    #[inline(always)]
    fn transpose_pairs(self, rows: &[[u32; 16]; 16]) -> [[u32; 16]; 16] {
        self.transpose(rows)
    }

    /// What `acc` holds.
    fn values(self, acc: Self::F32s) -> [f32; 16];

    /// `levels[i]` as f32.
    #[inline(always)]
    fn widen(self, levels: &[i8; 16], out: &mut [f32; 16]) {
        out.iter_mut().zip(levels).for_each(|(out, &level)| *out = f32::from(level));
    }

    /// Sixteen f16, little-endian.
    #[inline(always)]
    fn widen_halves(self, stored: &[[u8; 2]; 16]) -> [f32; 16] {
        array_of(|i| half_to_f32(u16::from_le_bytes(stored[i])))
    }

    /// `table[indices[i]]`, of indices below 16.
    #[inline(always)]
    fn look_up(self, table: &[i8; 16], indices: [u8; 16]) -> [i8; 16] {
        array_of(|i| table[usize::from(indices[i] & 15)])
    }

    /// Element `i` is `value` where bit `i` is set, 0 elsewhere.
    #[inline(always)]
    fn spread_bits(self, bits: u32, value: u8) -> [u8; 32] {
        let bytes: [u8; 32] = array_of(|i| bits.to_le_bytes()[i / 8]);
        array_of(|i| if bytes[i] & 1 << (i % 8) != 0 { value } else { 0 })
    }

    /// The number of an f16.
    #[inline(always)]
    fn half_to_f32(self, bits: u16) -> f32 {
        half_to_f32(bits)
    }
}

/// Asks for the memory at `next` before it is read: that of rows that are read side by side comes
/// late otherwise.
#[inline(always)]
pub fn prefetch<T>(next: Option<&T>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(next) = next {
        safe_arch::prefetch_t0(next);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = next;
}

/// The sum of sixteen numbers, by halves.
#[inline(always)]
pub fn sum(values: [f32; 16]) -> f32 {
    let eight: [f32; 8] = array_of(|i| values[i] + values[i + 8]);
    let four: [f32; 4] = array_of(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// The array of `f(i)`: a loop that the compiler vectorises, where it calls `array::from_fn`.
#[inline(always)]
pub fn array_of<T: Copy + Default, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    out.iter_mut().enumerate().for_each(
        #[inline(always)]
        |(i, out)| *out = f(i),
    );
    out
}

/// As `array.map(f)`, likewise.
#[inline(always)]
pub fn map<A: Copy, T: Copy + Default, const N: usize>(
    array: [A; N],
    f: impl Fn(A) -> T,
) -> [T; N] {
    array_of(|i| f(array[i]))
}

/// Without vector registers, or with those that the compiler may use everywhere.
#[derive(Clone, Copy)]
pub struct Portable;

impl Lanes for Portable {
    type F32s = [f32; 16];
    type I32s = [i32; 16];

    #[inline(always)]
    fn zero(self) -> [f32; 16] {
        [0.0; 16]
    }

    #[inline(always)]
    fn zero_i32s(self) -> [i32; 16] {
        [0; 16]
    }

    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> [f32; 16] {
        *values
    }

    #[inline(always)]
    fn multiply_add_halves(self, a: &[u32; 16], b: u32, acc: [i32; 16]) -> [i32; 16] {
        let halves = |pair: u32| [pair as i16, (pair >> 16) as i16].map(i32::from);
        let [b_low, b_high] = halves(b);
        array::from_fn(|i| {
            let [low, high] = halves(a[i]);
            acc[i] + (low * b_low + high * b_high)
        })
    }

    #[inline(always)]
    fn scale_add(
        self,
        ints: [i32; 16],
        scales: &[f32; 16],
        factor: f32,
        acc: [f32; 16],
    ) -> [f32; 16] {
        array::from_fn(|i| ints[i] as f32 * (scales[i] * factor) + acc[i])
    }

    #[inline(always)]
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], acc: [f32; 16]) -> [f32; 16] {
        array::from_fn(|i| a[i] * b[i] + acc[i])
    }

    #[inline(always)]
    fn multiply_add_pairs(
        self,
        levels: &[i8; 32],
        x: &[i16; 32],
        scales: [f32; 2],
        acc: [f32; 16],
    ) -> [f32; 16] {
        let product = |i: usize| i32::from(levels[i]) * i32::from(x[i]);
        array::from_fn(|i| (product(2 * i) + product(2 * i + 1)) as f32 * scales[i / 8] + acc[i])
    }

    #[inline(always)]
    fn values(self, acc: [f32; 16]) -> [f32; 16] {
        acc
    }
}

#[cfg(target_arch = "x86_64")]
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

#[cfg(target_arch = "x86_64")]
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
    fn spread_bits(self, bits: u32, value: u8) -> [u8; 32] {
        let value = value.cast_signed();
        let bytes = self.avx512bw._mm512_maskz_set1_epi8(bits.into(), value);
        let [first, _]: [[u8; 32]; 2] = pulp::cast(bytes);
        first
    }

    #[inline(always)]
    fn half_to_f32(self, bits: u16) -> f32 {
        let [number, ..]: [f32; 16] =
            pulp::cast(self.avx512f._mm512_cvtph_ps(pulp::cast([bits; 16])));
        number
    }
}

/// Products of 16 bits are widening ones (`smlal`): `sdot` and `smmla` take 8 bits, which x is not
/// rounded to. What is not here the compiler vectorises as well.
#[cfg(target_arch = "aarch64")]
impl Lanes for Neon {
    type F32s = [float32x4_t; 4];
    type I32s = [int32x4_t; 4];

    #[inline(always)]
    fn zero(self) -> [float32x4_t; 4] {
        [self.neon.vdupq_n_f32(0.0); 4]
    }

    #[inline(always)]
    fn zero_i32s(self) -> [int32x4_t; 4] {
        [self.neon.vdupq_n_s32(0); 4]
    }

    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> [float32x4_t; 4] {
        pulp::cast(*values)
    }

    /// A loop over the halves: the compiler adds products to each other first where it sees both.
    #[inline(always)]
    fn multiply_add_halves(self, a: &[u32; 16], b: u32, acc: [int32x4_t; 4]) -> [int32x4_t; 4] {
        let neon = self.neon;
        let b: int16x4_t = pulp::cast(neon.vdup_n_s32(b.cast_signed()));
        let b = [b, neon.vdup_lane_s16::<1>(b)];
        let a: [[int16x8_t; 2]; 2] = pulp::cast(*a);
        let mut acc: [[int32x4_t; 2]; 2] = pulp::cast(acc);
        for half in 0..2 {
            for (a, [first, second]) in a.iter().zip(&mut acc) {
                let (a, b) = (a[half], b[half]);
                *first = neon.vmlal_lane_s16::<0>(*first, neon.vget_low_s16(a), b);
                *second = neon.vmlal_high_lane_s16::<0>(*second, a, b);
            }
        }
        pulp::cast(acc)
    }

    #[inline(always)]
    fn scale_add(
        self,
        ints: [int32x4_t; 4],
        scales: &[f32; 16],
        factor: f32,
        acc: [float32x4_t; 4],
    ) -> [float32x4_t; 4] {
        let scales: [float32x4_t; 4] = pulp::cast(*scales);
        let factor = self.neon.vdupq_n_f32(factor);
        array::from_fn(
            #[inline(always)]
            |i| {
                let scale = self.neon.vmulq_f32(scales[i], factor);
                self.neon.vfmaq_f32(acc[i], self.neon.vcvtq_f32_s32(ints[i]), scale)
            },
        )
    }

    #[inline(always)]
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], acc: [float32x4_t; 4]) -> [float32x4_t; 4] {
        let [a, b]: [[float32x4_t; 4]; 2] = [pulp::cast(*a), pulp::cast(*b)];
        array::from_fn(
            #[inline(always)]
            |i| self.neon.vfmaq_f32(acc[i], a[i], b[i]),
        )
    }

    /// The first four lanes get all, so that four rows of x have their sums in registers.
    #[inline(always)]
    fn multiply_add_pairs(
        self,
        levels: &[i8; 32],
        x: &[i16; 32],
        scales: [f32; 2],
        [mut acc, others @ ..]: [float32x4_t; 4],
    ) -> [float32x4_t; 4] {
        let neon = self.neon;
        let levels: [int8x16_t; 2] = pulp::cast(*levels);
        let x: [[int16x8_t; 2]; 2] = pulp::cast(*x);
        for ((levels, [x_first, x_second]), scale) in levels.into_iter().zip(x).zip(scales) {
            let (first, second) =
                (neon.vmovl_s8(neon.vget_low_s8(levels)), neon.vmovl_high_s8(levels));
            let fours = neon.vmull_s16(neon.vget_low_s16(first), neon.vget_low_s16(x_first));
            let fours = neon.vmlal_high_s16(fours, first, x_first);
            let fours =
                neon.vmlal_s16(fours, neon.vget_low_s16(second), neon.vget_low_s16(x_second));
            let fours = neon.vmlal_high_s16(fours, second, x_second);
            acc = neon.vfmaq_n_f32(acc, neon.vcvtq_f32_s32(fours), scale);
        }
        let [second, third, fourth] = others;
        [acc, second, third, fourth]
    }

    /// Four rows of four elements at a time: pairs of elements, then pairs of these.
    #[inline(always)]
    fn transpose(self, rows: &[[u32; 16]; 16]) -> [[u32; 16]; 16] {
        let neon = self.neon;
        let rows: [[uint32x4_t; 4]; 16] = pulp::cast(*rows);
        let mut out = [[rows[0][0]; 4]; 16];
        for i in 0..4 {
            for j in 0..4 {
                let row = |k: usize| rows[4 * i + k][j];
                let pair = |low: uint32x4_t, high: uint32x4_t| -> [uint64x2_t; 2] {
                    pulp::cast([neon.vtrn1q_u32(low, high), neon.vtrn2q_u32(low, high)])
                };
                let (low, high) = (pair(row(0), row(1)), pair(row(2), row(3)));
                for k in 0..2 {
                    out[4 * j + k][i] = pulp::cast(neon.vtrn1q_u64(low[k], high[k]));
                    out[4 * j + k + 2][i] = pulp::cast(neon.vtrn2q_u64(low[k], high[k]));
                }
            }
        }
        pulp::cast(out)
    }

    /// The low halves of each eight pairs come first, then the high ones.
    #[inline(always)]
    fn transpose_pairs(self, rows: &[[u32; 16]; 16]) -> [[u32; 16]; 16] {
        let split = |column: [u32; 16]| -> [u32; 16] {
            let [a, b, c, d]: [int16x8_t; 4] = pulp::cast(column);
            let (low, high) = (self.neon.vuzp1q_s16(a, b), self.neon.vuzp2q_s16(a, b));
            pulp::cast([low, high, self.neon.vuzp1q_s16(c, d), self.neon.vuzp2q_s16(c, d)])
        };
        self.transpose(rows).map(split)
    }

    #[inline(always)]
    fn values(self, acc: [float32x4_t; 4]) -> [f32; 16] {
        pulp::cast(acc)
    }

    /// Exponent and mantissa move to their places and a product corrects the exponent, of subnormal
    /// numbers too; infinities and NaN get theirs. `pulp` does not have `fcvtl`.
    #[inline(always)]
    fn widen_halves(self, stored: &[[u8; 2]; 16]) -> [f32; 16] {
        const INFINITE: f32 = f32::from_bits((127 + 16) << 23);
        let neon = self.neon;
        let number = |bits: int32x4_t| -> uint32x4_t {
            let bits = neon.vandq_s32(bits, neon.vdupq_n_s32(!(7 << 28)));
            let number = neon
                .vmulq_f32(pulp::cast(bits), neon.vdupq_n_f32(f32::from_bits((127 + 112) << 23)));
            let infinite = neon.vcageq_f32(number, neon.vdupq_n_f32(INFINITE));
            let exponent = neon.vandq_u32(infinite, neon.vdupq_n_u32(0xFF << 23));
            neon.vorrq_u32(pulp::cast(number), exponent)
        };
        let [a, b]: [int16x8_t; 2] = pulp::cast(*stored);
        let low = |eight: int16x8_t| neon.vshll_n_s16::<13>(neon.vget_low_s16(eight));
        let high = |eight: int16x8_t| neon.vshll_high_n_s16::<13>(eight);
        pulp::cast([number(low(a)), number(high(a)), number(low(b)), number(high(b))])
    }

    #[inline(always)]
    fn look_up(self, table: &[i8; 16], indices: [u8; 16]) -> [i8; 16] {
        pulp::cast(self.neon.vqtbl1q_s8(pulp::cast(*table), pulp::cast(indices)))
    }
}
