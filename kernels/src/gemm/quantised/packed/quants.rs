//! The quants in the blocks of a file.

use gpu_types::BlockFormat;

/// The quants of a block, in the order of its elements, each with
/// [`Format::OFFSET`](super::super::format::Format::OFFSET) taken off, or the indices of its levels.
pub(super) fn quants(format: BlockFormat, block: &[u8], out: &mut [u8]) {
    match format {
        BlockFormat::Q4_0 => nibbles(&block[2..], 16, out),
        BlockFormat::Q4_1 => nibbles(&block[4..], 16, out),
        BlockFormat::Q5_0 => {
            nibbles(&block[6..], 16, out);
            fifth_bits_of_32(&block[2..6], out);
        }
        BlockFormat::Q5_1 => {
            nibbles(&block[8..], 16, out);
            fifth_bits_of_32(&block[4..8], out);
        }
        BlockFormat::Q8_0 => {
            out.iter_mut().zip(&block[2..]).for_each(|(out, byte)| *out = byte ^ 0x80);
        }
        BlockFormat::Q2_K => pairs(&block[16..], out),
        BlockFormat::Q3_K => {
            pairs(&block[32..], out);
            for (i, out) in out.iter_mut().enumerate() {
                *out |= (block[i % 32] >> (i / 32) & 1) << 2;
            }
        }
        BlockFormat::Q4_K => nibbles(&block[16..], 32, out),
        BlockFormat::Q5_K => {
            nibbles(&block[48..], 32, out);
            for (i, out) in out.iter_mut().enumerate() {
                *out |= (block[16 + i % 32] >> (i / 32) & 1) << 4;
            }
        }
        BlockFormat::Q6_K => {
            let mut high = [0; 256];
            pairs(&block[128..], &mut high);
            nibbles(block, 64, out);
            out.iter_mut().zip(high).for_each(|(out, high)| *out |= high << 4);
        }
        BlockFormat::IQ4_XS => nibbles(&block[8..], 16, out),
        BlockFormat::MXFP4 => nibbles(&block[1..], 16, out),
        _ => unreachable!("{format:?} has no tiles"),
    }
}

/// Nibbles to bytes: `half` elements in the low ones of as many bytes, the next in the high ones.
fn nibbles(bytes: &[u8], half: usize, out: &mut [u8]) {
    for (out, bytes) in out.chunks_exact_mut(2 * half).zip(bytes.chunks_exact(half)) {
        for (i, byte) in bytes.iter().enumerate() {
            out[i] = byte & 15;
            out[half + i] = byte >> 4;
        }
    }
}

/// Pairs of bits to bytes: 32 elements in the lowest ones of as many bytes, the next in the higher
/// ones.
fn pairs(bytes: &[u8], out: &mut [u8]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    }
}

/// Adds the fifth bits of 32 elements.
fn fifth_bits_of_32(bits: &[u8], out: &mut [u8]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out |= (bits[i / 8] >> (i % 8) & 1) << 4;
    }
}
