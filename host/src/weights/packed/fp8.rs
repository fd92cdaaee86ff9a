//! E4M3 with scales: `scale * q`.

use gpu_types::E4m3;
use rayon::prelude::*;

/// The weight of `cols` columns whose elements are `bytes`; `scales` are those of blocks of
/// `[rows, columns]`, row by row.
pub fn dequantize(bytes: &[u8], cols: usize, scales: &[f32], block: [usize; 2]) -> Vec<f32> {
    let scales_of_row = cols.div_ceil(block[1]);
    let mut values = vec![0.0; bytes.len()];
    let rows = values.par_chunks_mut(cols).zip(bytes.par_chunks(cols));
    rows.enumerate().for_each(|(row, (values, bytes))| {
        let scales = &scales[row / block[0] * scales_of_row..][..scales_of_row];
        let blocks = values.chunks_mut(block[1]).zip(bytes.chunks(block[1]));
        for ((values, bytes), scale) in blocks.zip(scales) {
            for (value, &byte) in values.iter_mut().zip(bytes) {
                *value = scale * E4m3::from_bits(byte).to_f32();
            }
        }
    });
    values
}
