//! Weights that are not dense: rows in E4M3, and blocks of the formats by ggml's definitions.

use crate::harness::*;
use half::f16;
use kernels::Rows;
use kernels::gemm::quantised::{self, BlockFormat};
use oracle::{E4M3_MAX, Matrix, Rng, e4m3_code, e4m3_value};

/// Rows of a weight, and elements of a row, that share a scale where blocks have scales.
const SCALE_BLOCK: usize = 128;

/// The code of NaN in E4M3: between rows, and past the last one.
pub const NAN: u8 = 0x7f;

/// A matrix as it is stored: codes in E4M3 and their scales, or blocks as a file has them.
#[derive(Clone, Default)]
pub struct Codes {
    pub bytes: Vec<u8>,
    pub scales: Vec<f32>,
}

impl Codes {
    /// Rows of `k` codes at a stride, up to `max_rows` rows, with NaN between and after them.
    pub fn rows(
        &self,
        device: &mut Device,
        name: &str,
        k: usize,
        (stride, max_rows): (usize, usize),
    ) -> Rows<()> {
        let padded = |row: &[u8]| [row, &vec![NAN; stride - k]].concat();
        let mut bytes: Vec<u8> = self.bytes.chunks(k).flat_map(padded).collect();
        bytes.resize(max_rows * stride, NAN);
        Rows::new(device.bytes(name, &bytes), stride)
    }
}

/// Rows of every code but NaN, small ones more often; row 1 a hundred times larger than the others,
/// row 2 of zeros, row 3 of the largest numbers.
pub fn e4m3([rows, k]: [usize; 2], in_blocks: bool, salt: u64) -> (Matrix, Codes) {
    let value = |x: f32| if x > 0.9 { E4M3_MAX * (x - 0.9) * 10.0 } else { x };
    let codes = random(rows * k, salt).into_iter().map(|x| e4m3_code(value(x)));
    let mut codes: Vec<u8> = codes.collect();
    let k_blocks = k.div_ceil(SCALE_BLOCK);
    let num_scales = if in_blocks { rows.div_ceil(SCALE_BLOCK) * k_blocks } else { rows };
    let scales = random(num_scales, salt + 5).into_iter().map(|x| 0.01 * (x.abs() + 0.1));
    let mut scales: Vec<f32> = scales.collect();
    if rows > 4 {
        codes[2 * k..3 * k].fill(0);
        codes[3 * k..4 * k].fill(0x7e);
        scales[1 % num_scales] *= 100.0;
    }
    let matrix = Matrix::new(rows, k, |row, column| {
        let block = row / SCALE_BLOCK * k_blocks + column / SCALE_BLOCK;
        let scale = scales[if in_blocks { block } else { row }];
        f64::from(e4m3_value(codes[row * k + column])) * f64::from(scale)
    });
    (matrix, Codes { bytes: codes, scales })
}

/// Random rows of a format; each factor of a block is `factor` of a number from -1 to 1.
pub fn tiles(
    format: BlockFormat,
    [rows, k]: [usize; 2],
    factor: impl Fn(f32) -> f32,
) -> (Matrix, Codes) {
    let mut rng = Rng::new(2);
    let mut bytes: Vec<u8> = Vec::new();
    for _ in 0..rows * (k / format.block_elems()) {
        let mut block: Vec<u8> = (0..format.block_bytes()).map(|_| rng.bits() as u8).collect();
        if format == BlockFormat::MXFP4 {
            let factor = factor(rng.float());
            // Its exponent, of the same bias.
            block[0] = (factor.to_bits() >> 23) as u8;
        }
        for &at in format.facts().f16_scales {
            let factor = factor(rng.float());
            block[at..at + 2].copy_from_slice(&f16::from_f32(factor).to_le_bytes());
        }
        bytes.extend(block);
    }
    let blocks = bytes.chunks_exact(format.block_bytes());
    let of_block = |block| (0..format.block_elems()).map(move |i| element(format, block, i));
    let values = blocks.flat_map(of_block).collect();
    (Matrix { rows, cols: k, values }, Codes { bytes, scales: Vec::new() })
}

/// The formats in blocks of `elems` elements.
pub fn in_blocks_of(elems: usize) -> impl Iterator<Item = BlockFormat> + Clone {
    BlockFormat::tiled().filter(move |format| format.block_elems() == elems)
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
