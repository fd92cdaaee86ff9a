//! Plain element types: blocks of one.

use super::{Blocks, Lanes, half_to_f32};

/// Little-endian f32.
pub struct F32;

impl Blocks<4, 1> for F32 {
    #[inline(always)]
    fn decode(_: impl Lanes, stored: &[u8; 4], [out]: &mut [f32; 1]) {
        *out = f32::from_le_bytes(*stored);
    }
}

/// Little-endian f16.
pub struct F16;

impl Blocks<2, 1> for F16 {
    #[inline(always)]
    fn decode(_: impl Lanes, stored: &[u8; 2], [out]: &mut [f32; 1]) {
        *out = half_to_f32(u16::from_le_bytes(*stored));
    }
}

/// The upper half of a little-endian f32.
pub struct BF16;

impl Blocks<2, 1> for BF16 {
    #[inline(always)]
    fn decode(_: impl Lanes, &[low, high]: &[u8; 2], [out]: &mut [f32; 1]) {
        *out = f32::from_le_bytes([0, 0, low, high]);
    }
}

/// E4M3, without its scale.
pub struct E4M3;

impl Blocks<1, 1> for E4M3 {
    #[inline(always)]
    fn decode(_: impl Lanes, &[stored]: &[u8; 1], [out]: &mut [f32; 1]) {
        *out = e4m3_to_f32(stored);
    }
}

/// The number of an E4M3: sign, four bits of exponent with a bias of 7, three of mantissa; NaN
/// where all but the sign are set, and no infinity. Source: arXiv:2209.05433.
#[inline(always)]
pub fn e4m3_to_f32(bits: u8) -> f32 {
    // The bits of an f32 whose exponent has a bias of 127: subnormal numbers are so in both.
    const BIAS: f32 = f32::from_bits((127 + 127 - 7) << 23);
    let (sign, magnitude) = (u32::from(bits >> 7) << 31, u32::from(bits & 0x7F));
    if magnitude == 0x7F {
        return f32::NAN;
    }
    f32::from_bits(sign | magnitude << 20) * BIAS
}
