//! Four bits an element, of AWQ and GPTQ: `scale * (q - zero)`.
//!
//! Both hold the transpose of the weight, `[in, out]`, with scales `[in / group_size, out]` and
//! zeros `[in / group_size, out / 8]`.
//! Source: `WQLinear_GEMM` of AutoAWQ, `QuantLinear` of AutoGPTQ.

use half::f16;
use rayon::prelude::*;

use super::Order;
use crate::plan::Dtype;

/// Which of eight outputs each nibble of an AWQ word belongs to, from the lowest.
const AWQ_OUTPUTS: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A weight and what it is dequantised with.
pub struct Weight<'a> {
    pub order: Order,
    /// `[out, in]`.
    pub shape: [usize; 2],
    pub words: &'a [[u8; 4]],
    pub zeros: &'a [[u8; 4]],
    pub scales: &'a [f32],
    pub group_size: usize,
}

/// The weight, `[out, in]`.
pub fn dequantize(weight: &Weight) -> Vec<f32> {
    let [rows, cols] = weight.shape;
    let mut values = vec![0.0; rows * cols];
    // Eight outputs share the words of zeros and, in AWQ, of weights.
    values.par_chunks_mut(8 * cols).enumerate().for_each(|(eight, values)| {
        for col in 0..cols {
            let group = col / weight.group_size;
            let zeros = weight.zeros(group, eight);
            let levels = weight.levels(eight, col);
            let scales = &weight.scales[group * rows + 8 * eight..][..8];
            for (output, scale) in scales.iter().enumerate() {
                let level = f32::from(levels[output]) - f32::from(zeros[output]);
                values[output * cols + col] = scale * level;
            }
        }
    });
    values
}

/// The zero of blocks without a minimum.
const SYMMETRIC_ZERO: u8 = 8;

/// The type of blocks that weights with such zeros are repacked to: Q4_0 where all are 8.
pub fn blocks_dtype(order: Order, zeros: &[[u8; 4]]) -> Dtype {
    let mut zeros = zeros.iter().flat_map(|word| order.zeros(u32::from_le_bytes(*word)));
    if zeros.all(|zero| zero == SYMMETRIC_ZERO) { Dtype::Q4_0 } else { Dtype::Q4_1 }
}

/// The weight in blocks of 32 elements of `dtype`, Q4_0 or Q4_1, which has whole ones in a group:
/// `d * (q - 8)` or `d * q + m`.
pub fn blocks(weight: &Weight, dtype: Dtype) -> Vec<u8> {
    let [rows, cols] = weight.shape;
    let (block_elems, block_bytes) = (dtype.block_elems(), dtype.block_bytes());
    let row_bytes = cols / block_elems * block_bytes;
    let mut out = vec![0; rows * row_bytes];
    out.par_chunks_mut(8 * row_bytes).enumerate().for_each(|(eight, out)| {
        for first in (0..cols).step_by(block_elems) {
            let group = first / weight.group_size;
            let zeros = weight.zeros(group, eight);
            let scales = &weight.scales[group * rows + 8 * eight..][..8];
            for (output, out) in out.chunks_mut(row_bytes).enumerate() {
                let block = &mut out[first / block_elems * block_bytes..][..block_bytes];
                block[..2].copy_from_slice(&f16::from_f32(scales[output]).to_le_bytes());
                if dtype == Dtype::Q4_1 {
                    let min = -scales[output] * f32::from(zeros[output]);
                    block[2..4].copy_from_slice(&f16::from_f32(min).to_le_bytes());
                }
            }
            for i in 0..block_elems {
                let levels = weight.levels(eight, first + i);
                for (level, out) in levels.into_iter().zip(out.chunks_mut(row_bytes)) {
                    let block = &mut out[first / block_elems * block_bytes..][..block_bytes];
                    let nibbles = &mut block[block_bytes - block_elems / 2..];
                    nibbles[i % 16] |= level << (i / 16 * 4);
                }
            }
        }
    });
    out
}

impl Order {
    /// The zeros in a word.
    fn zeros(self, word: u32) -> [u8; 8] {
        match self {
            Order::Awq => interleaved(word),
            Order::Gptq { zero_bias } => nibbles(word).map(|zero| (zero + zero_bias) & 15),
        }
    }
}

impl Weight<'_> {
    /// The zeros of eight outputs.
    fn zeros(&self, group: usize, eight: usize) -> [u8; 8] {
        let word = self.zeros[group * self.shape[0] / 8 + eight];
        self.order.zeros(u32::from_le_bytes(word))
    }

    /// The levels of eight outputs for input `col`.
    fn levels(&self, eight: usize, col: usize) -> [u8; 8] {
        let rows = self.shape[0];
        match self.order {
            Order::Awq => interleaved(u32::from_le_bytes(self.words[col * rows / 8 + eight])),
            Order::Gptq { .. } => {
                let words = &self.words[col / 8 * rows + 8 * eight..][..8];
                let mut levels = [0; 8];
                for (level, word) in levels.iter_mut().zip(words) {
                    *level = (u32::from_le_bytes(*word) >> (4 * (col % 8)) & 15) as u8;
                }
                levels
            }
        }
    }
}

fn nibbles(word: u32) -> [u8; 8] {
    std::array::from_fn(|i| (word >> (4 * i) & 15) as u8)
}

/// The nibbles of an AWQ word in the order of the outputs.
fn interleaved(word: u32) -> [u8; 8] {
    let mut outputs = [0; 8];
    for (nibble, output) in nibbles(word).into_iter().zip(AWQ_OUTPUTS) {
        outputs[output] = nibble;
    }
    outputs
}
