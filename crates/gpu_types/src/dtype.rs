//! How the elements of a tensor are stored.

use crate::{BlockFormat, OnGpu};
use core::fmt;

/// Rows and columns of a block of E4M3 that shares a scale.
pub const FP8_BLOCK: usize = 128;

/// An element type or a block format; the names are safetensors' and GGUF's.
///
/// E4M3 comes with scales in f32, which follow the elements of a weight: one a row, or one a block
/// of [`FP8_BLOCK`] rows and columns, as DeepSeek's checkpoints have them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum Dtype {
    F32,
    F16,
    BF16,
    U32,
    F8_E4M3,
    F8_E4M3_BLOCKS,
    Blocks(BlockFormat),
}

impl Dtype {
    /// Whether it is f16 or bf16.
    pub const fn is_half(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::BF16)
    }

    /// Whether elements are E4M3 with scales beside them.
    pub const fn is_fp8(self) -> bool {
        matches!(self, Dtype::F8_E4M3 | Dtype::F8_E4M3_BLOCKS)
    }

    /// Scales in f32 of a matrix `[rows, cols]`, beside its elements.
    pub const fn num_scales(self, rows: usize, cols: usize) -> usize {
        match self {
            Dtype::F8_E4M3 => rows,
            Dtype::F8_E4M3_BLOCKS => rows.div_ceil(FP8_BLOCK) * cols.div_ceil(FP8_BLOCK),
            _ => 0,
        }
    }

    /// Elements in one block; 1 for a plain element type.
    pub const fn block_elems(self) -> usize {
        match self {
            Dtype::Blocks(format) => format.block_elems(),
            _ => 1,
        }
    }

    /// Bytes of one block (of one element for a plain element type).
    pub const fn block_bytes(self) -> usize {
        match self {
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::F8_E4M3 | Dtype::F8_E4M3_BLOCKS => 1,
            Dtype::Blocks(format) => format.block_bytes(),
        }
    }

    /// Number of elements that the length of a row is a multiple of, as is each column where an
    /// operation starts: a row has whole blocks, and rows of 8- and 16-bit elements start at
    /// multiples of 16 bytes, as tensor cores and their copies want them.
    pub const fn row_multiple(self) -> usize {
        match self {
            Dtype::F16 | Dtype::BF16 => 8,
            Dtype::F8_E4M3 | Dtype::F8_E4M3_BLOCKS => 16,
            _ => self.block_elems(),
        }
    }

    /// The format of more bytes that a GPU keeps blocks of this one in, where its kernels multiply
    /// only that.
    pub const fn expanded(self) -> Option<Dtype> {
        match self {
            Dtype::Blocks(format) => match format.facts().on_gpu {
                OnGpu::As(other) => Some(Dtype::Blocks(other)),
                OnGpu::Tiles(_) => None,
            },
            _ => None,
        }
    }

    /// The format of blocks that GPU kernels multiply; `None` for other types.
    pub const fn tile_format(self) -> Option<BlockFormat> {
        match self {
            Dtype::Blocks(format) if format.tile().is_some() => Some(format),
            _ => None,
        }
    }

    /// Bytes of `elems` elements, or `None` where they are no whole number of blocks or the product
    /// overflows.
    pub fn bytes(self, elems: usize) -> Option<usize> {
        elems.is_multiple_of(self.block_elems()).then_some(())?;
        (elems / self.block_elems()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::BF16 => "BF16",
            Dtype::U32 => "U32",
            Dtype::F8_E4M3 => "F8_E4M3",
            Dtype::F8_E4M3_BLOCKS => "F8_E4M3_BLOCKS",
            Dtype::Blocks(format) => return fmt::Debug::fmt(format, f),
        })
    }
}

impl fmt::Debug for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
