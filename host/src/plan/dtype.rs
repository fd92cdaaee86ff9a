//! How the elements of a tensor are stored.

use kernels::gemm::quantised::BlockFormat;

/// An element type or a block format; the names are safetensors' and GGUF's.
///
/// E4M3 comes with scales in f32, which follow the elements of the [`Weight`](super::Weight): one a
/// row, or one a block of [`FP8_BLOCK`] rows and columns, as DeepSeek's checkpoints have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum Dtype {
    F32,
    F16,
    BF16,
    U32,
    F8_E4M3,
    F8_E4M3_BLOCKS,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_XS,
    IQ4_NL,
    IQ3_S,
    IQ3_XXS,
    IQ2_S,
    IQ2_XS,
    IQ2_XXS,
    IQ1_M,
    IQ1_S,
    TQ1_0,
    TQ2_0,
    MXFP4,
}

/// Rows and columns of a block of E4M3 that shares a scale.
pub const FP8_BLOCK: usize = 128;

impl Dtype {
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
            Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::U32 => 1,
            Dtype::F8_E4M3 | Dtype::F8_E4M3_BLOCKS => 1,
            Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q8_0 => 32,
            Dtype::MXFP4 | Dtype::IQ4_NL => 32,
            Dtype::Q2_K | Dtype::Q3_K | Dtype::Q4_K | Dtype::Q5_K | Dtype::Q6_K => 256,
            Dtype::IQ4_XS | Dtype::IQ3_S | Dtype::IQ3_XXS | Dtype::IQ1_M | Dtype::IQ1_S => 256,
            Dtype::IQ2_S | Dtype::IQ2_XS | Dtype::IQ2_XXS | Dtype::TQ1_0 | Dtype::TQ2_0 => 256,
        }
    }

    /// Bytes of one block (of one element for a plain element type).
    pub const fn block_bytes(self) -> usize {
        match self {
            Dtype::F32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::F8_E4M3 | Dtype::F8_E4M3_BLOCKS => 1,
            Dtype::Q4_0 => 18,
            Dtype::Q4_1 => 20,
            Dtype::Q5_0 => 22,
            Dtype::Q5_1 => 24,
            Dtype::Q8_0 => 34,
            Dtype::Q2_K => 84,
            Dtype::Q3_K => 110,
            Dtype::Q4_K => 144,
            Dtype::Q5_K => 176,
            Dtype::Q6_K => 210,
            Dtype::IQ4_XS => 136,
            Dtype::IQ4_NL => 18,
            Dtype::IQ3_S => 110,
            Dtype::IQ3_XXS => 98,
            Dtype::IQ2_S => 82,
            Dtype::IQ2_XS => 74,
            Dtype::IQ2_XXS => 66,
            Dtype::IQ1_M => 56,
            Dtype::IQ1_S => 50,
            Dtype::TQ1_0 => 54,
            Dtype::TQ2_0 => 66,
            Dtype::MXFP4 => 17,
        }
    }

    /// Of what number of elements a row is a multiple, and so is every column that an operation
    /// starts at: a row has whole blocks, and rows of 8- and 16-bit elements start at multiples of
    /// 16 bytes, as tensor cores and their copies want them.
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
            Dtype::IQ4_NL | Dtype::IQ2_S | Dtype::IQ2_XS | Dtype::IQ2_XXS => Some(Dtype::Q8_0),
            Dtype::IQ3_S | Dtype::IQ3_XXS | Dtype::IQ1_M | Dtype::IQ1_S => Some(Dtype::Q6_K),
            Dtype::TQ1_0 | Dtype::TQ2_0 => Some(Dtype::Q6_K),
            _ => None,
        }
    }

    /// How GPU kernels call a format of blocks that they multiply; `None` for other types.
    pub const fn tile_format(self) -> Option<BlockFormat> {
        match self {
            Dtype::Q4_0 => Some(BlockFormat::Q4_0),
            Dtype::Q4_1 => Some(BlockFormat::Q4_1),
            Dtype::Q5_0 => Some(BlockFormat::Q5_0),
            Dtype::Q5_1 => Some(BlockFormat::Q5_1),
            Dtype::Q8_0 => Some(BlockFormat::Q8_0),
            Dtype::Q2_K => Some(BlockFormat::Q2_K),
            Dtype::Q3_K => Some(BlockFormat::Q3_K),
            Dtype::Q4_K => Some(BlockFormat::Q4_K),
            Dtype::Q5_K => Some(BlockFormat::Q5_K),
            Dtype::Q6_K => Some(BlockFormat::Q6_K),
            Dtype::IQ4_XS => Some(BlockFormat::IQ4_XS),
            Dtype::MXFP4 => Some(BlockFormat::MXFP4),
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

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(self, f)
    }
}
