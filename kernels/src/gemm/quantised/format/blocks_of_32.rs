//! Formats of blocks of 32 elements, with one scale and at most one minimum.

use super::nibbles::{Nibbles, half_to_f32};
#[cfg(not(target_arch = "nvptx64"))]
use super::stored::{add_bits, nibbles};
use super::{Format, Mins, ScaleRows, Source, TILE_ROWS, UNIT_K, load_rows};
use cuda_std::prelude::*;
use gpu_types::BlockFormat;

/// Blocks of 32 elements in Q4_0 (0 high bits) or Q5_0 (1): `d * (q - 8)`, or `d * (q - 16)`.
pub struct Symmetric<const HIGH_BITS: usize>;

impl<const HIGH_BITS: usize> Format for Symmetric<HIGH_BITS> {
    const FORMAT: BlockFormat = [BlockFormat::Q4_0, BlockFormat::Q5_0][HIGH_BITS];
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = -((8 << HIGH_BITS) as f32);
    const MINS: Mins = Mins::None;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 16 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<HIGH_BITS>::BYTES;
    type Loaded = ScaleRows<4>;
    type Scales = ScaleRows<4>;
    type Unit = Nibbles<HIGH_BITS>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> ScaleRows<4> {
        // SAFETY: the caller's promise.
        unsafe { load_rows(tile, 16, 0) }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { Nibbles::load(unit) }
    }

    #[inline(always)]
    fn unpack(loaded: ScaleRows<4>) -> ScaleRows<4> {
        loaded
    }

    #[inline(always)]
    fn group_scale(scales: &ScaleRows<4>, row: usize, group: usize) -> [f32; 2] {
        [half_to_f32(scales[row][group / 2], group % 2), 0.0]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]) {
        nibbles(&block[2 + 4 * HIGH_BITS..], 16, out);
        if HIGH_BITS > 0 {
            add_bits(&block[2..6], 8, 4, out);
        }
    }
}

/// Blocks of 32 elements in Q4_1 (0 high bits) or Q5_1 (1): `d * q + m`.
pub struct Affine<const HIGH_BITS: usize>;

impl<const HIGH_BITS: usize> Format for Affine<HIGH_BITS> {
    const FORMAT: BlockFormat = [BlockFormat::Q4_1, BlockFormat::Q5_1][HIGH_BITS];
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = 0.0;
    const MINS: Mins = Mins::Floats;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 32 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<HIGH_BITS>::BYTES;
    /// `d` and `m` of groups 0 to 3, and 4 to 7.
    type Loaded = [ScaleRows<4>; 2];
    type Scales = [ScaleRows<4>; 2];
    type Unit = Nibbles<HIGH_BITS>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> Self::Loaded {
        // SAFETY: the caller's promise.
        [0, 16].map(|first| unsafe { load_rows(tile, 32, first) })
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { Nibbles::load(unit) }
    }

    #[inline(always)]
    fn unpack(loaded: Self::Loaded) -> Self::Scales {
        loaded
    }

    #[inline(always)]
    fn group_scale(scales: &Self::Scales, row: usize, group: usize) -> [f32; 2] {
        let word = scales[group / 4][row][group % 4];
        [half_to_f32(word, 0), half_to_f32(word, 1)]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]) {
        nibbles(&block[4 + 4 * HIGH_BITS..], 16, out);
        if HIGH_BITS > 0 {
            add_bits(&block[4..8], 8, 4, out);
        }
    }
}

/// Blocks of 32 elements in Q8_0: `d * (q - 128)`, the bytes' signs flipped.
pub struct Q80;

impl Format for Q80 {
    const FORMAT: BlockFormat = BlockFormat::Q8_0;
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = -128.0;
    const MINS: Mins = Mins::None;
    const LOWER_ROW: f32 = 1.0;
    const SCALE_BYTES: u32 = 16 * TILE_ROWS;
    const UNIT_BYTES: u32 = UNIT_K * TILE_ROWS;
    type Loaded = ScaleRows<4>;
    type Scales = ScaleRows<4>;
    /// Steps 0 and 1, then 2 and 3: a word a row, columns 0, 8, 1, 9 from the lowest byte on.
    type Unit = [[u32; 4]; 2];

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> ScaleRows<4> {
        // SAFETY: the caller's promise.
        unsafe { load_rows(tile, 16, 0) }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        let unit = unit.from(16 * warp::lane_id());
        // SAFETY: the caller's promise.
        unsafe { [unit.words(0), unit.words(512)] }
    }

    #[inline(always)]
    fn unpack(loaded: ScaleRows<4>) -> ScaleRows<4> {
        loaded
    }

    #[inline(always)]
    fn group_scale(scales: &ScaleRows<4>, row: usize, group: usize) -> [f32; 2] {
        [half_to_f32(scales[row][group / 2], group % 2), 0.0]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        let [upper, lower] = [0, 1].map(|row| unit[step / 2][step % 2 * 2 + row]);
        let bytes = |word: u32| word & 0x00ff_00ff;
        [bytes(upper), bytes(lower), bytes(upper >> 8), bytes(lower >> 8)]
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]) {
        out.iter_mut().zip(&block[2..]).for_each(|(out, byte)| *out = byte ^ 0x80);
    }
}
