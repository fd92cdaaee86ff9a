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
        *out = gpu_types::E4m3::from_bits(stored).to_f32();
    }
}
