//! Rows of E4M3 with scales in f32: `x = scale * q`.

use gpu_types::{Dtype, E4m3, FP8_BLOCK};

/// The scale of a row, and its inverse, from its largest magnitude; a row of zeros has none.
fn scale(values: &[f32]) -> [f32; 2] {
    let max = values.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    if max == 0.0 { [0.0; 2] } else { [max / E4m3::MAX, E4m3::MAX / max] }
}

/// Writes a row of finite values to as many bytes; gives its scale.
pub fn quantize_row(values: &[f32], out: &mut [u8]) -> f32 {
    let [scale, inverse] = scale(values);
    for (out, value) in out.iter_mut().zip(values) {
        *out = E4m3::from_f32(value * inverse).to_bits();
    }
    scale
}

/// Rounds a row as [`quantize_row`] and back.
pub fn round_row(values: &mut [f32]) {
    let [scale, inverse] = scale(values);
    for value in values {
        *value = scale * E4m3::from_f32(*value * inverse).to_f32();
    }
}

/// Multiplies elements of row `row` of a matrix of `cols` columns by their scales. The first
/// element is that of column `first`, with which a block begins.
#[inline(always)]
pub fn scale_elements(
    dtype: Dtype,
    scales: &[f32],
    cols: usize,
    row: usize,
    first: usize,
    elements: &mut [f32],
) {
    match dtype {
        Dtype::F8_E4M3 => elements.iter_mut().for_each(|element| *element *= scales[row]),
        _ => {
            let of_row = &scales[row / FP8_BLOCK * cols.div_ceil(FP8_BLOCK)..];
            let blocks = elements.chunks_mut(FP8_BLOCK).zip(&of_row[first / FP8_BLOCK..]);
            for (block, scale) in blocks {
                block.iter_mut().for_each(|element| *element *= scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_keeps_its_largest_value_and_zeros() {
        let mut row = [0.0f32, -3.5, 7.0, 0.03];
        let mut codes = [0xFF; 4];
        let scale = quantize_row(&row, &mut codes);
        assert_eq!((scale, codes[0], codes[2]), (7.0 / 448.0, 0, 0x7E));
        round_row(&mut row);
        assert_eq!(row[..3], [0.0, -3.5, 7.0]);
        assert!((row[3] - 0.03).abs() <= 0.03 / 16.0);
        let mut zeros = [0.0; 3];
        assert_eq!(quantize_row(&zeros, &mut codes[..3]), 0.0);
        round_row(&mut zeros);
        assert_eq!((zeros, &codes[..3]), ([0.0; 3], &[0; 3][..]));
    }
}
