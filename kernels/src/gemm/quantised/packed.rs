//! The host's side of packed weights: from the blocks of a file to the tiles of [`format`].
//!
//! [`format`]: super::format

mod quants;

use super::format::{
    Affine, Format, IQ4XS, MXFP4, Q2K, Q3K, Q6K, Q80, SixBit, Symmetric, TILE_K, TILE_ROWS, UNIT_K,
    UNIT_STEPS,
};
use cuda_std::launch::{DevicePtr, LaunchError};
use std::ops::Range;

const ROWS: usize = TILE_ROWS as usize;
const UNIT: usize = UNIT_K as usize;

/// The block formats of GGUF that kernels multiply; the names are GGUF's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum BlockFormat {
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
    MXFP4,
}

impl BlockFormat {
    /// All of them.
    pub const ALL: [BlockFormat; 12] = [
        BlockFormat::Q4_0,
        BlockFormat::Q4_1,
        BlockFormat::Q5_0,
        BlockFormat::Q5_1,
        BlockFormat::Q8_0,
        BlockFormat::Q2_K,
        BlockFormat::Q3_K,
        BlockFormat::Q4_K,
        BlockFormat::Q5_K,
        BlockFormat::Q6_K,
        BlockFormat::IQ4_XS,
        BlockFormat::MXFP4,
    ];

    /// Its name in symbols.
    pub const fn name(self) -> &'static str {
        match self {
            BlockFormat::Q4_0 => "q4_0",
            BlockFormat::Q4_1 => "q4_1",
            BlockFormat::Q5_0 => "q5_0",
            BlockFormat::Q5_1 => "q5_1",
            BlockFormat::Q8_0 => "q8_0",
            BlockFormat::Q2_K => "q2_k",
            BlockFormat::Q3_K => "q3_k",
            BlockFormat::Q4_K => "q4_k",
            BlockFormat::Q5_K => "q5_k",
            BlockFormat::Q6_K => "q6_k",
            BlockFormat::IQ4_XS => "iq4_xs",
            BlockFormat::MXFP4 => "mxfp4",
        }
    }

    /// Elements of a block.
    pub const fn block_elems(self) -> usize {
        match self {
            BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q5_0 | BlockFormat::Q5_1 => 32,
            BlockFormat::Q8_0 | BlockFormat::MXFP4 => 32,
            _ => 256,
        }
    }

    /// Bytes of a block of the file.
    pub const fn block_bytes(self) -> usize {
        match self {
            BlockFormat::Q4_0 => 18,
            BlockFormat::Q4_1 => 20,
            BlockFormat::Q5_0 => 22,
            BlockFormat::Q5_1 => 24,
            BlockFormat::Q8_0 => 34,
            BlockFormat::Q2_K => 84,
            BlockFormat::Q3_K => 110,
            BlockFormat::Q4_K => 144,
            BlockFormat::Q5_K => 176,
            BlockFormat::Q6_K => 210,
            BlockFormat::IQ4_XS => 136,
            BlockFormat::MXFP4 => 17,
        }
    }

    /// Bytes of the scales of a tile, and of a unit.
    pub(super) const fn tile_bytes(self) -> [usize; 2] {
        const fn of<F: Format>() -> [usize; 2] {
            [F::SCALE_BYTES as usize, F::UNIT_BYTES as usize]
        }
        match self {
            BlockFormat::Q4_0 => of::<Symmetric<0>>(),
            BlockFormat::Q4_1 => of::<Affine<0>>(),
            BlockFormat::Q5_0 => of::<Symmetric<1>>(),
            BlockFormat::Q5_1 => of::<Affine<1>>(),
            BlockFormat::Q8_0 => of::<Q80>(),
            BlockFormat::Q2_K => of::<Q2K>(),
            BlockFormat::Q3_K => of::<Q3K>(),
            BlockFormat::Q4_K => of::<SixBit<0>>(),
            BlockFormat::Q5_K => of::<SixBit<1>>(),
            BlockFormat::Q6_K => of::<Q6K>(),
            BlockFormat::IQ4_XS => of::<IQ4XS>(),
            BlockFormat::MXFP4 => of::<MXFP4>(),
        }
    }

    /// Bytes of 16 packed rows of `k` elements: those of their blocks, and padding where `k` is not
    /// a multiple of 256. `None` if they overflow.
    pub const fn row_tile_bytes(self, k: usize) -> Option<usize> {
        let [scale_bytes, unit_bytes] = self.tile_bytes();
        let scales = k.div_ceil(TILE_K as usize).checked_mul(scale_bytes);
        match (scales, k.div_ceil(UNIT).checked_mul(unit_bytes)) {
            (Some(scales), Some(units)) => scales.checked_add(units),
            _ => None,
        }
    }

    /// Bytes of a packed weight `[n, k]`; `None` if they overflow. A stacked weight whose parts are
    /// packed one by one has the bytes of each.
    pub const fn packed_bytes(self, n: usize, k: usize) -> Option<usize> {
        match self.row_tile_bytes(k) {
            Some(bytes) => bytes.checked_mul(n.div_ceil(ROWS)),
            None => None,
        }
    }

    /// Packs up to 16 rows of `k` elements, `stored` as the file has them, into `out`; missing rows
    /// are zeros. Rows of tiles are independent of each other.
    ///
    /// # Panics
    /// If `k` is no multiple of the blocks, `stored` is no whole rows or more than 16, or `out` is
    /// not of [`BlockFormat::row_tile_bytes`].
    pub fn pack(self, k: usize, stored: &[u8], out: &mut [u8]) {
        let blocks = k / self.block_elems();
        let row_bytes = blocks * self.block_bytes();
        assert!(k.is_multiple_of(self.block_elems()), "k is {k} in {self:?}");
        assert!(stored.len().is_multiple_of(row_bytes) && stored.len() <= ROWS * row_bytes);
        assert_eq!(Some(out.len()), self.row_tile_bytes(k));
        let rows: Vec<&[u8]> = stored.chunks_exact(row_bytes).collect();
        out.fill(0);
        let [scale_bytes, unit_bytes] = self.tile_bytes();
        let tile_bytes = scale_bytes + TILE_K as usize / UNIT * unit_bytes;
        let tile_blocks = TILE_K as usize / self.block_elems();
        for (tile, out) in out.chunks_mut(tile_bytes).enumerate() {
            let (scales, units) = out.split_at_mut(scale_bytes);
            let mut quants = [[0; TILE_K as usize]; ROWS];
            for (row, stored) in rows.iter().enumerate() {
                let stored = stored.chunks_exact(self.block_bytes());
                for (i, block) in stored.skip(tile * tile_blocks).take(tile_blocks).enumerate() {
                    self.pack_scales(block, row, i, scales);
                    let quants = &mut quants[row][i * self.block_elems()..];
                    self.quants(block, &mut quants[..self.block_elems()]);
                }
            }
            for (unit, out) in units.chunks_exact_mut(unit_bytes).enumerate() {
                self.pack_unit(&quants, unit * UNIT, out);
            }
        }
    }

    /// Copies the scales of block `i` of row `row` to their place in a tile.
    fn pack_scales(self, block: &[u8], row: usize, i: usize, scales: &mut [u8]) {
        let mut copy = |to: usize, from: Range<usize>| {
            scales[to..to + from.len()].copy_from_slice(&block[from]);
        };
        // Fields of `bytes` of which those of rows `r` and `r + 8` are one.
        let of_two_rows = |bytes: usize| bytes * (row % 8 * 2 + row / 8);
        match self {
            BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => {
                copy(16 * row + 2 * i, 0..2);
            }
            BlockFormat::Q4_1 | BlockFormat::Q5_1 => copy(32 * row + 4 * i, 0..4),
            BlockFormat::Q2_K => {
                copy(16 * row, 0..16);
                copy(16 * ROWS + of_two_rows(4), 80..84);
            }
            BlockFormat::Q3_K => {
                copy(8 * row, 96..104);
                copy(8 * ROWS + of_two_rows(4), 104..108);
                copy(12 * ROWS + of_two_rows(2), 108..110);
            }
            BlockFormat::Q4_K | BlockFormat::Q5_K => copy(16 * row, 0..16),
            BlockFormat::Q6_K => {
                copy(16 * row, 192..208);
                copy(16 * ROWS + of_two_rows(2), 208..210);
            }
            BlockFormat::IQ4_XS => copy(8 * row, 0..8),
            BlockFormat::MXFP4 => copy(8 * row + i, 0..1),
        }
    }

    /// Packs the quants of 64 elements along k from `first` on.
    fn pack_unit(self, quants: &[[u8; TILE_K as usize]; ROWS], first: usize, out: &mut [u8]) {
        let [low_bits, high_bits] = self.quant_bits();
        let (low_out, high_out) = out.split_at_mut(128 * low_bits);
        for lane in 0..32 {
            let (group, pair) = (lane / 4, lane % 4);
            let [mut low, mut high] = [0; 2];
            for step in 0..UNIT_STEPS {
                let k = first + 16 * step + 4 * pair;
                let rows = [group, group + 8].map(|row| {
                    let [a, b, c, d] = [0, 1, 2, 3].map(|i| u32::from(quants[row][k + i]));
                    // Bytes in the order of the columns 0, 8, 1, 9 of A.
                    a | c << 8 | b << 16 | d << 24
                });
                match low_bits {
                    8 => {
                        let at = step / 2 * 512 + 16 * lane + step % 2 * 8;
                        low_out[at..at + 8]
                            .copy_from_slice(rows.map(u32::to_le_bytes).as_flattened());
                    }
                    4 => {
                        let [upper, lower] = rows.map(|row| row & 0x0f0f_0f0f);
                        let word = upper | lower << 4;
                        low_out[16 * lane + 4 * step..][..4].copy_from_slice(&word.to_le_bytes());
                    }
                    _ => low |= plane(low_bits, step, rows),
                }
                high |= plane(high_bits, step, rows.map(|row| row >> low_bits));
            }
            if low_bits == 2 {
                low_out[8 * lane..][..8].copy_from_slice(&low.to_le_bytes());
            }
            let bytes = 4 * high_bits;
            high_out[bytes * lane..][..bytes].copy_from_slice(&high.to_le_bytes()[..bytes]);
        }
    }

    /// Bits of a quant that are stored together, and those beyond them.
    const fn quant_bits(self) -> [usize; 2] {
        match self {
            BlockFormat::Q8_0 => [8, 0],
            BlockFormat::Q5_0 | BlockFormat::Q5_1 | BlockFormat::Q5_K => [4, 1],
            BlockFormat::Q6_K => [4, 2],
            BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q4_K => [4, 0],
            BlockFormat::IQ4_XS | BlockFormat::MXFP4 => [4, 0],
            BlockFormat::Q2_K => [2, 0],
            BlockFormat::Q3_K => [2, 1],
        }
    }

    /// Whether kernels take a packed weight `[n, k]` at `weight`.
    pub(super) fn check(
        self,
        n: usize,
        k: usize,
        weight: DevicePtr<u8>,
    ) -> Result<(), LaunchError> {
        let refuse = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
        if !k.is_multiple_of(self.block_elems()) {
            let expected = match self.block_elems() {
                256 => "a multiple of 256",
                _ => "a multiple of 32",
            };
            return refuse("k", k, expected);
        }
        if self.row_tile_bytes(k).is_none_or(|bytes| u32::try_from(bytes).is_err()) {
            return refuse("k", k, "16 rows of at most 4 GiB");
        }
        if self.packed_bytes(n, k).is_none_or(|bytes| bytes > isize::MAX as usize) {
            return refuse("n", n, "a weight that fits into memory");
        }
        if !weight.0.is_multiple_of(16) {
            return refuse("address", weight.0 as usize, "a multiple of 16");
        }
        Ok(())
    }
}

/// The lowest `bits` of the quants of a step in a lane's words of a plane, see `Nibbles`; the second
/// word is the upper half.
fn plane(bits: usize, step: usize, [upper, lower]: [u32; 2]) -> u64 {
    let (word, shift) = (step * bits / 4, step * bits % 4);
    let of = |row: u32, column: usize| {
        let [a, c, b, d] = row.to_le_bytes().map(|byte| u64::from(byte) & ((1 << bits) - 1));
        let [lo, hi] = if column == 0 { [a, b] } else { [c, d] };
        lo | hi << 16
    };
    let of_word = of(upper, 0) << (4 + shift)
        | of(lower, 0) << (8 + shift)
        | of(upper, 1) << (12 + shift)
        | of(lower, 1) << shift;
    of_word << (32 * word)
}
