//! The vector registers of Arm.

use super::Lanes;
use pulp::aarch64::Neon;
use std::arch::aarch64::{
    float32x4_t, int8x16_t, int16x4_t, int16x8_t, int32x4_t, uint32x4_t, uint64x2_t,
};
use std::array;

/// Products of 16 bits are widening ones (`smlal`): `sdot` and `smmla` take 8 bits, which x is not
/// rounded to. What is not here the compiler vectorises as well.
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
