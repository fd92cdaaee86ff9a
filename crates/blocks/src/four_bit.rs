//! The formats whose nibbles stand for levels that are not evenly spaced.
//!
//! Byte `i` of 16 holds element `i` (low) and element `i + 16` (high).

use super::lanes::{array_of, map};
use super::{Blocks, Codec, Lanes, Levels, field, half_at};
use gpu_types::BlockFormat;

/// The formats here.
pub(super) const CODECS: &[(BlockFormat, Codec)] = &[
    (BlockFormat::IQ4_XS, Codec::of_blocks::<IQ4XS, _, _, _>()),
    (BlockFormat::MXFP4, Codec::of_blocks::<MXFP4, _, _, _>()),
    (BlockFormat::IQ4_NL, Codec::of_blocks::<IQ4NL, _, _, _>()),
];

/// The levels of IQ4_NL and IQ4_XS. Source: `kvalues_iq4nl` in ggml-common.h.
pub(super) const IQ4_LEVELS: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The levels of E2M1 (sign, two bits of exponent, one of mantissa), doubled.
pub(super) const E2M1_LEVELS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `d`, nibbles: `d * level`.
pub struct IQ4NL;

impl Blocks<18, 32, 1> for IQ4NL {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 18]) -> Levels<32, 1> {
        let mut levels = [0; 32];
        look_up(lanes, &IQ4_LEVELS, field(block, 2), &mut levels);
        Levels { levels, scales: [half_at(lanes, block, 0)], offsets: [0.0] }
    }
}

/// `d`, six-bit scales of 8 groups (two high bits each, then nibbles), nibbles:
/// `d * (scale - 32) * level`.
pub struct IQ4XS;

impl Blocks<136, 256, 8> for IQ4XS {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 136]) -> Levels<256, 8> {
        let d = half_at(lanes, block, 0);
        let high_bits = u16::from_le_bytes(*field(block, 2));
        let low_bits: &[u8; 4] = field(block, 4);
        let mut levels = [0; 256];
        for (run, levels) in levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            look_up(lanes, &IQ4_LEVELS, field(block, 8 + 16 * run), levels);
        }
        let scales = array_of(|group| {
            let low = low_bits[group / 2] >> (4 * (group % 2)) & 15;
            let high = (high_bits >> (2 * group) & 3) as u8;
            d * (i32::from(low | high << 4) - 32) as f32
        });
        Levels { levels, scales, offsets: [0.0; 8] }
    }
}

/// An exponent of two (E8M0), nibbles: `2^(exponent - 128) * level`.
pub struct MXFP4;

impl Blocks<17, 32, 1> for MXFP4 {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 17]) -> Levels<32, 1> {
        let mut levels = [0; 32];
        look_up(lanes, &E2M1_LEVELS, field(block, 1), &mut levels);
        Levels { levels, scales: [e8m0_half(block[0])], offsets: [0.0] }
    }
}

/// Half of E8M0's power, for the levels are doubled; the two smallest are subnormal.
#[inline(always)]
pub(super) fn e8m0_half(exponent: u8) -> f32 {
    f32::from_bits(match u32::from(exponent) {
        exponent @ 0..2 => 0x0020_0000 << exponent,
        exponent => (exponent - 1) << 23,
    })
}

#[inline(always)]
fn look_up(lanes: impl Lanes, table: &[i8; 16], nibbles: &[u8; 16], levels: &mut [i8; 32]) {
    let (low, high) = levels.split_at_mut(16);
    low.copy_from_slice(&lanes.look_up(table, map(*nibbles, |byte| byte & 15)));
    high.copy_from_slice(&lanes.look_up(table, map(*nibbles, |byte| byte >> 4)));
}
