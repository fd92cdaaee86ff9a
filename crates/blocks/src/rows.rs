//! Rows of a weight as they are stored.

use super::{Arch, Codec, Kernels, fp8};
use gpu_types::{Dtype, FP8_BLOCK};

/// Rows of a weight that are stored alike, one after the other.
#[derive(Clone, Copy)]
pub struct WeightRows<'a> {
    dtype: Dtype,
    codec: Codec,
    cols: usize,
    bytes: &'a [u8],
    /// Scales of the whole weight, for E4M3 alone.
    scales: &'a [f32],
    /// Index of the first row in the weight, of E4M3.
    first_row: usize,
}

impl<'a> WeightRows<'a> {
    /// The first `rows` rows of `cols` columns in `bytes`, and the bytes after them. `scales` are
    /// those of E4M3 and empty for others.
    pub fn split_first(
        (dtype, codec): (Dtype, Codec),
        [rows, cols]: [usize; 2],
        bytes: &'a [u8],
        scales: &'a [f32],
    ) -> (Self, &'a [u8]) {
        let all = WeightRows { dtype, codec, cols, bytes, scales, first_row: 0 };
        let (bytes, rest) = bytes.split_at(rows * all.row_bytes());
        (WeightRows { bytes, ..all }, rest)
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    /// Columns of a row.
    pub fn width(&self) -> usize {
        self.cols
    }

    /// The functions of the format.
    pub fn kernels(&self) -> Kernels {
        self.codec.kernels
    }

    /// The rows as they are stored.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The first `middle` rows, and the others.
    pub fn split_at(self, middle: usize) -> (Self, Self) {
        let (low, high) = self.bytes.split_at(middle * self.row_bytes());
        let first_row = self.first_row + middle;
        (WeightRows { bytes: low, ..self }, WeightRows { bytes: high, first_row, ..self })
    }

    /// Row `row`, as long as `out`.
    pub fn widen_row(&self, row: usize, out: &mut [f32]) {
        let stored = &self.bytes[row * self.row_bytes()..][..self.row_bytes()];
        (self.codec.decode)(Arch::new(), stored, out);
        if !self.scales.is_empty() {
            let row = self.first_row + row;
            fp8::scale_elements(self.dtype, self.scales, self.cols, row, 0, out);
        }
    }

    /// The scale of E4M3 for the columns of a row from `column` on, to the next multiple of 128.
    #[inline(always)]
    pub(super) fn scale(&self, row: usize, column: usize) -> f32 {
        let row = self.first_row + row;
        match self.dtype {
            Dtype::F8_E4M3 => self.scales[row],
            _ => {
                let blocks = self.cols.div_ceil(FP8_BLOCK);
                self.scales[row / FP8_BLOCK * blocks + column / FP8_BLOCK]
            }
        }
    }

    /// Bytes of a row.
    pub(super) fn row_bytes(&self) -> usize {
        self.cols / self.dtype.block_elems() * self.dtype.block_bytes()
    }
}
