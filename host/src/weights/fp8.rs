//! Rows of E4M3 with scales in f32: `x = scale * q`.

use crate::plan::{Dtype, FP8_BLOCK};

/// The largest number of E4M3.
const E4M3_MAX: f32 = 448.0;

/// The scale of a row, and its inverse, from its largest magnitude; a row of zeros has none.
fn scale(values: &[f32]) -> [f32; 2] {
    let max = values.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    if max == 0.0 { [0.0; 2] } else { [max / E4M3_MAX, E4M3_MAX / max] }
}

/// Writes a row of finite values to as many bytes; gives its scale.
pub fn quantize_row(values: &[f32], out: &mut [u8]) -> f32 {
    let [scale, inverse] = scale(values);
    for (out, value) in out.iter_mut().zip(values) {
        *out = f32_to_e4m3(value * inverse);
    }
    scale
}

/// Rounds a row as [`quantize_row`] and back.
pub fn round_row(values: &mut [f32]) {
    let [scale, inverse] = scale(values);
    for value in values {
        *value = scale * super::blocks::e4m3_to_f32(f32_to_e4m3(*value * inverse));
    }
}

/// Rounds to the nearest E4M3, ties to even, saturated; NaN stays.
#[inline(always)]
fn f32_to_e4m3(x: f32) -> u8 {
    // Adding it leaves multiples of the smallest subnormal number, 2^-9.
    const SUBNORMAL: f32 = 16384.0;
    const MIN_NORMAL: f32 = 1.0 / 64.0;
    let (sign, magnitude) = (x.to_bits() >> 24 & 0x80, x.abs());
    let bits = magnitude.min(E4M3_MAX).to_bits();
    let normal = ((bits + 0x7_FFFF + ((bits >> 20) & 1)) >> 20).wrapping_sub((127 - 7) << 3);
    let subnormal = (magnitude + SUBNORMAL).to_bits() & 0xFF;
    let code = if magnitude < MIN_NORMAL { subnormal } else { normal };
    (sign | if x.is_nan() { 0x7F } else { code }) as u8
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
    use cuda_std::E4m3;

    /// Every number, the middles between two, what is beside them and beyond them.
    #[test]
    fn rounds_as_the_reference_of_the_type() {
        let numbers: Vec<f32> = (0..0x7F).map(|bits| E4m3::from_bits(bits).to_f32()).collect();
        let middles = numbers.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
        let points = numbers.iter().copied().chain(middles).chain([464.0, 480.0, 1e30, f32::MAX]);
        for point in points {
            for value in [point.next_down(), point, point.next_up()] {
                for value in [value, -value] {
                    let wanted = E4m3::from_f32(value).to_bits();
                    assert_eq!(f32_to_e4m3(value), wanted, "{value:e}");
                }
            }
        }
        assert_eq!(f32_to_e4m3(f32::INFINITY), 0x7E);
        assert_eq!(f32_to_e4m3(f32::NAN) & 0x7F, 0x7F);
    }

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
