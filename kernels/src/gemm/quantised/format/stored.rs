//! The quants in blocks as a file has them. Host only.

/// Nibbles to bytes: `half` elements in the low ones of as many bytes, the next in the high ones.
pub fn nibbles(bytes: &[u8], half: usize, out: &mut [u8]) {
    for (out, bytes) in out.chunks_exact_mut(2 * half).zip(bytes.chunks_exact(half)) {
        for (i, byte) in bytes.iter().enumerate() {
            out[i] = byte & 15;
            out[half + i] = byte >> 4;
        }
    }
}

/// Pairs of bits to bytes: 32 elements in the lowest ones of as many bytes, the next in the higher
/// ones.
pub fn pairs(bytes: &[u8], out: &mut [u8]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    }
}

/// Adds a bit of each element, bit `to` of its quant: those of 8 elements one after the other are a
/// byte, or of 32 elements one in each of as many bytes, the next above them.
pub fn add_bits(bits: &[u8], run: usize, to: u32, out: &mut [u8]) {
    for (i, out) in out.iter_mut().enumerate() {
        let (byte, bit) = if run == 8 { (i / 8, i % 8) } else { (i % 32, i / 32) };
        *out |= (bits[byte] >> bit & 1) << to;
    }
}
