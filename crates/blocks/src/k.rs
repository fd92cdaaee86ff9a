//! The formats of 256 elements in groups of 16 or 32, each with a scale of its own in a few bits.
//!
//! Groups share bytes at different shifts, so a format is written by runs of 32 elements: which
//! bytes, which shift. `d` and `dmin` are f16.

use super::lanes::{array_of, map};
use super::{Blocks, Codec, Lanes, Levels, field, half_at};
use gpu_types::BlockFormat;

/// The formats here.
pub(super) const CODECS: &[(BlockFormat, Codec)] = &[
    (BlockFormat::Q2_K, Codec::of_blocks::<Q2K, _, _, _>()),
    (BlockFormat::Q3_K, Codec::of_blocks::<Q3K, _, _, _>()),
    (BlockFormat::Q4_K, Codec::of_blocks::<Q4K, _, _, _>()),
    (BlockFormat::Q5_K, Codec::of_blocks::<Q5K, _, _, _>()),
    (BlockFormat::Q6_K, Codec::of_blocks::<Q6K, _, _, _>()),
];

/// Scales and minima of 16 groups (a nibble each), two-bit elements, `d`, `dmin`:
/// `d * scale * q - dmin * min`.
pub struct Q2K;

impl Blocks<84, 256, 16> for Q2K {
    const HAS_OFFSETS: bool = true;

    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 84]) -> Levels<256, 16> {
        let packed: &[u8; 16] = field(block, 0);
        let low_bits: &[u8; 64] = field(block, 16);
        let (d, dmin) = (half_at(lanes, block, 80), half_at(lanes, block, 82));
        let mut levels = [0; 256];
        for (run, levels) in levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low: &[u8; 32] = field(low_bits, run / 4 * 32);
            *levels = array_of(|i| (low[i] >> (2 * (run % 4)) & 3).cast_signed());
        }
        Levels {
            levels,
            scales: widen_scales(lanes, map(*packed, |byte| (byte & 15).cast_signed()), [d; 16]),
            offsets: widen_scales(
                lanes,
                map(*packed, |byte| (byte >> 4).cast_signed()),
                [-dmin; 16],
            ),
        }
    }
}

/// 256 third bits, two-bit elements, six-bit scales of 16 groups, `d`:
/// `d * (scale - 32) * (q - 4)`.
pub struct Q3K;

impl Blocks<110, 256, 16> for Q3K {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 110]) -> Levels<256, 16> {
        let high_bits: &[u8; 32] = field(block, 0);
        let low_bits: &[u8; 64] = field(block, 32);
        let scales: &[u8; 12] = field(block, 96);
        let d = half_at(lanes, block, 108);
        let mut levels = [0; 256];
        for (run, levels) in levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low: &[u8; 32] = field(low_bits, run / 4 * 32);
            *levels = array_of(|i| {
                let q = (low[i] >> (2 * (run % 4)) & 3) | (high_bits[i] >> run & 1) << 2;
                q.cast_signed() - 4
            });
        }
        let scales: [u8; 16] = array_of(|group| {
            let low = scales[group % 8] >> (4 * (group / 8)) & 15;
            low | (scales[8 + group % 4] >> (2 * (group / 4)) & 3) << 4
        });
        let scales = widen_scales(lanes, map(scales, |scale| scale.cast_signed() - 32), [d; 16]);
        Levels { levels, scales, offsets: [0.0; 16] }
    }
}

/// `d`, `dmin`, six-bit scales and minima of 8 groups, nibbles:
/// `d * scale * q - dmin * min`.
pub struct Q4K;

impl Blocks<144, 256, 8> for Q4K {
    const HAS_OFFSETS: bool = true;

    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 144]) -> Levels<256, 8> {
        let nibbles: &[u8; 128] = field(block, 16);
        let mut levels = [0; 256];
        for (run, levels) in levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low: &[u8; 32] = field(nibbles, run / 2 * 32);
            *levels = array_of(|i| (low[i] >> (4 * (run % 2)) & 15).cast_signed());
        }
        let (scales, offsets) = scales_and_offsets(lanes, field(block, 0));
        Levels { levels, scales, offsets }
    }
}

/// As [`Q4K`], with 256 fifth bits between scales and nibbles.
pub struct Q5K;

impl Blocks<176, 256, 8> for Q5K {
    const HAS_OFFSETS: bool = true;

    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 176]) -> Levels<256, 8> {
        let high_bits: &[u8; 32] = field(block, 16);
        let nibbles: &[u8; 128] = field(block, 48);
        let mut levels = [0; 256];
        for (run, levels) in levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let low: &[u8; 32] = field(nibbles, run / 2 * 32);
            *levels = array_of(|i| {
                let q = (low[i] >> (4 * (run % 2)) & 15) | (high_bits[i] >> run & 1) << 4;
                q.cast_signed()
            });
        }
        let (scales, offsets) = scales_and_offsets(lanes, field(block, 0));
        Levels { levels, scales, offsets }
    }
}

/// Nibbles, two more bits of each element, signed scales of 16 groups, `d`:
/// `d * scale * (q - 32)`.
pub struct Q6K;

impl Blocks<210, 256, 16> for Q6K {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 210]) -> Levels<256, 16> {
        let low_bits: &[u8; 128] = field(block, 0);
        let high_bits: &[u8; 64] = field(block, 128);
        let d = half_at(lanes, block, 208);
        let mut levels = [0; 256];
        for (run, levels) in levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            // Each half of the block: 64 bytes, their lower nibbles first, and 32 of high bits.
            let (half, run) = (run / 4, run % 4);
            let low: &[u8; 32] = field(low_bits, half * 64 + run % 2 * 32);
            let high: &[u8; 32] = field(high_bits, half * 32);
            *levels = array_of(|i| {
                let q = (low[i] >> (4 * (run / 2)) & 15) | (high[i] >> (2 * run) & 3) << 4;
                q.cast_signed() - 32
            });
        }
        let scales = map(*field::<16>(block, 192), u8::cast_signed);
        let scales = widen_scales(lanes, scales, [d; 16]);
        Levels { levels, scales, offsets: [0.0; 16] }
    }
}

/// Scales and negative minima of eight groups: `d`, `dmin`, then six bits each, the upper two of
/// groups 4 to 7 in the bytes of 0 to 3.
#[inline(always)]
fn scales_and_offsets(lanes: impl Lanes, packed: &[u8; 16]) -> ([f32; 8], [f32; 8]) {
    let (d, dmin) = (half_at(lanes, packed, 0), half_at(lanes, packed, 2));
    let word = |index: usize| u32::from_le_bytes(*field(packed, 4 + 4 * index));
    let (scales, mins, both) = (word(0), word(1), word(2));
    let bytes = |first: u32, nibbles: u32| {
        let second = (nibbles & 0x0F0F_0F0F) | (first >> 6 & 0x0303_0303) << 4;
        u64::from(first & 0x3F3F_3F3F) | u64::from(second) << 32
    };
    let numbers: [i8; 16] = pulp::cast([bytes(scales, both), bytes(mins, both >> 4)]);
    let factors = array_of(|i| if i < 8 { d } else { -dmin });
    let both = widen_scales(lanes, numbers, factors);
    let halves = both.as_chunks().0;
    (halves[0], halves[1])
}

/// `numbers[i] * factors[i]`.
#[inline(always)]
fn widen_scales(lanes: impl Lanes, numbers: [i8; 16], factors: [f32; 16]) -> [f32; 16] {
    let mut wide = [0.0; 16];
    lanes.widen(&numbers, &mut wide);
    lanes.multiply(&wide, &factors)
}
