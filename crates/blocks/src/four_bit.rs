//! The formats whose nibbles stand for levels that are not evenly spaced.
//!
//! Byte `i` of 16 holds element `i` (low) and element `i + 16` (high).

use super::{Blocks, Codec, Lanes, field, half_at};
use gpu_types::BlockFormat;

/// The formats here.
pub(super) const CODECS: &[(BlockFormat, Codec)] = &[
    (BlockFormat::IQ4_XS, Codec::of_blocks::<IQ4XS, _, _>()),
    (BlockFormat::MXFP4, Codec::of_blocks::<MXFP4, _, _>()),
    (BlockFormat::IQ4_NL, Codec::of_blocks::<IQ4NL, _, _>()),
];

/// The levels of IQ4_NL and IQ4_XS. Source: `kvalues_iq4nl` in ggml-common.h.
pub(super) const IQ4_LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The levels of E2M1 (sign, two bits of exponent, one of mantissa), doubled.
const E2M1_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `d`, nibbles: `d * level`.
pub struct IQ4NL;

impl Blocks<18, 32> for IQ4NL {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 18], out: &mut [f32; 32]) {
        put(out, half_at(lanes, block, 0), &IQ4_LEVELS, field(block, 2));
    }
}

/// `d`, six-bit scales of 8 groups (two high bits each, then nibbles), nibbles:
/// `d * (scale - 32) * level`.
pub struct IQ4XS;

impl Blocks<136, 256> for IQ4XS {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 136], out: &mut [f32; 256]) {
        let d = half_at(lanes, block, 0);
        let high_bits = u16::from_le_bytes(*field(block, 2));
        let low_bits: &[u8; 4] = field(block, 4);
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low = low_bits[group / 2] >> (4 * (group % 2)) & 15;
            let high = (high_bits >> (2 * group) & 3) as u8;
            let scale = d * (i32::from(low | high << 4) - 32) as f32;
            put(out, scale, &IQ4_LEVELS, field(block, 8 + 16 * group));
        }
    }
}

/// An exponent of two (E8M0), nibbles: `2^(exponent - 128) * level`.
pub struct MXFP4;

impl Blocks<17, 32> for MXFP4 {
    #[inline(always)]
    fn decode(_: impl Lanes, block: &[u8; 17], out: &mut [f32; 32]) {
        // Half of E8M0's power, for the levels are doubled; the two smallest are subnormal.
        let bits = match u32::from(block[0]) {
            exponent @ 0..2 => 0x0020_0000 << exponent,
            exponent => (exponent - 1) << 23,
        };
        put(out, f32::from_bits(bits), &E2M1_LEVELS, field(block, 1));
    }
}

#[inline(always)]
fn put(out: &mut [f32; 32], scale: f32, levels: &[i8; 16], nibbles: &[u8; 16]) {
    for (i, byte) in nibbles.iter().enumerate() {
        out[i] = scale * f32::from(levels[usize::from(byte & 15)]);
        out[i + 16] = scale * f32::from(levels[usize::from(byte >> 4)]);
    }
}
