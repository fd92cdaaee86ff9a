//! Plain element types.

use super::half_to_f32;

/// A type whose elements stand alone.
pub trait Plain<const BYTES: usize> {
    /// The number that is stored.
    fn read(stored: &[u8; BYTES]) -> f32;
}

/// Little-endian f32.
pub struct F32;

impl Plain<4> for F32 {
    #[inline(always)]
    fn read(stored: &[u8; 4]) -> f32 {
        f32::from_le_bytes(*stored)
    }
}

/// Little-endian f16.
pub struct F16;

impl Plain<2> for F16 {
    #[inline(always)]
    fn read(stored: &[u8; 2]) -> f32 {
        half_to_f32(u16::from_le_bytes(*stored))
    }
}

/// The upper half of a little-endian f32.
pub struct BF16;

impl Plain<2> for BF16 {
    #[inline(always)]
    fn read(&[low, high]: &[u8; 2]) -> f32 {
        f32::from_le_bytes([0, 0, low, high])
    }
}

/// E4M3, without its scale.
pub struct E4M3;

impl Plain<1> for E4M3 {
    #[inline(always)]
    fn read(&[stored]: &[u8; 1]) -> f32 {
        gpu_types::E4m3::from_bits(stored).to_f32()
    }
}
