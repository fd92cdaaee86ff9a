//! Formats of blocks of 256 elements in two bits and more, with scales of groups of 16.

use super::nibbles::{TwoBits, byte_to_f32, half_to_f32};
#[cfg(not(target_arch = "nvptx64"))]
use super::stored::{add_bits, pairs};
use super::{Format, Mins, ScaleRows, Source, TILE_ROWS, lane_group, load_rows};
use gpu_types::BlockFormat;

/// A block of 256 elements in Q2_K: `d * scale * q - dmin * min`, groups of 16.
pub struct Q2K;

impl Format for Q2K {
    const FORMAT: BlockFormat = BlockFormat::Q2_K;
    const GROUP_STEPS: usize = 1;
    const OFFSET: f32 = 0.0;
    const MINS: Mins = Mins::Floats;
    const HAS_HALF_SCALES: bool = false;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 20 * TILE_ROWS;
    const UNIT_BYTES: u32 = TwoBits::<0>::BYTES;
    /// A byte a group, the scale in its lower nibble, the minimum in its upper; then `d` and `dmin`
    /// of both rows.
    type Loaded = (ScaleRows<4>, [u32; 2]);
    type Scales = (ScaleRows<4>, [u32; 2]);
    type Unit = TwoBits<0>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> Self::Loaded {
        // SAFETY: the caller's promise.
        unsafe {
            let factors = tile.from(8 * lane_group()).words(16 * TILE_ROWS);
            (load_rows(tile, 16, 0), factors)
        }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { TwoBits::load(unit) }
    }

    #[inline(always)]
    fn unpack(loaded: Self::Loaded) -> Self::Scales {
        loaded
    }

    #[inline(always)]
    fn group_scale((groups, factors): &Self::Scales, row: usize, group: usize) -> [f32; 2] {
        let word = groups[row][group / 4];
        let [scale, min] =
            [word, word >> 4].map(|nibbles| byte_to_f32::<0>(nibbles & 0x0f0f_0f0f, group % 4));
        [scale * half_to_f32(factors[row], 0), -min * half_to_f32(factors[row], 1)]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]) {
        pairs(&block[16..], out);
    }
}

/// A block of 256 elements in Q3_K: `d * (scale - 32) * (q - 4)`, groups of 16.
pub struct Q3K;

/// The scales of Q3_K, six bits each, as loaded.
#[derive(Clone, Copy, Default)]
pub struct SixBitWords {
    /// Lower four bits: bytes of groups 0 to 3 and 4 to 7; groups 8 to 15 in the upper nibbles.
    low: ScaleRows<2>,
    /// Upper two bits of both rows: byte `i` has those of groups `i`, `i + 4`, `i + 8`, `i + 12`.
    high: [u32; 2],
    /// `d` of both rows.
    factors: u32,
}

impl Format for Q3K {
    const FORMAT: BlockFormat = BlockFormat::Q3_K;
    const GROUP_STEPS: usize = 1;
    const OFFSET: f32 = -4.0;
    const MINS: Mins = Mins::None;
    const HAS_HALF_SCALES: bool = false;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 14 * TILE_ROWS;
    const UNIT_BYTES: u32 = TwoBits::<1>::BYTES;
    type Loaded = SixBitWords;
    /// A byte a group, of both rows; then `d` of both.
    type Scales = (ScaleRows<4>, u32);
    type Unit = TwoBits<1>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> SixBitWords {
        // SAFETY: the caller's promise.
        unsafe {
            let high = tile.from(8 * lane_group()).words(8 * TILE_ROWS);
            let [factors] = tile.from(4 * lane_group()).words(12 * TILE_ROWS);
            SixBitWords { low: load_rows(tile, 8, 0), high, factors }
        }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { TwoBits::load(unit) }
    }

    #[inline(always)]
    fn unpack(SixBitWords { low, high, factors }: SixBitWords) -> Self::Scales {
        let mut scales = [[0; 4]; 2];
        for row in 0..2 {
            for word in 0..4 {
                let low = low[row][word % 2] >> (word / 2 * 4);
                let high = (high[row] >> (2 * word)) << 4;
                scales[row][word] = (low & 0x0f0f_0f0f) | (high & 0x3030_3030);
            }
        }
        (scales, factors)
    }

    #[inline(always)]
    fn group_scale((scales, factors): &Self::Scales, row: usize, group: usize) -> [f32; 2] {
        let scale = byte_to_f32::<32>(scales[row][group / 4], group % 4);
        [scale * half_to_f32(*factors, row), 0.0]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]) {
        pairs(&block[32..], out);
        add_bits(block, 32, 2, out);
    }
}
