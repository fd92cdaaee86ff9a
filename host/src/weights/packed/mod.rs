//! Safetensors that come quantised: `quantization_config` of config.json says how. When they are
//! read, weights are dequantised, or E4M3 is kept, and four bits are repacked to GGUF's blocks.
//!
//! A quantised linear layer `X` is listed as one tensor `X.weight` of shape `[out, in]`, whatever
//! tensors it is stored in.

mod fp8;
mod int4;
mod mxfp4;
mod resolve;

use std::borrow::Cow;
use std::ops::Range;

pub(super) use resolve::resolve;

use blocks::Arch;

use super::map::MappedFile;
use crate::plan::{Dtype, FP8_BLOCK};
use blocks::decoder;

/// How a quantised weight is stored.
#[derive(Clone, Debug)]
pub(super) enum Layout {
    /// One byte an element, E4M3, times the scale of its block.
    Fp8 {
        scales: TensorRange,
        /// `[rows, columns]` of a block.
        block: [usize; 2],
    },
    /// A nibble an element, eight to a word, less the zero of its group, times its scale.
    Int4 {
        order: Order,
        zeros: TensorRange,
        scales: TensorRange,
        group_size: usize,
        /// The blocks that hold such elements; `None` where groups are no whole blocks, or the
        /// scales no f16.
        blocks: Option<Dtype>,
    },
    /// Blocks of E2M1, and E8M0 scales of them: they are read row by row, see [`Packed::mxfp4`].
    Mxfp4 { scales: TensorRange },
}

/// How nibbles are put into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Words along the outputs, interleaved; zeros as they are.
    Awq,
    /// Words of weights along the inputs, of zeros along the outputs, less `zero_bias`.
    Gptq { zero_bias: u8 },
}

/// The bytes of a tensor that belongs to a weight.
#[derive(Clone, Debug)]
pub(super) struct TensorRange {
    file: usize,
    range: Range<usize>,
    dtype: Dtype,
}

/// A quantised weight and the bytes that it is made of.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    layout: &'a Layout,
    files: &'a [MappedFile],
    /// `[out, in]`.
    shape: [usize; 2],
    bytes: &'a [u8],
}

impl<'a> Packed<'a> {
    pub(super) fn new(
        layout: &'a Layout,
        files: &'a [MappedFile],
        shape: &[usize],
        bytes: &'a [u8],
    ) -> Self {
        // Of a stack of matrices, one on the other.
        let (cols, rows) = shape.split_last().expect("resolved as a matrix, or several");
        let shape = [rows.iter().product(), *cols];
        Packed { layout, files, shape, bytes }
    }

    /// The weight, `[out, in]`.
    pub fn dequantize(&self) -> Vec<f32> {
        let [_, cols] = self.shape;
        match self.layout {
            Layout::Fp8 { scales, block } => {
                fp8::dequantize(self.bytes, cols, &self.numbers(scales), *block)
            }
            Layout::Int4 { order, zeros, scales, group_size, .. } => {
                let scales = &self.numbers(scales);
                int4::dequantize(&self.int4(*order, zeros, scales, *group_size))
            }
            Layout::Mxfp4 { .. } => {
                let blocks = self.kept().expect("they are repacked");
                let mut values = vec![0.0; self.shape[0] * cols];
                decoder(Dtype::MXFP4).expect("blocks are decoded")(
                    Arch::new(),
                    &blocks,
                    &mut values,
                );
                values
            }
        }
    }

    /// The type that the weight can be kept in: E4M3 as it is, or that of GGUF's blocks that four
    /// bits are repacked to.
    pub fn kept_dtype(&self) -> Option<Dtype> {
        let [_, cols] = self.shape;
        match self.layout {
            Layout::Fp8 { block, .. } => match *block {
                [_, block_cols] if block_cols >= cols => Some(Dtype::F8_E4M3),
                [FP8_BLOCK, FP8_BLOCK] => Some(Dtype::F8_E4M3_BLOCKS),
                _ => None,
            },
            Layout::Int4 { blocks, .. } => *blocks,
            Layout::Mxfp4 { .. } => Some(Dtype::MXFP4),
        }
    }

    /// The scales of a weight in E4M3, as [`Packed::kept_dtype`] has them; `None` for others.
    pub fn fp8_scales(&self) -> Option<Vec<f32>> {
        let Layout::Fp8 { scales, block } = self.layout else { return None };
        let scales = self.numbers(scales);
        match self.kept_dtype()? {
            Dtype::F8_E4M3 => Some((0..self.shape[0]).map(|row| scales[row / block[0]]).collect()),
            _ => Some(scales),
        }
    }

    /// The weight in [`Packed::kept_dtype`], row by row; `None` where it has none. Zeros of four
    /// bits times scales are rounded to f16; all else is exact.
    pub fn kept(&self) -> Option<Cow<'a, [u8]>> {
        match self.layout {
            Layout::Fp8 { .. } => self.kept_dtype().map(|_| Cow::Borrowed(self.bytes)),
            Layout::Int4 { order, zeros, scales, group_size, blocks: Some(dtype) } => {
                let scales = &self.numbers(scales);
                let weight = self.int4(*order, zeros, scales, *group_size);
                Some(Cow::Owned(int4::blocks(&weight, *dtype)))
            }
            Layout::Int4 { .. } => None,
            Layout::Mxfp4 { .. } => {
                let blocks = self.mxfp4()?;
                Some(Cow::Owned(blocks.repacked(0, blocks.scales.len())))
            }
        }
    }

    /// The blocks of a weight in MXFP4, which are too many to be repacked for each of its experts.
    pub fn mxfp4(&self) -> Option<mxfp4::Blocks<'a>> {
        let Layout::Mxfp4 { scales } = self.layout else { return None };
        Some(mxfp4::Blocks { nibbles: self.bytes, scales: self.stored(scales) })
    }

    fn int4<'b>(
        &'b self,
        order: Order,
        zeros: &TensorRange,
        scales: &'b [f32],
        group_size: usize,
    ) -> int4::Weight<'b> {
        let (words, zeros) = (words(self.bytes), words(self.stored(zeros)));
        int4::Weight { order, shape: self.shape, words, zeros, scales, group_size }
    }

    fn stored(&self, tensor: &TensorRange) -> &'a [u8] {
        &self.files[tensor.file].bytes()[tensor.range.clone()]
    }

    fn numbers(&self, tensor: &TensorRange) -> Vec<f32> {
        let stored = self.stored(tensor);
        let mut numbers = vec![0.0; stored.len() / tensor.dtype.block_bytes()];
        decoder(tensor.dtype).expect("scales are numbers")(Arch::new(), stored, &mut numbers);
        numbers
    }
}

/// Little-endian words, which need not be aligned.
fn words(bytes: &[u8]) -> &[[u8; 4]] {
    bytes.as_chunks().0
}
