//! The formats of 32 elements with one scale `d` (f16) and, where zero is no level, one minimum `m`
//! (f16).
//!
//! Byte `i` of the 16 of nibbles holds element `i` (low) and element `i + 16` (high); bit `i` of
//! `high_bits` belongs to element `i`.

use super::{field, half_at};

/// `d`, nibbles: `d * (q - 8)`.
pub fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    let nibbles: &[u8; 16] = field(block, 2);
    for (i, byte) in nibbles.iter().enumerate() {
        out[i] = d * (i32::from(byte & 15) - 8) as f32;
        out[i + 16] = d * (i32::from(byte >> 4) - 8) as f32;
    }
}

/// `d`, `m`, nibbles: `d * q + m`.
pub fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let nibbles: &[u8; 16] = field(block, 4);
    for (i, byte) in nibbles.iter().enumerate() {
        out[i] = d * f32::from(byte & 15) + m;
        out[i + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// `d`, 32 fifth bits, nibbles: `d * (q - 16)`.
pub fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    let high_bits = u32::from_le_bytes(*field(block, 2));
    let nibbles: &[u8; 16] = field(block, 6);
    for (i, byte) in nibbles.iter().enumerate() {
        out[i] = d * (i32::from(with_fifth_bit(byte & 15, high_bits, i)) - 16) as f32;
        out[i + 16] = d * (i32::from(with_fifth_bit(byte >> 4, high_bits, i + 16)) - 16) as f32;
    }
}

/// `d`, `m`, 32 fifth bits, nibbles: `d * q + m`.
pub fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let high_bits = u32::from_le_bytes(*field(block, 4));
    let nibbles: &[u8; 16] = field(block, 8);
    for (i, byte) in nibbles.iter().enumerate() {
        out[i] = d * f32::from(with_fifth_bit(byte & 15, high_bits, i)) + m;
        out[i + 16] = d * f32::from(with_fifth_bit(byte >> 4, high_bits, i + 16)) + m;
    }
}

fn with_fifth_bit(nibble: u8, high_bits: u32, i: usize) -> u8 {
    nibble | ((high_bits >> i) as u8 & 1) << 4
}

/// `d`, 32 signed bytes: `d * q`.
pub fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    let bytes: &[u8; 32] = field(block, 2);
    for (out, byte) in out.iter_mut().zip(bytes) {
        *out = d * f32::from(byte.cast_signed());
    }
}
