//! Formats whose nibbles stand for levels that are not evenly spaced.

use super::nibbles::{Nibbles, byte_to_f32, half_to_f32};
#[cfg(not(target_arch = "nvptx64"))]
use super::stored::nibbles;
use super::{Format, Mins, ScaleRows, Source, TILE_ROWS, load_rows};
use cuda_std::prelude::*;
use gpu_types::BlockFormat;

/// Sixteen levels, a byte each.
struct Levels([u32; 4]);

impl Levels {
    /// `levels`, plus `offset`.
    const fn new(levels: [i8; 16], offset: i32) -> Self {
        let mut words = [0; 4];
        let mut i = 0;
        while i < 16 {
            let level = (levels[i] as i32 + offset) as u32;
            words[i / 4] |= level << (i % 4 * 8);
            i += 1;
        }
        Levels(words)
    }

    /// As [`Format::fragment`], of a step's word of [`Nibbles`].
    #[inline(always)]
    fn fragment(&self, nibbles: u32) -> [u32; 4] {
        let [a, b, c, d] = self.0;
        // Columns 0, 1, 8, 9 from the lowest byte on.
        let nibbles = math::byte_perm(nibbles, 0, 0x3120);
        let of_eight = nibbles & 0x7777_7777;
        // From which eight: byte `i` of the lower ones' or of the upper ones'.
        let of_two = ((nibbles >> 1) & 0x4444_4444) | 0x3210_3210;
        let [first, second] = [0, 16].map(|shift| {
            let lower = math::byte_perm(a, b, of_eight >> shift);
            let upper = math::byte_perm(c, d, of_eight >> shift);
            math::byte_perm(lower, upper, of_two >> shift)
        });
        let bytes = |word: u32| word & 0x00ff_00ff;
        [bytes(first), bytes(first >> 8), bytes(second), bytes(second >> 8)]
    }
}

/// A block of 256 elements in IQ4_XS: `d * (scale - 32) * level`, groups of 32. Quants are levels
/// plus 128.
pub struct IQ4XS;

impl IQ4XS {
    /// Source: `kvalues_iq4nl` in ggml-common.h.
    const LEVELS: Levels = {
        let levels = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
        Levels::new(levels, 128)
    };
}

impl Format for IQ4XS {
    const FORMAT: BlockFormat = BlockFormat::IQ4_XS;
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = -128.0;
    const MINS: Mins = Mins::None;
    const HAS_HALF_SCALES: bool = false;
    const LOWER_ROW: f32 = 1.0;
    const SCALE_BYTES: u32 = 8 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<0>::BYTES;
    /// Words of both rows: `d` and the upper two bits of the scales; their lower four bits.
    type Loaded = ScaleRows<2>;
    /// Words of both rows: scales of groups 0, 2, 4, 6, a byte each; of groups 1, 3, 5, 7; and `d`.
    type Scales = ScaleRows<3>;
    type Unit = Nibbles<0>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> ScaleRows<2> {
        // SAFETY: the caller's promise.
        unsafe { load_rows(tile, 8, 0) }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { Nibbles::load(unit) }
    }

    #[inline(always)]
    fn unpack(loaded: ScaleRows<2>) -> ScaleRows<3> {
        loaded.map(|[first, low]| {
            // The upper bits of two groups a byte.
            let high = first >> 16;
            let high = (high | high << 8) & 0x00ff_00ff;
            let high = (high | high << 4) & 0x0f0f_0f0f;
            let even = (low & 0x0f0f_0f0f) | ((high << 4) & 0x3030_3030);
            let odd = ((low >> 4) & 0x0f0f_0f0f) | ((high << 2) & 0x3030_3030);
            [even, odd, first]
        })
    }

    #[inline(always)]
    fn group_scale(scales: &ScaleRows<3>, row: usize, group: usize) -> [f32; 2] {
        let scale = byte_to_f32::<32>(scales[row][group % 2], group / 2);
        [scale * half_to_f32(scales[row][2], 0), 0.0]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        Self::LEVELS.fragment(unit.low[step])
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]) {
        nibbles(&block[8..], 16, out);
    }
}

/// Blocks of 32 elements in MXFP4: `2^(exponent - 127) * level`, in E2M1 (sign, two bits of
/// exponent, one of mantissa).
pub struct MXFP4;

impl Format for MXFP4 {
    const FORMAT: BlockFormat = BlockFormat::MXFP4;
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = 0.0;
    const MINS: Mins = Mins::None;
    /// The bits of E2M1 are the upper ones of f16, whose exponent counts from 14 more.
    const ONE: f32 = 1.0 / (1 << 14) as f32;
    const LOWER_ROW: f32 = 1.0;
    const SCALE_BYTES: u32 = 8 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<0>::BYTES;
    /// Exponents of both rows, a byte a group.
    type Loaded = ScaleRows<2>;
    type Scales = ScaleRows<2>;
    type Unit = Nibbles<0>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> ScaleRows<2> {
        // SAFETY: the caller's promise.
        unsafe { load_rows(tile, 8, 0) }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { Nibbles::load(unit) }
    }

    #[inline(always)]
    fn unpack(loaded: ScaleRows<2>) -> ScaleRows<2> {
        loaded
    }

    #[inline(always)]
    fn group_scale(scales: &ScaleRows<2>, row: usize, group: usize) -> [f32; 2] {
        /// 2^-127, which E8M0 writes as 0: a subnormal f32.
        const SMALLEST: u32 = 1 << 22;
        let word = scales[row][group / 4];
        let exponent = match group % 4 {
            3 => word >> 1,
            byte => word << (23 - 8 * byte),
        };
        [f32::from_bits((exponent & 0x7f80_0000).max(SMALLEST)), 0.0]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        let nibbles = unit.low[step];
        let placed = |sign: u32, rest: u32| (sign & 0x8000_8000) | (rest & 0x0e00_0e00);
        [
            placed(nibbles << 12, nibbles << 9),
            placed(nibbles << 8, nibbles << 5),
            placed(nibbles << 4, nibbles << 1),
            placed(nibbles, nibbles >> 3),
        ]
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]) {
        nibbles(&block[1..], 16, out);
    }
}
