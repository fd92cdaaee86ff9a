//! Formats of blocks of 256 elements, with scales in two levels.

use super::nibbles::{Nibbles, byte_to_f32, half_to_f32};
#[cfg(not(target_arch = "nvptx64"))]
use super::stored::{add_bits, nibbles, pairs};
use super::{FactoredFormat, Format, Mins, ScaleRows, Source, TILE_ROWS};
use super::{group_elems, lane_group, lane_pair, load_rows};
use cuda_std::F16x2;
use cuda_std::prelude::*;
use gpu_types::BlockFormat;
use half::f16;

/// The scales and minima of Q4_K and Q5_K: six bits each.
#[derive(Clone, Copy)]
pub struct SixBitScales {
    /// Scales of both rows: bytes of groups 0 to 3, and 4 to 7.
    scales: ScaleRows<2>,
    mins: ScaleRows<2>,
    /// `d` and `dmin`.
    factors: [u32; 2],
}

/// A block of 256 elements in Q4_K (0 high bits) or Q5_K (1): `d * scale * q - dmin * min`, groups
/// of 32.
pub struct SixBit<const HIGH_BITS: usize>;

impl<const HIGH_BITS: usize> Format for SixBit<HIGH_BITS> {
    const FORMAT: BlockFormat = [BlockFormat::Q4_K, BlockFormat::Q5_K][HIGH_BITS];
    const GROUP_STEPS: usize = 2;
    const OFFSET: f32 = 0.0;
    const MINS: Mins = Mins::Integers;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 16 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<HIGH_BITS>::BYTES;
    type Loaded = ScaleRows<4>;
    type Scales = SixBitScales;
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
    fn unpack(loaded: ScaleRows<4>) -> SixBitScales {
        // Groups 4 to 7 have their upper two bits in the bytes of groups 0 to 3.
        let upper = |word: u32| (word >> 2) & 0x3030_3030;
        let scales = loaded.map(|[_, scales, _, rest]| {
            [scales & 0x3f3f_3f3f, (rest & 0x0f0f_0f0f) | upper(scales)]
        });
        let mins = loaded.map(|[_, _, mins, rest]| {
            [mins & 0x3f3f_3f3f, ((rest >> 4) & 0x0f0f_0f0f) | upper(mins)]
        });
        SixBitScales { scales, mins, factors: loaded.map(|[factors, ..]| factors) }
    }

    #[inline(always)]
    fn group_scale(scales: &SixBitScales, row: usize, group: usize) -> [f32; 2] {
        [&scales.scales, &scales.mins].map(|of| byte_to_f32::<0>(of[row][group / 4], group % 4))
    }

    #[inline(always)]
    fn row_scale(scales: &SixBitScales, row: usize) -> [f32; 2] {
        [half_to_f32(scales.factors[row], 0), -half_to_f32(scales.factors[row], 1)]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }

    #[inline(always)]
    fn min_fragment(scales: &SixBitScales) -> [u32; 4] {
        const ONE_BY_REST: f16 = f16::from_bits(0x1000);
        let [upper, lower] = scales.mins.map(pair_of_bytes::<0>);
        let rest = |mins| f16x2::mul(mins, F16x2::splat(ONE_BY_REST));
        [upper, lower, rest(upper), rest(lower)].map(F16x2::to_bits)
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]) {
        nibbles(&block[16 + 32 * HIGH_BITS..], 32, out);
        if HIGH_BITS > 0 {
            add_bits(&block[16..48], 32, 4, out);
        }
    }
}

impl<const HIGH_BITS: usize> FactoredFormat for SixBit<HIGH_BITS> {
    #[inline(always)]
    fn scale_in_row(scales: &SixBitScales, row: usize, group: usize) -> f32 {
        Self::group_scale(scales, row, group)[0]
    }

    #[inline(always)]
    fn mean_fragment(scales: &SixBitScales) -> [u32; 4] {
        let [upper, lower] = scales.mins.map(|mins| pair_of_bytes::<0>(mins).to_bits());
        [upper, lower, 0, 0]
    }

    #[inline(always)]
    fn row_factors(scales: &SixBitScales, row: usize) -> [f32; 2] {
        let [scale, min_scale] = Self::row_scale(scales, row);
        [scale, min_scale * group_elems::<Self>()]
    }
}

/// Bytes `2 * pair` and `2 * pair + 1` of eight, minus `BIAS`, in f16.
#[inline(always)]
fn pair_of_bytes<const BIAS: u16>([low, high]: [u32; 2]) -> F16x2 {
    /// 1024 in f16: its last bit counts 1.
    const ONES: u32 = 0x6400_6400;
    let pair = 2 * lane_pair();
    let bytes = math::byte_perm(low, high, pair | (pair + 1) << 4);
    let halves = F16x2::from_bits(math::byte_perm(bytes, ONES, 0x7150));
    f16x2::sub(halves, F16x2::splat(f16::from_bits(0x6400 + BIAS)))
}

/// A block of 256 elements in Q6_K: `d * scale * (q - 32)`, groups of 16.
pub struct Q6K;

impl Format for Q6K {
    const FORMAT: BlockFormat = BlockFormat::Q6_K;
    const GROUP_STEPS: usize = 1;
    const OFFSET: f32 = -32.0;
    const MINS: Mins = Mins::None;
    const HAS_HALF_SCALES: bool = false;
    const LOWER_ROW: f32 = 16.0;
    const SCALE_BYTES: u32 = 18 * TILE_ROWS;
    const UNIT_BYTES: u32 = Nibbles::<2>::BYTES;
    /// Signed bytes of both rows; then `d` of both.
    type Loaded = (ScaleRows<4>, u32);
    /// As loaded, 128 added to each byte.
    type Scales = (ScaleRows<4>, u32);
    type Unit = Nibbles<2>;

    #[inline(always)]
    unsafe fn load_scales(tile: impl Source) -> Self::Loaded {
        // SAFETY: the caller's promise.
        unsafe {
            let [factors] = tile.from(4 * lane_group()).words(16 * TILE_ROWS);
            (load_rows(tile, 16, 0), factors)
        }
    }

    #[inline(always)]
    unsafe fn load_unit(unit: impl Source) -> Self::Unit {
        // SAFETY: the caller's promise.
        unsafe { Nibbles::load(unit) }
    }

    #[inline(always)]
    fn unpack((scales, factors): Self::Loaded) -> Self::Scales {
        (scales.map(|row| row.map(|word| word ^ 0x8080_8080)), factors)
    }

    #[inline(always)]
    fn group_scale((scales, factors): &Self::Scales, row: usize, group: usize) -> [f32; 2] {
        let scale = byte_to_f32::<128>(scales[row][group / 4], group % 4);
        [scale * half_to_f32(*factors, row), 0.0]
    }

    #[inline(always)]
    fn fragment(unit: &Self::Unit, step: usize) -> [u32; 4] {
        unit.fragment(step)
    }

    #[cfg(not(target_arch = "nvptx64"))]
    fn quants(block: &[u8], out: &mut [u8]) {
        let mut high = [0; 256];
        pairs(&block[128..], &mut high);
        nibbles(block, 64, out);
        out.iter_mut().zip(high).for_each(|(out, high)| *out |= high << 4);
    }
}

impl FactoredFormat for Q6K {
    #[inline(always)]
    fn scale_in_row((scales, _): &Self::Scales, row: usize, group: usize) -> f32 {
        byte_to_f32::<128>(scales[row][group / 4], group % 4)
    }

    #[inline(always)]
    fn mean_fragment((scales, _): &Self::Scales) -> [u32; 4] {
        let pair = |words: [u32; 2]| pair_of_bytes::<128>(words).to_bits();
        let [upper, lower] = scales.map(|[a, b, c, d]| [pair([a, b]), pair([c, d])]);
        [upper[0], lower[0], upper[1], lower[1]]
    }

    #[inline(always)]
    fn row_factors((_, factors): &Self::Scales, row: usize) -> [f32; 2] {
        let factor = half_to_f32(*factors, row);
        [factor, factor * (Self::OFFSET * group_elems::<Self>())]
    }
}
