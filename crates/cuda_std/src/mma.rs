//! `mma.sync`, a warp-level MMA: `D = A * B + C` with A `[16, k]`, B `[k, 8]`, C and D `[16, 8]`.
//! The whole warp calls these functions, converged. Numerics: [`m16n8k16`]; 8-bit elements:
//! [`m16n8k32`].
//!
//! # Fragments
//! Each lane holds a fragment of each matrix; `group = lane_id / 4`, `pair = lane_id % 4`. Elements
//! of 16 bits, `k = 16`, are packed two to a word, the first in the lower half:
//!
//! | | element | row | column |
//! | --- | --- | --- | --- |
//! | A | `i` in `0..8` | `group + 8 * (i / 2 % 2)` | `2 * pair + i % 2 + 8 * (i / 4)` |
//! | B | `i` in `0..4` | `2 * pair + i % 2 + 8 * (i / 2)` | `group` |
//! | C, D | `i` in `0..4` | `group + 8 * (i / 2)` | `2 * pair + i % 2` |
//!
//! [`crate::matrix::load_x4`] of the quarters `[0..8, 0..8]`, `[8..16, 0..8]`, `[0..8, 8..16]` and
//! `[8..16, 8..16]` yields A. `load_x2` yields B from its halves in column-major order,
//! `load_x2_trans` in row-major order. Two accumulators side by side, rounded to 16 bits, are an A.

use crate::{E4m3, E4m3x2, E5m2, E5m2x2, F16x2, convert};
use core::marker::PhantomData;
use half::{bf16, f16};

#[cfg(target_arch = "nvptx64")]
use crate::warp::stay_converged;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// A lane's fragment of A: 8 elements of `[16, 16]`, or 16 elements of 8 bits of `[16, 32]`.
pub struct FragmentA<T> {
    words: [u32; 4],
    elements: PhantomData<T>,
}

/// A lane's fragment of B: 4 elements of `[16, 8]`, or 8 elements of 8 bits of `[32, 8]`.
pub struct FragmentB<T> {
    words: [u32; 2],
    elements: PhantomData<T>,
}

macro_rules! fragment {
    ($name:ident, $count:literal) => {
        impl<T> $name<T> {
            /// The fragment in these registers, each of two elements, or four of 8 bits.
            #[inline(always)]
            pub fn from_words(words: [u32; $count]) -> Self {
                $name { words, elements: PhantomData }
            }
        }

        impl<T> Clone for $name<T> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $name<T> {}
    };
}

fragment!(FragmentA, 4);
fragment!(FragmentB, 2);

/// A lane's fragment of C or D `[16, 8]`: 4 elements in f32.
pub type Accumulator = [f32; 4];

/// A lane's fragment of C or D `[16, 8]`: 4 elements in f16, two to a word.
pub type AccumulatorF16 = [u32; 2];

/// An element of A and B that can be accumulated in f32: `f16` or `bf16`.
pub trait Multiplicand: Copy {
    /// See [`m16n8k16`].
    #[doc = ptx!("mma.sync.aligned.m16n8k16.row.col.f32.{f16.f16, bf16.bf16}.f32")]
    fn m16n8k16(a: FragmentA<Self>, b: FragmentB<Self>, c: Accumulator) -> Accumulator;
}

impl Multiplicand for f16 {
    #[inline(always)]
    #[track_caller]
    fn m16n8k16(a: FragmentA<Self>, b: FragmentB<Self>, c: Accumulator) -> Accumulator {
        m16n8k16_f32_f16(a, b, c)
    }
}

impl Multiplicand for bf16 {
    #[inline(always)]
    #[track_caller]
    fn m16n8k16(a: FragmentA<Self>, b: FragmentB<Self>, c: Accumulator) -> Accumulator {
        m16n8k16_f32_bf16(a, b, c)
    }
}

/// Element type of an accumulator: `f32`, or `f16` for operands of `f16`.
pub trait AccumulatorType: Copy {
    /// A lane's accumulator.
    type Accumulator: Copy;
    /// An accumulator of zeros.
    const ZERO: Self::Accumulator;

    /// The lane's accumulator in f32.
    fn to_f32(accumulator: Self::Accumulator) -> Accumulator;
}

/// Element type of an accumulator for operands of `T`.
pub trait AccumulatorFor<T>: AccumulatorType {
    /// `a * b + c`.
    fn m16n8k16(a: FragmentA<T>, b: FragmentB<T>, c: Self::Accumulator) -> Self::Accumulator;
}

impl AccumulatorType for f32 {
    type Accumulator = Accumulator;
    const ZERO: Accumulator = [0.0; 4];

    #[inline(always)]
    fn to_f32(accumulator: Accumulator) -> Accumulator {
        accumulator
    }
}

impl<T: Multiplicand> AccumulatorFor<T> for f32 {
    #[inline(always)]
    #[track_caller]
    fn m16n8k16(a: FragmentA<T>, b: FragmentB<T>, c: Accumulator) -> Accumulator {
        T::m16n8k16(a, b, c)
    }
}

impl AccumulatorType for f16 {
    type Accumulator = AccumulatorF16;
    const ZERO: AccumulatorF16 = [0; 2];

    #[inline(always)]
    fn to_f32([upper, lower]: AccumulatorF16) -> Accumulator {
        let [upper, lower] = [upper, lower].map(F16x2::from_bits);
        [upper.lo(), upper.hi(), lower.lo(), lower.hi()].map(convert::f16_to_f32)
    }
}

impl AccumulatorFor<f16> for f16 {
    #[inline(always)]
    #[track_caller]
    fn m16n8k16(a: FragmentA<f16>, b: FragmentB<f16>, c: AccumulatorF16) -> AccumulatorF16 {
        m16n8k16_f16(a, b, c)
    }
}

/// `a * b + c`, accumulated in f32.
#[doc = ptx!("mma.sync.aligned.m16n8k16.row.col.f32.{f16.f16, bf16.bf16}.f32")]
///
/// # Numerics
/// Products are exact, and subnormal operands are not flushed. The emulator adds products and C in
/// f64 and rounds once, to nearest; NaN is `0x7fffffff`, or `0x7fff` in f16.
///
/// The ISA leaves the order and rounding of the accumulation open. According to measurements
/// (arXiv:2403.00232, arXiv:2512.07004) a tensor core accumulates 16 products in one step on SM 90,
/// and in two steps of 8 on SM 80. A step aligns its products and the accumulator to the largest
/// exponent `e` among them and truncates bits of weight `2^(e - 24)` and less. It truncates the sum
/// to f32, or rounds it to nearest in f16. The error of a step is less than `2^(e - 23)` per
/// summand plus one unit in the last place of the sum.
#[inline(always)]
#[track_caller]
pub fn m16n8k16<T: Multiplicand>(a: FragmentA<T>, b: FragmentB<T>, c: Accumulator) -> Accumulator {
    T::m16n8k16(a, b, c)
}

/// An 8-bit element of A and B: `E4m3` or `E5m2`.
pub trait Multiplicand8: Copy {
    /// Converts two of them to f16, exactly.
    fn pair_to_f16(codes: u16) -> F16x2;
}

impl Multiplicand8 for E4m3 {
    #[inline(always)]
    #[track_caller]
    fn pair_to_f16(codes: u16) -> F16x2 {
        convert::e4m3x2_to_f16x2(E4m3x2::from_bits(codes))
    }
}

impl Multiplicand8 for E5m2 {
    #[inline(always)]
    #[track_caller]
    fn pair_to_f16(codes: u16) -> F16x2 {
        convert::e5m2x2_to_f16x2(E5m2x2::from_bits(codes))
    }
}

/// `a * b + c` of 8-bit elements, A `[16, 32]` and B `[32, 8]`, accumulated in f32; SM 89.
#[doc = ptx!("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")]
///
/// Elements are packed four to a word, the first in the lowest byte:
///
/// | | element | row | column |
/// | --- | --- | --- | --- |
/// | A | `i` in `0..16` | `group + 8 * (i / 4 % 2)` | `4 * pair + i % 4 + 16 * (i / 8)` |
/// | B | `i` in `0..8` | `4 * pair + i % 4 + 16 * (i / 4)` | `group` |
///
/// Each half of k is converted to f16, which is exact, and is one [`m16n8k16`]. On SM 90 ptxas
/// compiles `mma.m16n8k32` to the same; that instruction needs PTX 8.4, which drivers before CUDA
/// 12.4 reject.
#[inline(always)]
#[track_caller]
pub fn m16n8k32<T: Multiplicand8>(
    a: FragmentA<T>,
    b: FragmentB<T>,
    mut c: Accumulator,
) -> Accumulator {
    let halves =
        |word: u32| [word as u16, (word >> 16) as u16].map(|codes| T::pair_to_f16(codes).to_bits());
    for half in 0..2 {
        // Columns `2 * pair` and `2 * pair + 8` of the f16 fragments are adjacent here, in both
        // operands: the k index is permuted, and the products are the same.
        let ([a0, a2], [a1, a3]) = (halves(a.words[2 * half]), halves(a.words[2 * half + 1]));
        let a = FragmentA::<f16>::from_words([a0, a1, a2, a3]);
        c = m16n8k16(a, FragmentB::from_words(halves(b.words[half])), c);
    }
    c
}

/// The instruction `$mnemonic` with an f32 accumulator.
#[cfg(target_arch = "nvptx64")]
macro_rules! mma_f32 {
    ($mnemonic:literal, $a:ident, $b:ident, $c:ident) => {{
        let (a, b) = ($a.words, $b.words);
        let [mut d0, mut d1, mut d2, mut d3] = $c;
        stay_converged();
        asm!(concat!($mnemonic, " {{{d0}, {d1}, {d2}, {d3}}}, {{{a0}, {a1}, {a2}, {a3}}}, ",
                "{{{b0}, {b1}}}, {{{d0}, {d1}, {d2}, {d3}}};"),
            d0 = inout(reg32) d0, d1 = inout(reg32) d1, d2 = inout(reg32) d2, d3 = inout(reg32) d3,
            a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
            b0 = in(reg32) b[0], b1 = in(reg32) b[1],
            options(nomem, nostack, preserves_flags));
        [d0, d1, d2, d3]
    }};
}

instruction! {
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" => fn m16n8k16_f32_f16(
        a: FragmentA<f16>, b: FragmentB<f16>, c: Accumulator
    ) -> Accumulator {
        mma_f32!("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", a, b, c)
    } host {
        emulated::mma_f32("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", (a, b, c), |bits| {
            f16::from_bits(bits).to_f64()
        })
    }

    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" => fn m16n8k16_f32_bf16(
        a: FragmentA<bf16>, b: FragmentB<bf16>, c: Accumulator
    ) -> Accumulator {
        mma_f32!("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", a, b, c)
    } host {
        emulated::mma_f32("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", (a, b, c), |bits| {
            bf16::from_bits(bits).to_f64()
        })
    }

    /// `a * b + c`, accumulated in f16: on most devices as fast as f32, with half the registers.
    "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16" => pub fn m16n8k16_f16(
        a: FragmentA<f16>, b: FragmentB<f16>, c: AccumulatorF16
    ) -> AccumulatorF16 {
        let (a, b) = (a.words, b.words);
        let [mut d0, mut d1] = c;
        stay_converged();
        asm!("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 \
                {{{d0}, {d1}}}, {{{a0}, {a1}, {a2}, {a3}}}, {{{b0}, {b1}}}, {{{d0}, {d1}}};",
            d0 = inout(reg32) d0, d1 = inout(reg32) d1,
            a0 = in(reg32) a[0], a1 = in(reg32) a[1], a2 = in(reg32) a[2], a3 = in(reg32) a[3],
            b0 = in(reg32) b[0], b1 = in(reg32) b[1],
            options(nomem, nostack, preserves_flags));
        [d0, d1]
    } host {
        emulated::mma_f16("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", a, b, c)
    }
}

/// The warp's lanes exchange their fragments, and each computes its elements of D.
#[cfg(not(target_arch = "nvptx64"))]
mod emulated {
    use super::{Accumulator, AccumulatorF16, FragmentA, FragmentB};
    use crate::warp::FULL_MASK;
    use half::f16;
    use simt::device::{Words, collective};

    const K: usize = 16;

    /// First words of A, B and C among the words of a lane.
    const A: usize = 0;
    const B: usize = 4;
    const C: usize = 6;

    /// Element `i` of the words from `first` on.
    fn half(words: &Words, first: usize, i: usize) -> u16 {
        (words[first + i / 2] >> (16 * (i % 2))) as u16
    }

    /// A `[16, k]` and B `[k, 8]` from the lanes' words.
    fn operands(
        lanes: &[Words; 32],
        decode: impl Fn(u16) -> f64,
    ) -> ([[f64; K]; 16], [[f64; 8]; K]) {
        let (mut a, mut b) = ([[0.0; K]; 16], [[0.0; 8]; K]);
        for (lane, words) in lanes.iter().enumerate() {
            let (group, pair) = (lane / 4, lane % 4);
            for i in 0..8 {
                let (row, column) = (group + 8 * (i / 2 % 2), 2 * pair + i % 2 + 8 * (i / 4));
                a[row][column] = decode(half(words, A, i));
            }
            for i in 0..4 {
                b[2 * pair + i % 2 + 8 * (i / 2)][group] = decode(half(words, B, i));
            }
        }
        (a, b)
    }

    /// Replaces the lanes' words by D: `c` reads element `i` of C, and `d` writes element `i` of D.
    fn multiply(
        lanes: &mut [Words; 32],
        decode: impl Fn(u16) -> f64,
        c: impl Fn(&Words, usize) -> f64,
        d: impl Fn(&mut Words, usize, f64),
    ) {
        let (a, b) = operands(lanes, decode);
        let place = |lane: usize, i: usize| (lane / 4 + 8 * (i / 2), 2 * (lane % 4) + i % 2);
        let mut acc = [[0.0; 8]; 16];
        for (lane, words) in lanes.iter_mut().enumerate() {
            for i in 0..4 {
                let (row, column) = place(lane, i);
                acc[row][column] = c(words, i);
            }
            *words = Words::default();
        }
        // Row by row, so that the compiler vectorises over the columns.
        for (acc, a) in acc.iter_mut().zip(&a) {
            for (a, b) in a.iter().zip(&b) {
                acc.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
            }
        }
        for (lane, words) in lanes.iter_mut().enumerate() {
            for i in 0..4 {
                let (row, column) = place(lane, i);
                d(words, i, acc[row][column]);
            }
        }
    }

    #[track_caller]
    pub fn mma_f32<T>(
        mnemonic: &'static str,
        (a, b, c): (FragmentA<T>, FragmentB<T>, Accumulator),
        decode: impl Fn(u16) -> f64,
    ) -> Accumulator {
        let [a0, a1, a2, a3] = a.words;
        let [b0, b1] = b.words;
        let [c0, c1, c2, c3] = c.map(f32::to_bits);
        let words = [a0, a1, a2, a3, b0, b1, c0, c1, c2, c3];
        let [d0, d1, d2, d3, ..] = collective(mnemonic, FULL_MASK, &words, |lanes| {
            let c = |words: &Words, i| f64::from(f32::from_bits(words[C + i]));
            multiply(lanes, decode, c, |words, i, sum| words[i] = round_to_f32(sum));
        });
        [d0, d1, d2, d3].map(f32::from_bits)
    }

    #[track_caller]
    pub fn mma_f16(
        mnemonic: &'static str,
        a: FragmentA<f16>,
        b: FragmentB<f16>,
        c: AccumulatorF16,
    ) -> AccumulatorF16 {
        let [a0, a1, a2, a3] = a.words;
        let [b0, b1] = b.words;
        let words = [a0, a1, a2, a3, b0, b1, c[0], c[1]];
        let [d0, d1, ..] = collective(mnemonic, FULL_MASK, &words, |lanes| {
            let decode = |bits| f16::from_bits(bits).to_f64();
            let c = |words: &Words, i| decode(half(words, C, i));
            multiply(lanes, decode, c, |words, i, sum| {
                words[i / 2] |= u32::from(round_to_f16(sum)) << (16 * (i % 2));
            });
        });
        [d0, d1]
    }

    fn round_to_f32(sum: f64) -> u32 {
        if sum.is_nan() { 0x7fff_ffff } else { (sum as f32).to_bits() }
    }

    fn round_to_f16(sum: f64) -> u16 {
        if sum.is_nan() {
            return 0x7fff;
        }
        // `half` reads the upper 32 bits only: the last of them becomes a sticky bit for the lower
        // ones.
        let bits = sum.to_bits();
        let sticky = u64::from(bits as u32 != 0) << 32;
        f16::from_f64(f64::from_bits(bits & !0xffff_ffff | sticky)).to_bits()
    }
}
