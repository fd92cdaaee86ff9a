//! The formats of 256 elements in groups of 16 or 32, each with a scale of its own in a few bits.
//!
//! Groups share bytes at different shifts, so a format is written by runs of 32 elements: which
//! bytes, which shift. `d` and `dmin` are f16.

use super::byte_products::ByteBlocks;
use super::lanes::{array_of, map};
use super::{Blocks, Codec, Lanes, Levels, field, half_at};
use gpu_types::BlockFormat;

/// The formats here.
pub(super) const CODECS: &[(BlockFormat, Codec)] = &[
    (BlockFormat::Q2_K, Codec::of_blocks::<Q2K, _, _, _>().with_bytes::<Q2K, _, 1>()),
    (BlockFormat::Q3_K, Codec::of_blocks::<Q3K, _, _, _>().with_bytes::<Q3K, _, 1>()),
    (BlockFormat::Q4_K, Codec::of_blocks::<Q4K, _, _, _>().with_bytes::<Q4K, _, 1>()),
    (BlockFormat::Q5_K, Codec::of_blocks::<Q5K, _, _, _>().with_bytes::<Q5K, _, 1>()),
    (BlockFormat::Q6_K, Codec::of_blocks::<Q6K, _, _, _>().with_bytes::<Q6K, _, 1>()),
];

/// Scales and minima of 16 groups (a nibble each), two-bit elements, `d`, `dmin`:
/// `d * scale * q - dmin * min`.
pub struct Q2K;

impl Blocks<84, 256, 16> for Q2K {
    const HAS_OFFSETS: bool = true;

    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 84]) -> Levels<256, 16> {
        let [scales, offsets] = Self::scales(lanes, [block]);
        let offsets = map(offsets, |minimum| -minimum);
        Levels { levels: all_levels::<Self, _>(lanes, block), scales, offsets }
    }
}

impl ByteBlocks<84, 1> for Q2K {
    const OFFSETS: f32 = -1.0;

    #[inline(always)]
    fn levels(lanes: impl Lanes, [block]: [&[u8; 84]; 1], step: usize) -> [u8; 64] {
        two_bits(lanes, field(block, 16), step)
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, [block]: [&[u8; 84]; 1]) -> [[f32; 16]; 2] {
        let packed: &[u8; 16] = field(block, 0);
        let (d, dmin) = (half_at(lanes, block, 80), half_at(lanes, block, 82));
        [
            widen_scales(lanes, map(*packed, |byte| (byte & 15).cast_signed()), [d; 16]),
            widen_scales(lanes, map(*packed, |byte| (byte >> 4).cast_signed()), [dmin; 16]),
        ]
    }
}

/// 256 third bits, two-bit elements, six-bit scales of 16 groups, `d`:
/// `d * (scale - 32) * (q - 4)`.
pub struct Q3K;

impl Blocks<110, 256, 16> for Q3K {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 110]) -> Levels<256, 16> {
        let [scales, _] = Self::scales(lanes, [block]);
        Levels { levels: all_levels::<Self, _>(lanes, block), scales, offsets: [0.0; 16] }
    }
}

impl ByteBlocks<110, 1> for Q3K {
    const BIAS: u8 = 4;

    #[inline(always)]
    fn levels(lanes: impl Lanes, [block]: [&[u8; 110]; 1], step: usize) -> [u8; 64] {
        let high_bits = field(block, 0);
        let low = two_bits(lanes, field(block, 32), step);
        let run = 2 * step as i32;
        let high = lanes.shift_halves([high_bits; 2], [2 - run, 1 - run], 4);
        array_of(|i| low[i] | high[i])
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, [block]: [&[u8; 110]; 1]) -> [[f32; 16]; 2] {
        let scales: &[u8; 12] = field(block, 96);
        let d = half_at(lanes, block, 108);
        let scales: [u8; 16] = array_of(|group| {
            let low = scales[group % 8] >> (4 * (group / 8)) & 15;
            low | (scales[8 + group % 4] >> (2 * (group / 4)) & 3) << 4
        });
        let scales = widen_scales(lanes, map(scales, |scale| scale.cast_signed() - 32), [d; 16]);
        [scales; 2]
    }
}

/// `d`, `dmin`, six-bit scales and minima of 8 groups, nibbles:
/// `d * scale * q - dmin * min`.
pub struct Q4K;

impl Blocks<144, 256, 8> for Q4K {
    const HAS_OFFSETS: bool = true;

    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 144]) -> Levels<256, 8> {
        let [scales, minima] = Self::scales(lanes, [block]);
        let (scales, offsets) = (array_of(|i| scales[2 * i]), array_of(|i| -minima[2 * i]));
        Levels { levels: all_levels::<Self, _>(lanes, block), scales, offsets }
    }
}

impl ByteBlocks<144, 1> for Q4K {
    const OFFSETS: f32 = -1.0;

    #[inline(always)]
    fn levels(lanes: impl Lanes, [block]: [&[u8; 144]; 1], step: usize) -> [u8; 64] {
        lanes.shift_halves([field(block, 16 + 32 * step); 2], [0, -4], 15)
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, [block]: [&[u8; 144]; 1]) -> [[f32; 16]; 2] {
        scales_and_minima(lanes, field(block, 0))
    }
}

/// As [`Q4K`], with 256 fifth bits between scales and nibbles.
pub struct Q5K;

impl Blocks<176, 256, 8> for Q5K {
    const HAS_OFFSETS: bool = true;

    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 176]) -> Levels<256, 8> {
        let [scales, minima] = Self::scales(lanes, [block]);
        let (scales, offsets) = (array_of(|i| scales[2 * i]), array_of(|i| -minima[2 * i]));
        Levels { levels: all_levels::<Self, _>(lanes, block), scales, offsets }
    }
}

impl ByteBlocks<176, 1> for Q5K {
    const OFFSETS: f32 = -1.0;

    #[inline(always)]
    fn levels(lanes: impl Lanes, [block]: [&[u8; 176]; 1], step: usize) -> [u8; 64] {
        let low = lanes.shift_halves([field(block, 48 + 32 * step); 2], [0, -4], 15);
        let run = 2 * step as i32;
        let fifth = lanes.shift_halves([field(block, 16); 2], [4 - run, 3 - run], 16);
        array_of(|i| low[i] | fifth[i])
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, [block]: [&[u8; 176]; 1]) -> [[f32; 16]; 2] {
        scales_and_minima(lanes, field(block, 0))
    }
}

/// Nibbles, two more bits of each element, signed scales of 16 groups, `d`:
/// `d * scale * (q - 32)`.
pub struct Q6K;

impl Blocks<210, 256, 16> for Q6K {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 210]) -> Levels<256, 16> {
        let [scales, _] = Self::scales(lanes, [block]);
        Levels { levels: all_levels::<Self, _>(lanes, block), scales, offsets: [0.0; 16] }
    }
}

impl ByteBlocks<210, 1> for Q6K {
    const BIAS: u8 = 32;

    /// Each half of the block has 64 bytes, their lower nibbles first, and 32 of high bits.
    #[inline(always)]
    fn levels(lanes: impl Lanes, [block]: [&[u8; 210]; 1], step: usize) -> [u8; 64] {
        let nibbles: &[u8; 64] = field(block, step / 2 * 64);
        let is_upper = step % 2;
        let left = if is_upper == 0 { [4, 2] } else { [0, -2] };
        let high = lanes.shift_halves([field(block, 128 + step / 2 * 32); 2], left, 0x30);
        array_of(|i| (nibbles[i] >> (4 * is_upper) & 15) | high[i])
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, [block]: [&[u8; 210]; 1]) -> [[f32; 16]; 2] {
        let d = half_at(lanes, block, 208);
        let scales = map(*field::<16>(block, 192), u8::cast_signed);
        [widen_scales(lanes, scales, [d; 16]); 2]
    }
}

/// Levels of all elements, without the bias.
#[inline(always)]
fn all_levels<F: ByteBlocks<BYTES, 1>, const BYTES: usize>(
    lanes: impl Lanes,
    block: &[u8; BYTES],
) -> [i8; 256] {
    let mut levels = [0; 256];
    for (step, levels) in levels.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        *levels = map(F::levels(lanes, [block], step), |q| q.wrapping_sub(F::BIAS).cast_signed());
    }
    levels
}

/// Two-bit elements: each 32 bytes hold four times 32 of them.
#[inline(always)]
fn two_bits(lanes: impl Lanes, bytes: &[u8; 64], step: usize) -> [u8; 64] {
    let bytes = field(bytes, step / 2 * 32);
    let left = if step.is_multiple_of(2) { [0, -2] } else { [-4, -6] };
    lanes.shift_halves([bytes; 2], left, 3)
}

/// Scales and minima of eight groups, each twice: `d`, `dmin`, then six bits each, the
/// upper two of groups 4 to 7 in the bytes of 0 to 3.
#[inline(always)]
fn scales_and_minima(lanes: impl Lanes, packed: &[u8; 16]) -> [[f32; 16]; 2] {
    const SCALES: [u32; 16] = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];
    const MINIMA: [u32; 16] = [8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15];
    let factors = lanes.widen_halves(&array_of(|i| *field(packed, i / 8 * 2)));
    let word = |index: usize| u32::from_le_bytes(*field(packed, 4 + 4 * index));
    let (scales, mins, both) = (word(0), word(1), word(2));
    let bytes = |first: u32, nibbles: u32| {
        let second = (nibbles & 0x0F0F_0F0F) | (first >> 6 & 0x0303_0303) << 4;
        u64::from(first & 0x3F3F_3F3F) | u64::from(second) << 32
    };
    let numbers: [i8; 16] = pulp::cast([bytes(scales, both), bytes(mins, both >> 4)]);
    let both = widen_scales(lanes, numbers, factors);
    [lanes.permute(&both, &SCALES), lanes.permute(&both, &MINIMA)]
}

/// `numbers[i] * factors[i]`.
#[inline(always)]
fn widen_scales(lanes: impl Lanes, numbers: [i8; 16], factors: [f32; 16]) -> [f32; 16] {
    let mut wide = [0.0; 16];
    lanes.widen(&numbers, &mut wide);
    lanes.multiply(&wide, &factors)
}
