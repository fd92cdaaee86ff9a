//! Fragments of A in f16 from the quants of a tile, with k in the order of x.
//!
//! Packed weights permute the 16 elements along k of an MMA step among the four lanes of a row, see
//! [`format`](mod@super::super::format), and the small-batch kernels permute x alike. TMA cannot:
//! so lanes exchange quants, packed as they are, before they are dequantised.

use crate::element::Half;
use crate::gemm::quantised::format::{
    Format, Nibbles, TwoBits, UNIT_STEPS, lane_pair, quant_scale,
};
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
/// weight has.
#[inline(always)]
pub fn fragment<F: Format>(
    quants: &F::Unit,
    scales: &F::Scales,
    unit: usize,
    step: usize,
) -> [u32; 4] {
    let group = (unit * UNIT_STEPS + step) / F::GROUP_STEPS;
    let rows = [0, 1].map(|row| factors::<F>(scales, row, group));
    let words = F::fragment(quants, step);
    let mut elements = [0; 4];
    for i in 0..4 {
        let [scale, offset] = rows[i % 2];
        let [lo, hi] = f16::unpack(words[i]).map(|quant| math::fma(quant, scale, offset));
        elements[i] = f16::pack(lo, hi);
    }
    elements
}

/// What a group's quants in a row are multiplied by, and what is added. The powers of two are
/// exact, so that an element is rounded as [`dequantise`](super::super::dequantise) rounds it.
#[inline(always)]
fn factors<F: Format>(scales: &F::Scales, row: usize, group: usize) -> [f32; 2] {
    let ([scale, min], [row_scale, min_scale]) =
        (F::group_scale(scales, row, group), F::row_scale(scales, row));
    let (scale, min) = (scale * row_scale, min * min_scale);
    let offset = if F::OFFSET == 0.0 { min } else { math::fma(F::OFFSET, scale, min) };
    [scale * quant_scale::<F>(row), offset]
}
