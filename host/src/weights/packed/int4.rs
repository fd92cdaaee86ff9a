//! Four bits an element, of AWQ and GPTQ: `scale * (q - zero)`.
//!
//! Both hold the transpose of the weight, `[in, out]`, with scales `[in / group_size, out]` and
//! zeros `[in / group_size, out / 8]`.
//! Source: `WQLinear_GEMM` of AutoAWQ, `QuantLinear` of AutoGPTQ.

use rayon::prelude::*;

use super::Order;

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

impl Weight<'_> {
    /// The zeros of eight outputs.
    fn zeros(&self, group: usize, eight: usize) -> [u8; 8] {
        let word = u32::from_le_bytes(self.zeros[group * self.shape[0] / 8 + eight]);
        match self.order {
            Order::Awq => interleaved(word),
            Order::Gptq { zero_bias } => nibbles(word).map(|zero| (zero + zero_bias) & 15),
        }
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
