//! The formats of 256 elements in groups of 16 or 32, each with a scale of its own in a few bits.
//!
//! The low bits of `2 * k` groups share the same bytes at different shifts, so a format is written
//! group by group: which bytes, which shift, which scale. `d` and `dmin` are f16.

use super::{Blocks, Codec, Lanes, field, half_at, halves};
use gpu_types::BlockFormat;
use std::array;

/// The formats here.
pub(super) const CODECS: &[(BlockFormat, Codec)] = &[
    (BlockFormat::Q2_K, Codec::of_blocks::<Q2K, _, _>()),
    (BlockFormat::Q3_K, Codec::of_blocks::<Q3K, _, _>()),
    (BlockFormat::Q4_K, Codec::of_blocks::<Q4K, _, _>()),
    (BlockFormat::Q5_K, Codec::of_blocks::<Q5K, _, _>()),
    (BlockFormat::Q6_K, Codec::of_blocks::<Q6K, _, _>()),
];

/// Scales and minima of 16 groups (a nibble each), two-bit elements, `d`, `dmin`:
/// `d * scale * q - dmin * min`.
pub struct Q2K;

impl Blocks<84, 256> for Q2K {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 84], out: &mut [f32; 256]) {
        let scales: &[u8; 16] = field(block, 0);
        let low_bits: &[u8; 64] = field(block, 16);
        let (d, dmin) = (half_at(lanes, block, 80), half_at(lanes, block, 82));
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let (first, shift) = two_bit_group(group);
            let scale = d * f32::from(scales[group] & 15);
            let min = dmin * f32::from(scales[group] >> 4);
            let q = field::<16>(low_bits, first).map(|byte| byte >> shift & 3);
            lanes.affine(q, scale, -min, out);
        }
    }
}

/// 256 third bits, two-bit elements, six-bit scales of 16 groups, `d`:
/// `d * (scale - 32) * (q - 4)`.
pub struct Q3K;

impl Blocks<110, 256> for Q3K {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 110], out: &mut [f32; 256]) {
        let high_bits: &[u8; 32] = field(block, 0);
        let low_bits: &[u8; 64] = field(block, 32);
        let scales: &[u8; 12] = field(block, 96);
        let d = half_at(lanes, block, 108);
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let low_scale = scales[group % 8] >> (4 * (group / 8)) & 15;
            let high_scale = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
            let scale = d * (i32::from(low_scale | high_scale << 4) - 32) as f32;
            let (first, shift) = two_bit_group(group);
            let low: &[u8; 16] = field(low_bits, first);
            let high: &[u8; 16] = field(high_bits, first % 32);
            let q = array::from_fn(|i| (low[i] >> shift & 3) | (high[i] >> (group / 2) & 1) << 2);
            lanes.centred(q, 4.0, scale, out);
        }
    }
}

/// `d`, `dmin`, six-bit scales and minima of 8 groups, nibbles:
/// `d * scale * q - dmin * min`.
pub struct Q4K;

impl Blocks<144, 256> for Q4K {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 144], out: &mut [f32; 256]) {
        let (d, dmin) = (half_at(lanes, block, 0), half_at(lanes, block, 2));
        let nibbles: &[u8; 128] = field(block, 16);
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = six_bit_scale_and_min(field(block, 4), group);
            let (scale, min) = (d * scale, dmin * min);
            for (half, out) in halves(out).into_iter().enumerate() {
                let bytes: &[u8; 16] = field(nibbles, group / 2 * 32 + half * 16);
                let q = bytes.map(|byte| byte >> (4 * (group % 2)) & 15);
                lanes.affine(q, scale, -min, out);
            }
        }
    }
}

/// As [`Q4K`], with 256 fifth bits between scales and nibbles.
pub struct Q5K;

impl Blocks<176, 256> for Q5K {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 176], out: &mut [f32; 256]) {
        let (d, dmin) = (half_at(lanes, block, 0), half_at(lanes, block, 2));
        let high_bits: &[u8; 32] = field(block, 16);
        let nibbles: &[u8; 128] = field(block, 48);
        for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (scale, min) = six_bit_scale_and_min(field(block, 4), group);
            let (scale, min) = (d * scale, dmin * min);
            for (half, out) in halves(out).into_iter().enumerate() {
                let low: &[u8; 16] = field(nibbles, group / 2 * 32 + half * 16);
                let high: &[u8; 16] = field(high_bits, half * 16);
                let q = array::from_fn(|i| {
                    (low[i] >> (4 * (group % 2)) & 15) | (high[i] >> group & 1) << 4
                });
                lanes.affine(q, scale, -min, out);
            }
        }
    }
}

/// Nibbles, two more bits of each element, signed scales of 16 groups, `d`:
/// `d * scale * (q - 32)`.
pub struct Q6K;

impl Blocks<210, 256> for Q6K {
    #[inline(always)]
    fn decode(lanes: impl Lanes, block: &[u8; 210], out: &mut [f32; 256]) {
        let low_bits: &[u8; 128] = field(block, 0);
        let high_bits: &[u8; 64] = field(block, 128);
        let scales: &[u8; 16] = field(block, 192);
        let d = half_at(lanes, block, 208);
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            // Nibbles: 64 bytes a half of the block, its lower nibbles first.
            let (half, in_half) = (group / 8, group % 8);
            let low: &[u8; 16] = field(low_bits, half * 64 + in_half % 4 * 16);
            let (first, shift) = two_bit_group(group);
            let high: &[u8; 16] = field(high_bits, first);
            let scale = d * f32::from(scales[group].cast_signed());
            let q = array::from_fn(|i| {
                (low[i] >> (4 * (in_half / 4)) & 15) | (high[i] >> shift & 3) << 4
            });
            lanes.centred(q, 32.0, scale, out);
        }
    }
}

/// Where the two bits of an element of group `group` of 16 are: the first byte of the group's 16,
/// and the shift. Each half of the block has 32 bytes, which four pairs of groups share.
#[inline(always)]
fn two_bit_group(group: usize) -> (usize, usize) {
    let (half, in_half) = (group / 8, group % 8);
    (half * 32 + in_half % 2 * 16, 2 * (in_half / 2))
}

/// Scale and minimum of group `group` of eight: six bits each, the upper two of groups 4 to 7 in
/// the bytes of 0 to 3.
#[inline(always)]
fn six_bit_scale_and_min(packed: &[u8; 12], group: usize) -> (f32, f32) {
    let (scale, min) = match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => (
            (packed[group + 4] & 15) | packed[group - 4] >> 6 << 4,
            packed[group + 4] >> 4 | packed[group] >> 6 << 4,
        ),
    };
    (scale.into(), min.into())
}
