//! The formats of 32 elements with one scale `d` (f16) and, where zero is no level, one minimum `m`
//! (f16).
//!
//! Byte `i` of the 16 of nibbles holds element `i` (low) and element `i + 16` (high); bit `i` of
//! `high_bits` belongs to element `i`.

use super::byte_products::ByteBlocks;
use super::lanes::{array_of, map};
use super::{Blocks, Codec, Lanes, Levels, field, half_at};
use gpu_types::BlockFormat;

/// The formats here.
pub(super) const CODECS: &[(BlockFormat, Codec)] = &[
    (BlockFormat::Q4_0, Codec::of_blocks::<Q4_0, _, _, _>().with_bytes::<Q4_0, _, 8>()),
    (BlockFormat::Q4_1, Codec::of_blocks::<Q4_1, _, _, _>().with_bytes::<Q4_1, _, 8>()),
    (BlockFormat::Q5_0, Codec::of_blocks::<Q5_0, _, _, _>().with_bytes::<Q5_0, _, 8>()),
    (BlockFormat::Q5_1, Codec::of_blocks::<Q5_1, _, _, _>().with_bytes::<Q5_1, _, 8>()),
    (BlockFormat::Q8_0, Codec::of_blocks::<Q8_0, _, _, _>().with_bytes::<Q8_0, _, 8>()),
];

/// `d`, nibbles: `d * (q - 8)`.
pub struct Q4_0;

impl Blocks<18, 32, 1> for Q4_0 {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 18]) -> Levels<32, 1> {
        let levels = map(nibbles(field(block, 2)), |q| q.cast_signed() - 8);
        Levels { levels, scales: [half_at(lanes, block, 0)], offsets: [0.0] }
    }
}

impl ByteBlocks<18, 8> for Q4_0 {
    const BIAS: u8 = 8;

    #[inline(always)]
    fn levels(lanes: impl Lanes, blocks: [&[u8; 18]; 8], step: usize) -> [u8; 64] {
        nibble_pair(lanes, blocks, 2, step)
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, blocks: [&[u8; 18]; 8]) -> [[f32; 16]; 2] {
        [numbers(lanes, blocks, 0); 2]
    }
}

/// `d`, `m`, nibbles: `d * q + m`.
pub struct Q4_1;

impl Blocks<20, 32, 1> for Q4_1 {
    const HAS_OFFSETS: bool = true;

    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 20]) -> Levels<32, 1> {
        let levels = map(nibbles(field(block, 4)), u8::cast_signed);
        let [scales, offsets] = [[half_at(lanes, block, 0)], [half_at(lanes, block, 2)]];
        Levels { levels, scales, offsets }
    }
}

impl ByteBlocks<20, 8> for Q4_1 {
    const OFFSETS: f32 = 1.0;

    #[inline(always)]
    fn levels(lanes: impl Lanes, blocks: [&[u8; 20]; 8], step: usize) -> [u8; 64] {
        nibble_pair(lanes, blocks, 4, step)
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, blocks: [&[u8; 20]; 8]) -> [[f32; 16]; 2] {
        [numbers(lanes, blocks, 0), numbers(lanes, blocks, 2)]
    }
}

/// `d`, 32 fifth bits, nibbles: `d * (q - 16)`.
pub struct Q5_0;

impl Blocks<22, 32, 1> for Q5_0 {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 22]) -> Levels<32, 1> {
        let q = with_fifth_bits(lanes, nibbles(field(block, 6)), *field(block, 2));
        let levels = map(q, |q| q.cast_signed() - 16);
        Levels { levels, scales: [half_at(lanes, block, 0)], offsets: [0.0] }
    }
}

impl ByteBlocks<22, 8> for Q5_0 {
    const BIAS: u8 = 16;

    #[inline(always)]
    fn levels(lanes: impl Lanes, blocks: [&[u8; 22]; 8], step: usize) -> [u8; 64] {
        let low = nibble_pair(lanes, blocks, 6, step);
        let fifth = fifth_bits(lanes, blocks, 2, step);
        array_of(|i| low[i] | fifth[i])
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, blocks: [&[u8; 22]; 8]) -> [[f32; 16]; 2] {
        [numbers(lanes, blocks, 0); 2]
    }
}

/// `d`, `m`, 32 fifth bits, nibbles: `d * q + m`.
pub struct Q5_1;

impl Blocks<24, 32, 1> for Q5_1 {
    const HAS_OFFSETS: bool = true;

    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 24]) -> Levels<32, 1> {
        let q = with_fifth_bits(lanes, nibbles(field(block, 8)), *field(block, 4));
        let [scales, offsets] = [[half_at(lanes, block, 0)], [half_at(lanes, block, 2)]];
        Levels { levels: map(q, u8::cast_signed), scales, offsets }
    }
}

impl ByteBlocks<24, 8> for Q5_1 {
    const OFFSETS: f32 = 1.0;

    #[inline(always)]
    fn levels(lanes: impl Lanes, blocks: [&[u8; 24]; 8], step: usize) -> [u8; 64] {
        let low = nibble_pair(lanes, blocks, 8, step);
        let fifth = fifth_bits(lanes, blocks, 4, step);
        array_of(|i| low[i] | fifth[i])
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, blocks: [&[u8; 24]; 8]) -> [[f32; 16]; 2] {
        [numbers(lanes, blocks, 0), numbers(lanes, blocks, 2)]
    }
}

/// `d`, 32 signed bytes: `d * q`.
pub struct Q8_0;

impl Blocks<34, 32, 1> for Q8_0 {
    #[inline(always)]
    fn unpack(lanes: impl Lanes, block: &[u8; 34]) -> Levels<32, 1> {
        let levels = map(*field::<32>(block, 2), u8::cast_signed);
        Levels { levels, scales: [half_at(lanes, block, 0)], offsets: [0.0] }
    }
}

impl ByteBlocks<34, 8> for Q8_0 {
    const WORDS: bool = true;

    #[inline(always)]
    fn levels(_: impl Lanes, blocks: [&[u8; 34]; 8], step: usize) -> [u8; 64] {
        pulp::cast([0, 1].map(|i| *field::<32>(blocks[2 * step + i], 2)))
    }

    #[inline(always)]
    fn scales(lanes: impl Lanes, blocks: [&[u8; 34]; 8]) -> [[f32; 16]; 2] {
        [numbers(lanes, blocks, 0); 2]
    }
}

/// The lower nibbles, then the upper ones.
#[inline(always)]
fn nibbles(bytes: &[u8; 16]) -> [u8; 32] {
    array_of(|i| bytes[i % 16] >> (i / 16 * 4) & 15)
}

#[inline(always)]
fn with_fifth_bits(lanes: impl Lanes, nibbles: [u8; 32], bits: [u8; 4]) -> [u8; 32] {
    let fifth = lanes.spread_bits(u32::from_le_bytes(bits).into(), 16);
    array_of(|i| nibbles[i] | fifth[i])
}

/// Nibbles of two blocks, which are at `start` in each.
#[inline(always)]
fn nibble_pair<const BYTES: usize>(
    lanes: impl Lanes,
    blocks: [&[u8; BYTES]; 8],
    start: usize,
    step: usize,
) -> [u8; 64] {
    lanes.nibbles([field(blocks[2 * step], start), field(blocks[2 * step + 1], start)])
}

/// The fifth bits of two blocks, which are at `start` in each, in their places.
#[inline(always)]
fn fifth_bits<const BYTES: usize>(
    lanes: impl Lanes,
    blocks: [&[u8; BYTES]; 8],
    start: usize,
    step: usize,
) -> [u8; 64] {
    let bits = |block: usize| u64::from(u32::from_le_bytes(*field(blocks[block], start)));
    lanes.spread_bits(bits(2 * step) | bits(2 * step + 1) << 32, 16)
}

/// The f16 at `start` of each block, twice.
#[inline(always)]
fn numbers<const BYTES: usize>(
    lanes: impl Lanes,
    blocks: [&[u8; BYTES]; 8],
    start: usize,
) -> [f32; 16] {
    const TWICE: [u32; 16] = [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7];
    let stored = array_of(|i| if i < 8 { *field(blocks[i], start) } else { [0; 2] });
    lanes.permute(&lanes.widen_halves(&stored), &TWICE)
}
