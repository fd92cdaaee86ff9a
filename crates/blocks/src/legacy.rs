//! The formats of 32 elements with one scale `d` (f16) and, where zero is no level, one minimum `m`
//! (f16).
//!
//! Byte `i` of the 16 of nibbles holds element `i` (low) and element `i + 16` (high); bit `i` of
//! `high_bits` belongs to element `i`.

use super::{Blocks, Codec, Lanes, field, half_at, halves};
use gpu_types::BlockFormat;
use std::array;

/// The formats here.
pub(super) const CODECS: &[(BlockFormat, Codec)] = &[
    (BlockFormat::Q4_0, Codec::of_blocks::<Q4_0, _, _>()),
    (BlockFormat::Q4_1, Codec::of_blocks::<Q4_1, _, _>()),
    (BlockFormat::Q5_0, Codec::of_blocks::<Q5_0, _, _>()),
    (BlockFormat::Q5_1, Codec::of_blocks::<Q5_1, _, _>()),
    (BlockFormat::Q8_0, Codec::of_blocks::<Q8_0, _, _>()),
];

/// `d`, nibbles: `d * (q - 8)`.
pub struct Q4_0;

impl Blocks<18, 32> for Q4_0 {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 18], out: &mut [f32; 32]) {
        let d = half_at(lanes, block, 0);
        let [low, high] = nibbles(field(block, 2));
        let [first, second] = halves(out);
        lanes.centred(low, 8.0, d, first);
        lanes.centred(high, 8.0, d, second);
    }
}

/// `d`, `m`, nibbles: `d * q + m`.
pub struct Q4_1;

impl Blocks<20, 32> for Q4_1 {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 20], out: &mut [f32; 32]) {
        let (d, m) = (half_at(lanes, block, 0), half_at(lanes, block, 2));
        let [low, high] = nibbles(field(block, 4));
        let [first, second] = halves(out);
        lanes.affine(low, d, m, first);
        lanes.affine(high, d, m, second);
    }
}

/// `d`, 32 fifth bits, nibbles: `d * (q - 16)`.
pub struct Q5_0;

impl Blocks<22, 32> for Q5_0 {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 22], out: &mut [f32; 32]) {
        let d = half_at(lanes, block, 0);
        let [low, high] = with_fifth_bits(nibbles(field(block, 6)), field(block, 2));
        let [first, second] = halves(out);
        lanes.centred(low, 16.0, d, first);
        lanes.centred(high, 16.0, d, second);
    }
}

/// `d`, `m`, 32 fifth bits, nibbles: `d * q + m`.
pub struct Q5_1;

impl Blocks<24, 32> for Q5_1 {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 24], out: &mut [f32; 32]) {
        let (d, m) = (half_at(lanes, block, 0), half_at(lanes, block, 2));
        let [low, high] = with_fifth_bits(nibbles(field(block, 8)), field(block, 4));
        let [first, second] = halves(out);
        lanes.affine(low, d, m, first);
        lanes.affine(high, d, m, second);
    }
}

/// `d`, 32 signed bytes: `d * q`.
pub struct Q8_0;

impl Blocks<34, 32> for Q8_0 {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 34], out: &mut [f32; 32]) {
        let d = half_at(lanes, block, 0);
        let [first, second] = halves(out);
        // With the sign bit flipped a byte is its number plus 128.
        lanes.centred(field::<16>(block, 2).map(|q| q ^ 128), 128.0, d, first);
        lanes.centred(field::<16>(block, 18).map(|q| q ^ 128), 128.0, d, second);
    }
}

/// The lower nibbles, and the upper ones.
#[inline(always)]
fn nibbles(bytes: &[u8; 16]) -> [[u8; 16]; 2] {
    [bytes.map(|byte| byte & 15), bytes.map(|byte| byte >> 4)]
}

#[inline(always)]
fn with_fifth_bits([low, high]: [[u8; 16]; 2], bits: &[u8; 4]) -> [[u8; 16]; 2] {
    let fifth = |i: usize| if bits[i / 8] & 1 << (i % 8) != 0 { 16 } else { 0 };
    [array::from_fn(|i| low[i] | fifth(i)), array::from_fn(|i| high[i] | fifth(i + 16))]
}
