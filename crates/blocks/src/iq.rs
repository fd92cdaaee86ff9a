//! The formats of one to three bits: groups of four or eight elements are entries of grids.
//!
//! A block of 256 elements is `d * scale * level`, with an integer scale for each 16 elements: the
//! products are exact in f32, whatever their order. Source: arXiv:2402.04396 for the grids on
//! E8's lattice; `grids.bin` holds ggml's (tests/fixtures/make_blocks.py).

use super::lanes::{array_of, map};
use super::{Blocks, Codec, Lanes, Levels, field};
use gpu_types::BlockFormat;

/// The formats here.
pub(super) const CODECS: &[(BlockFormat, Codec)] = &[
    (BlockFormat::IQ3_S, Codec::of_blocks::<IQ3S, _, _, _>()),
    (BlockFormat::IQ3_XXS, Codec::of_blocks::<IQ3XXS, _, _, _>()),
    (BlockFormat::IQ2_S, Codec::of_blocks::<IQ2S, _, _, _>()),
    (BlockFormat::IQ2_XS, Codec::of_blocks::<IQ2XS, _, _, _>()),
    (BlockFormat::IQ2_XXS, Codec::of_blocks::<IQ2XXS, _, _, _>()),
    (BlockFormat::IQ1_M, Codec::of_blocks::<IQ1M, _, _, _>()),
    (BlockFormat::IQ1_S, Codec::of_blocks::<IQ1S, _, _, _>()),
    (BlockFormat::TQ1_0, Codec::of_blocks::<TQ1_0, _, _, _>()),
    (BlockFormat::TQ2_0, Codec::of_blocks::<TQ2_0, _, _, _>()),
];

/// A block of 256 elements: element `i` is `d * UNIT * scales[i / 16] * levels[i]`.
pub struct ScaledLevels {
    /// An f16.
    pub d: u16,
    pub scales: [u8; 16],
    pub levels: [i8; 256],
}

/// A format whose blocks are [`ScaledLevels`].
pub trait GridBlocks<const BYTES: usize> {
    /// A power of two.
    const UNIT: f32;

    /// What a block holds.
    fn read(block: &[u8; BYTES]) -> ScaledLevels;
}

impl<F: GridBlocks<BYTES>, const BYTES: usize> Blocks<BYTES, 256, 16> for F {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; BYTES]) -> Levels<256, 16> {
        let ScaledLevels { d, scales, levels } = F::read(block);
        let d = lanes.half_to_f32(d) * F::UNIT;
        Levels { levels, scales: map(scales, |scale| d * f32::from(scale)), offsets: [0.0; 16] }
    }
}

impl ScaledLevels {
    #[inline(always)]
    fn new(d: u16, scales: [u8; 16]) -> Self {
        ScaledLevels { d, scales, levels: [0; 256] }
    }

    /// Entry `index` of the block is `entry`, negative where bit `i` of `signs` is set.
    #[inline(always)]
    fn put<const N: usize>(&mut self, index: usize, entry: &[i8; N], signs: u8) {
        let out = &mut self.levels[index * N..][..N];
        for (i, (out, &level)) in out.iter_mut().zip(entry).enumerate() {
            *out = if signs >> i & 1 == 0 { level } else { -level };
        }
    }

    /// Entry `index` is `entry`, each of its levels an eighth of a step up, or down.
    #[inline(always)]
    fn put_shifted(&mut self, index: usize, entry: &[i8; 8], is_down: bool) {
        let shift = if is_down { -1 } else { 1 };
        let out = &mut self.levels[index * 8..][..8];
        out.iter_mut().zip(entry).for_each(|(out, level)| *out = level + shift);
    }
}

/// The grids of IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S and IQ1_S, the first level in the lowest
/// bits: two bits a level of IQ1 and IQ2, four of IQ3.
static GRIDS: &[u8; 9216] = include_bytes!("grids.bin");

static IQ2_XXS: [[i8; 8]; 256] = grid(0, [8, 25, 43]);
static IQ2_XS: [[i8; 8]; 512] = grid(512, [8, 25, 43]);
static IQ2_S: [[i8; 8]; 1024] = grid(1536, [8, 25, 43]);
/// Halved, so that six bits with a sign hold a level.
static IQ3_XXS: [[i8; 4]; 256] = grid(3584, [2, 6, 10, 14, 18, 22, 26, 31]);
static IQ3_S: [[i8; 4]; 512] = grid(4096, [1, 3, 5, 7, 9, 11, 13, 15]);
/// In eighths, so that the shift of a group is an integer.
static IQ1: [[i8; 8]; 2048] = grid(5120, [-8, 0, 8]);

/// The grid that starts at byte `first`.
const fn grid<const NUM: usize, const LEN: usize, const LEVELS: usize>(
    first: usize,
    levels: [i8; LEVELS],
) -> [[i8; LEN]; NUM] {
    let bits = if LEVELS > 4 { 4 } else { 2 };
    let mut entries = [[0; LEN]; NUM];
    let mut i = 0;
    while i < NUM * LEN {
        let byte = GRIDS[first + i * bits / 8] >> (i * bits % 8);
        entries[i / LEN][i % LEN] = levels[(byte as usize) & ((1 << bits) - 1)];
        i += 1;
    }
    entries
}

/// Signs of eight levels in seven bits: the number of negative ones is even.
#[inline(always)]
fn seven_signs(bits: u32) -> u8 {
    let bits = bits as u8 & 127;
    bits | (bits.count_ones() as u8 & 1) << 7
}

/// Odd numbers, from nibbles.
#[inline(always)]
fn odd_scales(nibbles: &[u8; 8]) -> [u8; 16] {
    array_of(|group| 2 * (nibbles[group / 2] >> (4 * (group % 2)) & 15) + 1)
}

#[inline(always)]
fn u16_at(block: &[u8], start: usize) -> u16 {
    u16::from_le_bytes(*field(block, start))
}

#[inline(always)]
fn u32_at(block: &[u8], start: usize) -> u32 {
    u32::from_le_bytes(*field(block, start))
}

/// `d`; of each 32 elements four entries (a byte each), and a word: their signs (seven bits each),
/// and a scale.
pub struct IQ2XXS;

impl GridBlocks<66> for IQ2XXS {
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn read(block: &[u8; 66]) -> ScaledLevels {
        let word = |group: usize| u32_at(block, 2 + 8 * group + 4);
        let scales = array_of(|i| 2 * (word(i / 2) >> 28) as u8 + 1);
        let mut out = ScaledLevels::new(u16_at(block, 0), scales);
        for i in 0..32 {
            let entry = block[2 + i / 4 * 8 + i % 4];
            out.put(i, &IQ2_XXS[usize::from(entry)], seven_signs(word(i / 4) >> (7 * (i % 4))));
        }
        out
    }
}

/// `d`; of each eight elements nine bits of an entry and seven of signs; scales of 16 groups.
pub struct IQ2XS;

impl GridBlocks<74> for IQ2XS {
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn read(block: &[u8; 74]) -> ScaledLevels {
        let mut out = ScaledLevels::new(u16_at(block, 0), odd_scales(field(block, 66)));
        for i in 0..32 {
            let bits = u16_at(block, 2 + 2 * i);
            out.put(i, &IQ2_XS[usize::from(bits & 511)], seven_signs(u32::from(bits >> 9)));
        }
        out
    }
}

/// `d`; low bytes of 32 entries, their signs, their two high bits; scales of 16 groups.
pub struct IQ2S;

impl GridBlocks<82> for IQ2S {
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn read(block: &[u8; 82]) -> ScaledLevels {
        let mut out = ScaledLevels::new(u16_at(block, 0), odd_scales(field(block, 74)));
        for i in 0..32 {
            let high = usize::from(block[66 + i / 4] >> (2 * (i % 4)) & 3) << 8;
            out.put(i, &IQ2_S[usize::from(block[2 + i]) | high], block[34 + i]);
        }
        out
    }
}

/// `d`; 64 entries (a byte each); of each 32 elements a word: signs of eight in seven bits, and a
/// scale.
pub struct IQ3XXS;

impl GridBlocks<98> for IQ3XXS {
    const UNIT: f32 = 0.5;

    #[inline(always)]
    fn read(block: &[u8; 98]) -> ScaledLevels {
        let word = |group: usize| u32_at(block, 66 + 4 * group);
        let scales = array_of(|i| 2 * (word(i / 2) >> 28) as u8 + 1);
        let mut out = ScaledLevels::new(u16_at(block, 0), scales);
        for i in 0..64 {
            let signs = seven_signs(word(i / 8) >> (7 * (i / 2 % 4)));
            out.put(i, &IQ3_XXS[usize::from(block[2 + i])], signs >> (4 * (i % 2)));
        }
        out
    }
}

/// `d`; low bytes of 64 entries, their ninth bits; signs; scales of 8 groups.
pub struct IQ3S;

impl GridBlocks<110> for IQ3S {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn read(block: &[u8; 110]) -> ScaledLevels {
        let scales = array_of(|i| 2 * (block[106 + i / 4] >> (4 * (i / 2 % 2)) & 15) + 1);
        let mut out = ScaledLevels::new(u16_at(block, 0), scales);
        for i in 0..64 {
            let high = usize::from(block[66 + i / 8] >> (i % 8) & 1) << 8;
            let signs = block[74 + i / 2] >> (4 * (i % 2));
            out.put(i, &IQ3_S[usize::from(block[2 + i]) | high], signs);
        }
        out
    }
}

/// `d`; low bytes of 32 entries; of each 32 elements three high bits of its entries, a scale of
/// three bits, and whether levels are shifted down.
pub struct IQ1S;

impl GridBlocks<50> for IQ1S {
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn read(block: &[u8; 50]) -> ScaledLevels {
        let bits = |group: usize| u16_at(block, 34 + 2 * group);
        let scales = array_of(|i| 2 * (bits(i / 2) >> 12 & 7) as u8 + 1);
        let mut out = ScaledLevels::new(u16_at(block, 0), scales);
        for i in 0..32 {
            let high = usize::from(bits(i / 4) >> (3 * (i % 4)) & 7) << 8;
            let entry = &IQ1[usize::from(block[2 + i]) | high];
            out.put_shifted(i, entry, bits(i / 4) & 0x8000 != 0);
        }
        out
    }
}

/// Low bytes of 32 entries; nibbles of three high bits and whether the entry's levels are shifted
/// down; scales of 16 groups, three bits each, and in the top nibbles of their words `d`.
pub struct IQ1M;

impl IQ1M {
    /// `d`, an f16.
    #[inline(always)]
    pub fn d(block: &[u8]) -> u16 {
        (0..4).fold(0, |d, i| d | (u16_at(block, 48 + 2 * i) >> 12) << (4 * i))
    }
}

impl GridBlocks<56> for IQ1M {
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn read(block: &[u8; 56]) -> ScaledLevels {
        let scales =
            array_of(|i| 2 * (u16_at(block, 48 + i / 4 * 2) >> (3 * (i % 4)) & 7) as u8 + 1);
        let mut out = ScaledLevels::new(IQ1M::d(block), scales);
        for i in 0..32 {
            let bits = block[32 + i / 2] >> (4 * (i % 2));
            let entry = &IQ1[usize::from(block[i]) | usize::from(bits & 7) << 8];
            out.put_shifted(i, entry, bits & 8 != 0);
        }
        out
    }
}

/// Five ternary digits a byte, the first of 160, then 80, then 16 elements far apart; `d`.
pub struct TQ1_0;

impl GridBlocks<54> for TQ1_0 {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn read(block: &[u8; 54]) -> ScaledLevels {
        let mut out = ScaledLevels::new(u16_at(block, 52), [1; 16]);
        for (i, out) in out.levels.iter_mut().enumerate() {
            let (byte, digit) = match i {
                0..160 => (i % 32, i / 32),
                160..240 => (32 + i % 16, (i - 160) / 16),
                _ => (48 + i % 4, (i - 240) / 4),
            };
            // A byte is a fraction of 256: times three, the digit is above the point.
            let fraction = block[byte].wrapping_mul([1, 3, 9, 27, 81][digit]);
            *out = ((u16::from(fraction) * 3) >> 8) as i8 - 1;
        }
        out
    }
}

/// Two-bit elements, 32 elements in the lowest ones of as many bytes; `d`.
pub struct TQ2_0;

impl GridBlocks<66> for TQ2_0 {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn read(block: &[u8; 66]) -> ScaledLevels {
        let mut out = ScaledLevels::new(u16_at(block, 64), [1; 16]);
        for (i, out) in out.levels.iter_mut().enumerate() {
            *out = (block[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) as i8 - 1;
        }
        out
    }
}
