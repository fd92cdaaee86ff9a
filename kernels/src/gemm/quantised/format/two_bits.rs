//! Formats of blocks of 256 elements in two bits and more, with scales of groups of 16.

use super::nibbles::{TwoBits, byte_to_f32, half_to_f32};
use super::{Format, Mins, ScaleRows, Source, TILE_ROWS, lane_group, load_rows};

/// A block of 256 elements in Q2_K: `d * scale * q - dmin * min`, groups of 16.
pub struct Q2K;

impl Format for Q2K {
    const GROUP_STEPS: usize = 1;
    const OFFSET: f32 = 0.0;
    const MINS: Mins = Mins::Floats;
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
}
