//! The block formats of GGUF: a new one is a row of the table here.

use crate::Dtype;

/// Rows of a tile, in which GPU kernels keep blocks.
pub const TILE_ROWS: u32 = 16;

/// Elements of a tile along k.
pub const TILE_K: u32 = 256;

/// Elements of a unit along k, the part of a tile that holds quants; a row may end after any unit.
pub const UNIT_K: u32 = 64;

/// Where a field of a block begins and ends.
type Field = (usize, usize);

/// What a block format is. Source: the `block_*` structures in ggml's ggml-common.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockFacts {
    /// Name of the format in symbols and records, in lower case.
    pub name: &'static str,
    /// ggml's number of it.
    pub ggml_id: u32,
    /// Elements of a block.
    pub elems: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// At which bytes of a block there are scales in f16. Not that of IQ1_M, whose nibbles are
    /// apart, nor that of MXFP4, which is an exponent.
    pub f16_scales: &'static [usize],
    /// How GPU kernels multiply it.
    pub on_gpu: OnGpu,
}

/// How GPU kernels multiply a block format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnGpu {
    /// In tiles.
    Tiles(TileLayout),
    /// Not at all: it is kept as another format, of more bytes.
    As(BlockFormat),
}

/// What a tile is made of: the scales of its rows, then its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLayout {
    /// Bits of a quant that are stored together, and those beyond them.
    pub quant_bits: [usize; 2],
    /// Scales and mins: block by block of a row, row by row.
    pub scales: Field,
    /// What those of a whole tile's row are multiplied by, field by field: those of rows `r` and
    /// `r + 8` are adjacent.
    pub row_factors: &'static [Field],
}

const fn tiles(quant_bits: [usize; 2], scales: Field, row_factors: &'static [Field]) -> OnGpu {
    OnGpu::Tiles(TileLayout { quant_bits, scales, row_factors })
}

macro_rules! block_formats {
    ($($format:ident, $name:literal, $id:literal: $elems:literal in $bytes:literal bytes,
        f16 at $f16_scales:expr, $on_gpu:expr;)*) => {
        /// A block format; the names are GGUF's.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum BlockFormat {
            $($format,)*
        }

        impl BlockFormat {
            /// All of them.
            pub const ALL: [BlockFormat; [$($id),*].len()] = [$(BlockFormat::$format),*];

            const FACTS: &[BlockFacts; Self::ALL.len()] = &[$(BlockFacts {
                name: $name,
                ggml_id: $id,
                elems: $elems,
                bytes: $bytes,
                f16_scales: &$f16_scales,
                on_gpu: $on_gpu,
            }),*];
        }

        /// The block formats.
        #[allow(missing_docs)]
        impl Dtype {
            $(pub const $format: Dtype = Dtype::Blocks(BlockFormat::$format);)*
        }
    };
}

use BlockFormat::{Q6_K, Q8_0};
use OnGpu::As;

// Name, ggml's number, elements and bytes; where scales in f16 are; how GPU kernels multiply it.
block_formats! {
    Q4_0, "q4_0", 2: 32 in 18 bytes, f16 at [0], tiles([4, 0], (0, 2), &[]);
    Q4_1, "q4_1", 3: 32 in 20 bytes, f16 at [0, 2], tiles([4, 0], (0, 4), &[]);
    Q5_0, "q5_0", 6: 32 in 22 bytes, f16 at [0], tiles([4, 1], (0, 2), &[]);
    Q5_1, "q5_1", 7: 32 in 24 bytes, f16 at [0, 2], tiles([4, 1], (0, 4), &[]);
    Q8_0, "q8_0", 8: 32 in 34 bytes, f16 at [0], tiles([8, 0], (0, 2), &[]);
    Q2_K, "q2_k", 10: 256 in 84 bytes, f16 at [80, 82], tiles([2, 0], (0, 16), &[(80, 84)]);
    Q3_K, "q3_k", 11: 256 in 110 bytes, f16 at [108],
        tiles([2, 1], (96, 104), &[(104, 108), (108, 110)]);
    Q4_K, "q4_k", 12: 256 in 144 bytes, f16 at [0, 2], tiles([4, 0], (0, 16), &[]);
    Q5_K, "q5_k", 13: 256 in 176 bytes, f16 at [0, 2], tiles([4, 1], (0, 16), &[]);
    Q6_K, "q6_k", 14: 256 in 210 bytes, f16 at [208], tiles([4, 2], (192, 208), &[(208, 210)]);
    IQ4_XS, "iq4_xs", 23: 256 in 136 bytes, f16 at [0], tiles([4, 0], (0, 8), &[]);
    MXFP4, "mxfp4", 39: 32 in 17 bytes, f16 at [], tiles([4, 0], (0, 1), &[]);
    IQ4_NL, "iq4_nl", 20: 32 in 18 bytes, f16 at [0], As(Q8_0);
    IQ3_S, "iq3_s", 21: 256 in 110 bytes, f16 at [0], As(Q6_K);
    IQ3_XXS, "iq3_xxs", 18: 256 in 98 bytes, f16 at [0], As(Q6_K);
    IQ2_S, "iq2_s", 22: 256 in 82 bytes, f16 at [0], As(Q8_0);
    IQ2_XS, "iq2_xs", 17: 256 in 74 bytes, f16 at [0], As(Q8_0);
    IQ2_XXS, "iq2_xxs", 16: 256 in 66 bytes, f16 at [0], As(Q8_0);
    IQ1_M, "iq1_m", 29: 256 in 56 bytes, f16 at [], As(Q6_K);
    IQ1_S, "iq1_s", 19: 256 in 50 bytes, f16 at [0], As(Q6_K);
    TQ1_0, "tq1_0", 34: 256 in 54 bytes, f16 at [52], As(Q6_K);
    TQ2_0, "tq2_0", 35: 256 in 66 bytes, f16 at [64], As(Q6_K);
}

impl BlockFormat {
    /// What it is.
    pub const fn facts(self) -> &'static BlockFacts {
        &Self::FACTS[self as usize]
    }

    /// Formats that GPU kernels multiply.
    pub fn tiled() -> impl Iterator<Item = BlockFormat> + Clone {
        Self::ALL.into_iter().filter(|format| format.tile().is_some())
    }

    /// Name of the format in symbols and records, in lower case.
    pub const fn name(self) -> &'static str {
        self.facts().name
    }

    /// Elements of a block.
    pub const fn block_elems(self) -> usize {
        self.facts().elems
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.facts().bytes
    }

    /// Layout of the format's tiles, if GPU kernels multiply it.
    pub const fn tile(self) -> Option<TileLayout> {
        match self.facts().on_gpu {
            OnGpu::Tiles(layout) => Some(layout),
            OnGpu::As(_) => None,
        }
    }

    /// Bytes of the scales of a tile, and of a unit; `None` without tiles.
    pub const fn tile_bytes(self) -> Option<[usize; 2]> {
        let Some(TileLayout { quant_bits: [low, high], scales, row_factors }) = self.tile() else {
            return None;
        };
        let mut row_bytes = TILE_K as usize / self.block_elems() * (scales.1 - scales.0);
        let mut i = 0;
        while i < row_factors.len() {
            row_bytes += row_factors[i].1 - row_factors[i].0;
            i += 1;
        }
        let rows = TILE_ROWS as usize;
        Some([rows * row_bytes, rows * UNIT_K as usize * (low + high) / 8])
    }

    /// Bytes of 16 packed rows of `k` elements: those of their blocks, and padding where `k` is not
    /// a multiple of 256. `None` if they overflow, and without tiles.
    pub const fn row_tile_bytes(self, k: usize) -> Option<usize> {
        let Some([scale_bytes, unit_bytes]) = self.tile_bytes() else {
            return None;
        };
        let scales = k.div_ceil(TILE_K as usize).checked_mul(scale_bytes);
        match (scales, k.div_ceil(UNIT_K as usize).checked_mul(unit_bytes)) {
            (Some(scales), Some(units)) => scales.checked_add(units),
            _ => None,
        }
    }

    /// Bytes of a packed weight `[n, k]`; `None` if they overflow, and without tiles. A stacked
    /// weight whose parts are packed one by one has the bytes of each.
    pub const fn packed_bytes(self, n: usize, k: usize) -> Option<usize> {
        match self.row_tile_bytes(k) {
            Some(bytes) => bytes.checked_mul(n.div_ceil(TILE_ROWS as usize)),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_has_the_bytes_of_its_blocks() {
        for format in BlockFormat::tiled() {
            let [scale_bytes, unit_bytes] = format.tile_bytes().unwrap();
            let blocks = (TILE_ROWS * TILE_K) as usize / format.block_elems();
            assert_eq!(scale_bytes + 4 * unit_bytes, blocks * format.block_bytes(), "{format:?}");
        }
    }

    #[test]
    fn names_and_numbers_are_unique() {
        for format in BlockFormat::ALL {
            let BlockFacts { name, ggml_id, bytes, f16_scales, .. } = *format.facts();
            assert_eq!(name.to_uppercase(), format!("{format:?}"));
            assert_eq!(BlockFormat::ALL[format as usize], format);
            let is_same = |other: &BlockFormat| other.facts().ggml_id == ggml_id;
            assert_eq!(BlockFormat::ALL.iter().filter(|other| is_same(other)).count(), 1);
            assert!(f16_scales.iter().all(|at| at + 2 <= bytes), "{format:?}");
            if let OnGpu::As(other) = format.facts().on_gpu {
                assert!(other.tile().is_some() && other.block_elems() <= format.block_elems());
            }
        }
    }
}
