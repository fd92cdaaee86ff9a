//! How keys and values are stored.

use crate::Dtype;
use core::fmt;

/// How keys or values are stored; the names are llama.cpp's.
///
/// A page of a head is `[PAGE_SIZE, head_dim]` elements, then, where there are scales,
/// `[num_scales, PAGE_SIZE]` of them in f16. Kernels take a type as its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
#[repr(u32)]
pub enum CacheType {
    /// f32.
    F32 = 0,
    /// f16.
    F16 = 1,
    /// bf16.
    BF16 = 2,
    /// Blocks of 32 elements of 8 bits with an f16 scale.
    Q8_0 = 3,
    /// Elements in E4M3, with an f16 scale a position and head.
    Fp8 = 4,
    /// Blocks of 32 elements of 4 bits with an f16 scale.
    Q4_0 = 5,
}

impl CacheType {
    /// All of them.
    pub const ALL: [CacheType; 6] = [
        CacheType::F32,
        CacheType::F16,
        CacheType::BF16,
        CacheType::Q8_0,
        CacheType::Fp8,
        CacheType::Q4_0,
    ];

    /// Elements of a block that shares a scale.
    pub const BLOCK_ELEMS: u32 = 32;

    /// The type of this number.
    #[inline(always)]
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => CacheType::F32,
            1 => CacheType::F16,
            2 => CacheType::BF16,
            3 => CacheType::Q8_0,
            4 => CacheType::Fp8,
            _ => CacheType::Q4_0,
        }
    }

    /// Name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::BF16 => "bf16",
            CacheType::Q8_0 => "q8_0",
            CacheType::Fp8 => "fp8",
            CacheType::Q4_0 => "q4_0",
        }
    }

    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cache_type| cache_type.name() == name)
    }

    /// The element type, where there are no scales.
    pub const fn dtype(self) -> Option<Dtype> {
        match self {
            CacheType::F32 => Some(Dtype::F32),
            CacheType::F16 => Some(Dtype::F16),
            CacheType::BF16 => Some(Dtype::BF16),
            CacheType::Q8_0 | CacheType::Fp8 | CacheType::Q4_0 => None,
        }
    }

    /// Whether the elements of a block share a scale, and not those of a head.
    pub const fn has_block_scales(self) -> bool {
        matches!(self, CacheType::Q8_0 | CacheType::Q4_0)
    }

    /// Whether keys are stored rotated: each block of 32 columns by the Hadamard matrix over
    /// `sqrt(32)`, which spreads a block's outlier over its columns. Values never are.
    pub const fn rotates_keys(self) -> bool {
        matches!(self, CacheType::Q4_0)
    }

    /// Elements of a block, of which a head has a whole number.
    pub const fn block_elems(self) -> u32 {
        if self.has_block_scales() { Self::BLOCK_ELEMS } else { 1 }
    }

    /// Scales of a head at one position.
    pub const fn num_scales(self, head_dim: u32) -> u32 {
        match self {
            CacheType::F32 | CacheType::F16 | CacheType::BF16 => 0,
            CacheType::Fp8 => 1,
            CacheType::Q8_0 | CacheType::Q4_0 => head_dim / Self::BLOCK_ELEMS,
        }
    }

    /// Bytes of the elements of a head at one position, its scales left out.
    pub const fn quant_bytes(self, head_dim: u32) -> u32 {
        match self {
            CacheType::F32 => 4 * head_dim,
            CacheType::F16 | CacheType::BF16 => 2 * head_dim,
            CacheType::Q8_0 | CacheType::Fp8 => head_dim,
            CacheType::Q4_0 => head_dim / 2,
        }
    }

    /// Bytes of a head at one position, its scales included.
    pub const fn row_bytes(self, head_dim: u32) -> u32 {
        self.quant_bytes(head_dim) + 2 * self.num_scales(head_dim)
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
