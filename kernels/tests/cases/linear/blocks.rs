//! Blocks of the formats, and their elements by ggml's definitions.

use half::f16;
use kernels::gemm::quantised::{self, BlockFormat};
use oracle::Rng;

/// The formats in blocks of `elems` elements.
pub fn in_blocks_of(elems: usize) -> impl Iterator<Item = BlockFormat> + Clone {
    BlockFormat::tiled().filter(move |format| format.block_elems() == elems)
}

/// Random rows of `k` elements as the file has them; each factor of a block is `factor` of a
/// number from -1 to 1.
pub fn random_rows(
    format: BlockFormat,
    [rows, k]: [usize; 2],
    salt: u64,
    factor: impl Fn(f32) -> f32,
) -> Vec<u8> {
    let mut rng = Rng::new(salt);
    let mut stored: Vec<u8> = Vec::new();
    for _ in 0..rows * (k / format.block_elems()) {
        let mut block: Vec<u8> = (0..format.block_bytes()).map(|_| rng.bits() as u8).collect();
        if format == BlockFormat::MXFP4 {
            let factor = factor(rng.float());
            // Its exponent, of the same bias.
            block[0] = (factor.to_bits() >> 23) as u8;
        }
        for &at in factors(format) {
            let factor = factor(rng.float());
            block[at..at + 2].copy_from_slice(&f16::from_f32(factor).to_le_bytes());
        }
        stored.extend(block);
    }
    stored
}

/// Where a block has factors in f16.
fn factors(format: BlockFormat) -> &'static [usize] {
    match format {
        BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 | BlockFormat::IQ4_XS => &[0],
        BlockFormat::MXFP4 => &[],
        BlockFormat::Q2_K => &[80, 82],
        BlockFormat::Q3_K => &[108],
        BlockFormat::Q6_K => &[208],
        _ => &[0, 2],
    }
}

/// The elements of whole blocks.
pub fn elements(format: BlockFormat, stored: &[u8]) -> Vec<f64> {
    let blocks = stored.chunks_exact(format.block_bytes());
    let of_block = |block| (0..format.block_elems()).map(move |i| element(format, block, i));
    blocks.flat_map(of_block).collect()
}

/// `kvalues_iq4nl` of ggml.
const IQ4_LEVELS: [f64; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// The numbers of E2M1 from zero up.
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Element `i` of a block.
fn element(format: BlockFormat, block: &[u8], i: usize) -> f64 {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f64();
    // Nibbles: low ones of `run` bytes, then high ones.
    let nibble = |first: usize, run: usize| {
        let byte = block[first + i / (2 * run) * run + i % run];
        f64::from(if (i / run).is_multiple_of(2) { byte & 15 } else { byte >> 4 })
    };
    // Pairs of bits: 32 bytes have 128 elements.
    let two_bits =
        |first: usize| f64::from(block[first + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3);
    let bit = |at: usize, shift: usize| f64::from(block[at] >> shift & 1);
    let six_bits = |group: usize| {
        let packed = &block[4..16];
        let (scale, min) = if group < 4 {
            (packed[group] & 63, packed[group + 4] & 63)
        } else {
            let (low, high) = (packed[group + 4], [packed[group - 4], packed[group]]);
            (low & 15 | high[0] >> 6 << 4, low >> 4 | high[1] >> 6 << 4)
        };
        (half(0) * f64::from(scale), half(2) * f64::from(min))
    };
    match format {
        BlockFormat::Q4_0 => half(0) * (nibble(2, 16) - 8.0),
        BlockFormat::Q4_1 => half(0) * nibble(4, 16) + half(2),
        BlockFormat::Q5_0 => half(0) * (nibble(6, 16) + 16.0 * bit(2 + i / 8, i % 8) - 16.0),
        BlockFormat::Q5_1 => half(0) * (nibble(8, 16) + 16.0 * bit(4 + i / 8, i % 8)) + half(2),
        BlockFormat::Q8_0 => half(0) * f64::from(block[2 + i] as i8),
        BlockFormat::Q2_K => {
            let [scale, min] = [block[i / 16] & 15, block[i / 16] >> 4].map(f64::from);
            half(80) * scale * two_bits(16) - half(82) * min
        }
        BlockFormat::Q3_K => {
            let group = i / 16;
            let low = block[96 + group % 8] >> (4 * (group / 8)) & 15;
            let high = block[104 + group % 4] >> (2 * (group / 4)) & 3;
            let scale = half(108) * (f64::from(low) + 16.0 * f64::from(high) - 32.0);
            scale * (two_bits(32) + 4.0 * bit(i % 32, i / 32) - 4.0)
        }
        BlockFormat::Q4_K => {
            let (scale, min) = six_bits(i / 32);
            scale * nibble(16, 32) - min
        }
        BlockFormat::Q5_K => {
            let (scale, min) = six_bits(i / 32);
            scale * (nibble(48, 32) + 16.0 * bit(16 + i % 32, i / 32)) - min
        }
        BlockFormat::Q6_K => {
            let scale = half(208) * f64::from(block[192 + i / 16] as i8);
            scale * (nibble(0, 64) + 16.0 * two_bits(128) - 32.0)
        }
        BlockFormat::IQ4_XS => {
            let group = i / 32;
            let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
            let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * group) & 3;
            let scale = half(0) * (f64::from(low) + 16.0 * f64::from(high) - 32.0);
            scale * IQ4_LEVELS[nibble(8, 16) as usize]
        }
        BlockFormat::MXFP4 => {
            let nibble = nibble(1, 16) as usize;
            let sign = if nibble < 8 { 1.0 } else { -1.0 };
            sign * E2M1[nibble % 8] * f64::from(i32::from(block[0]) - 127).exp2()
        }
        _ => unreachable!("{format:?} has no tiles"),
    }
}

/// Packs `rows` rows.
pub fn pack(format: BlockFormat, [rows, k]: [usize; 2], stored: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; format.packed_bytes(rows, k).unwrap()];
    let stored_tiles = stored.chunks(16 * stored.len() / rows);
    let tiles = packed.chunks_exact_mut(format.row_tile_bytes(k).unwrap());
    tiles.zip(stored_tiles).for_each(|(out, stored)| quantised::pack(format, k, stored, out));
    packed
}
