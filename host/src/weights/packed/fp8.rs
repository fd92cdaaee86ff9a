//! E4M3 with scales: `scale * q`.

use rayon::prelude::*;

/// The weight of `cols` columns whose elements are `bytes`; `scales` are those of blocks of
/// `[rows, columns]`, row by row.
pub fn dequantize(bytes: &[u8], cols: usize, scales: &[f32], block: [usize; 2]) -> Vec<f32> {
    let numbers: Vec<f32> = (0..=255).map(e4m3).collect();
    let scales_of_row = cols.div_ceil(block[1]);
    let mut values = vec![0.0; bytes.len()];
    let rows = values.par_chunks_mut(cols).zip(bytes.par_chunks(cols));
    rows.enumerate().for_each(|(row, (values, bytes))| {
        let scales = &scales[row / block[0] * scales_of_row..][..scales_of_row];
        let blocks = values.chunks_mut(block[1]).zip(bytes.chunks(block[1]));
        for ((values, bytes), scale) in blocks.zip(scales) {
            for (value, &byte) in values.iter_mut().zip(bytes) {
                *value = scale * numbers[usize::from(byte)];
            }
        }
    });
    values
}

/// Sign, four bits of exponent with a bias of 7, three of mantissa; NaN where all but the sign are
/// set, and no infinity. Source: arXiv:2209.05433.
fn e4m3(byte: u8) -> f32 {
    let (exponent, mantissa) = (byte >> 3 & 15, f32::from(byte & 7));
    let magnitude = match exponent {
        _ if byte & 127 == 127 => f32::NAN,
        0 => mantissa / 512.0,
        exponent => (8.0 + mantissa) * f32::from(exponent).exp2() / 1024.0,
    };
    if byte >> 7 == 1 { -magnitude } else { magnitude }
}
