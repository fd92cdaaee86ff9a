//! Fragments of A in f16 from the quants of a tile, with k in the order of x.
//!
//! Packed weights permute the 16 elements along k of an MMA step among the four lanes of a row, see
//! [`format`](mod@super::super::format), and the small-batch kernels permute x alike. TMA cannot:
//! so lanes exchange quants, packed as they are, before they are dequantised.

use crate::element::Half;
use crate::gemm::quantised::format::{
    Format, Mins, Nibbles, SUBNORMAL, TwoBits, UNIT_STEPS, lane_pair, quant_scale,
};
use cuda_std::F16x2;
use cuda_std::prelude::*;
use half::f16;

/// A lane's quants of a unit, whose lanes can exchange them.
pub trait InOrder: Copy {
    /// The quants of columns `2 * pair`, `2 * pair + 1`, `2 * pair + 8` and `2 * pair + 9` of each
    /// step, where elements along k are in order. The whole warp calls this, converged.
    #[must_use]
    fn in_order(self) -> Self;
}

/// What a lane takes from the lanes of its row.
#[derive(Clone, Copy)]
struct Exchange {
    /// The lanes that have its first and its second two elements.
    from: [u32; 2],
    /// Whether they are the second two elements there.
    is_second: bool,
}

impl Exchange {
    #[inline(always)]
    fn for_lane() -> Self {
        let first = warp::lane_id() - lane_pair() + lane_pair() / 2;
        Exchange { from: [first, first + 2], is_second: lane_pair() % 2 == 1 }
    }

    #[inline(always)]
    fn words(self, word: u32) -> [u32; 2] {
        self.from.map(|lane| warp::shuffle_idx(word, lane))
    }

    /// The exchanged word of bytes, one an element: columns 0, 8, 1, 9.
    #[inline(always)]
    fn bytes(self, word: u32) -> u32 {
        let [first, second] = self.words(word);
        math::byte_perm(first, second, if self.is_second { 0x7351 } else { 0x6240 })
    }

    /// The exchanged word of a plane, see [`Nibbles`].
    #[inline(always)]
    fn plane(self, word: u32) -> u32 {
        /// Where a half has the bits of the first columns of both rows.
        const FIRST: u32 = 0x0ff0_0ff0;
        let [first, second] = self.words(word);
        // The bytes of each half swapped, first and second columns are.
        let [keep, swap] = [0x3210, 0x2301];
        let (of_first, of_second) = if self.is_second { (swap, keep) } else { (keep, swap) };
        (math::byte_perm(first, 0, of_first) & FIRST)
            | (math::byte_perm(second, 0, of_second) & !FIRST)
    }
}

impl<const HIGH_BITS: usize> InOrder for Nibbles<HIGH_BITS> {
    #[inline(always)]
    fn in_order(self) -> Self {
        let exchange = Exchange::for_lane();
        let mut high = self.high;
        for word in 0..HIGH_BITS {
            high[word] = exchange.plane(high[word]);
        }
        Nibbles { low: self.low.map(|word| exchange.bytes(word)), high }
    }
}

impl<const HIGH_BITS: usize> InOrder for TwoBits<HIGH_BITS> {
    #[inline(always)]
    fn in_order(self) -> Self {
        let exchange = Exchange::for_lane();
        let high = if HIGH_BITS > 0 { exchange.plane(self.high) } else { 0 };
        TwoBits { low: self.low.map(|word| exchange.plane(word)), high }
    }
}

/// Quants of Q8_0.
impl InOrder for [[u32; 4]; 2] {
    #[inline(always)]
    fn in_order(self) -> Self {
        let exchange = Exchange::for_lane();
        self.map(|words| words.map(|word| exchange.bytes(word)))
    }
}

/// The fragment of step `step` of unit `unit` of a tile: the elements that a dense copy of the
/// weight has, but that mins which are products are rounded before they are added.
#[inline(always)]
pub fn fragment<F: Format>(
    quants: &F::Unit,
    scales: &F::Scales,
    unit: usize,
    step: usize,
) -> [u32; 4] {
    let group = (unit * UNIT_STEPS + step) / F::GROUP_STEPS;
    let words = F::fragment(quants, step);
    let rows = [0, 1].map(|row| (F::group_scale(scales, row, group), F::row_scale(scales, row)));
    let mut elements = [0; 4];
    for i in 0..4 {
        let (of_group, of_row) = rows[i % 2];
        elements[i] = match F::HAS_HALF_SCALES && HAS_REGISTERS {
            true => half_elements::<F>(words[i], i % 2, of_group, of_row).to_bits(),
            false => elements_in_f32::<F>(words[i], i % 2, of_group, of_row),
        };
    }
    elements
}

/// Whether there are registers for the constants of [`half_elements`]: on sm_80 kernels would
/// spill.
const HAS_REGISTERS: bool = cfg!(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"));

/// Two quants of a row with [`Format::OFFSET`], times the integer scale if there is one: exactly.
#[inline(always)]
fn integers<F: Format>(word: u32, row: usize, scale: f32) -> F16x2 {
    /// 1024 in f16: its last bit counts 1.
    const ONES: u32 = 0x6400_6400;
    let factor = quant_scale::<F>(row);
    if F::ONE != SUBNORMAL {
        return f16x2::mul(F16x2::from_bits(word), splat(factor));
    }
    // The bits of a subnormal are those of an integer.
    let factor = factor * SUBNORMAL;
    let (word, offset) = (F16x2::from_bits(word | ONES), F::OFFSET - 1024.0 * factor);
    match F::MINS {
        // Six bits.
        Mins::Integers => f16x2::fma(word, splat(factor * scale), splat(offset * scale)),
        _ => f16x2::fma(word, splat(factor), splat(offset)),
    }
}

/// Two elements of a row, of the scale and min of its group and what those are multiplied by.
#[inline(always)]
fn half_elements<F: Format>(
    word: u32,
    row: usize,
    [scale, min]: [f32; 2],
    [row_scale, min_scale]: [f32; 2],
) -> F16x2 {
    let integers = integers::<F>(word, row, scale);
    match F::MINS {
        Mins::None => f16x2::mul(integers, splat(scale)),
        Mins::Floats => f16x2::fma(integers, splat(scale), splat(min)),
        Mins::Integers => f16x2::fma(integers, splat(row_scale), splat(min * min_scale)),
    }
}

/// As [`half_elements`], of scales that are no f16.
#[inline(always)]
fn elements_in_f32<F: Format>(
    word: u32,
    row: usize,
    [scale, min]: [f32; 2],
    [row_scale, min_scale]: [f32; 2],
) -> u32 {
    // The powers of two are exact, so that an element is rounded as `dequantise` rounds it.
    let (scale, min) = (scale * row_scale, min * min_scale);
    let offset = if F::OFFSET == 0.0 { min } else { math::fma(F::OFFSET, scale, min) };
    let factor = scale * quant_scale::<F>(row);
    let [lo, hi] = f16::unpack(word).map(|quant| math::fma(quant, factor, offset));
    f16::pack(lo, hi)
}

/// A pair of the value, rounded.
#[inline(always)]
fn splat(value: f32) -> F16x2 {
    F16x2::from_bits(f16::pack(value, value))
}
