//! Quants of four bits and more, and numbers in the bytes and halves of words.

use super::{Source, UNIT_STEPS};
use cuda_std::F16x2;
use cuda_std::prelude::*;

/// Quants of four bits and `HIGH_BITS` more (0, 1 or 2), of which a byte of the low ones has two
/// rows: a lane's unit.
#[derive(Clone, Copy, Default)]
pub struct Nibbles<const HIGH_BITS: usize> {
    /// A word a step: columns 0, 8, 1, 9 of the lane's from the lowest byte on; the upper row in
    /// the lower nibbles.
    pub low: [u32; UNIT_STEPS],
    /// The high bits: a plane, see [`add_plane`].
    pub high: [u32; 2],
}

impl<const HIGH_BITS: usize> Nibbles<HIGH_BITS> {
    /// Bytes of a unit.
    pub const BYTES: u32 = 512 + 128 * HIGH_BITS as u32;

    /// As [`Format::load_unit`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn load(unit: impl Source) -> Self {
        let lane = warp::lane_id();
        let high = unit.from(4 * HIGH_BITS as u32 * lane);
        // SAFETY: the caller's promise.
        unsafe {
            let low = unit.from(16 * lane).words(0);
            let high = match HIGH_BITS {
                0 => [0; 2],
                1 => {
                    let [word] = high.words(512);
                    [word, 0]
                }
                _ => high.words(512),
            };
            Nibbles { low, high }
        }
    }

    /// As [`Format::fragment`].
    #[inline(always)]
    pub fn fragment(&self, step: usize) -> [u32; 4] {
        let low = self.low[step];
        let mut words = [
            low & 0x000f_000f,
            low & 0x00f0_00f0,
            (low >> 8) & 0x000f_000f,
            (low >> 8) & 0x00f0_00f0,
        ];
        if HIGH_BITS > 0 {
            add_plane::<HIGH_BITS>(&mut words, &self.high, step, 4);
        }
        words
    }
}

/// Quants of two bits and `HIGH_BITS` more (0 or 1): a lane's unit.
#[derive(Clone, Copy, Default)]
pub struct TwoBits<const HIGH_BITS: usize> {
    /// The lower two bits: a plane, see [`add_plane`].
    pub low: [u32; 2],
    /// The third bits: a plane, see [`add_plane`].
    pub high: u32,
}

impl<const HIGH_BITS: usize> TwoBits<HIGH_BITS> {
    /// Bytes of a unit.
    pub const BYTES: u32 = 256 + 128 * HIGH_BITS as u32;

    /// As [`Format::load_unit`].
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn load(unit: impl Source) -> Self {
        let lane = warp::lane_id();
        // SAFETY: the caller's promise.
        unsafe {
            let low = unit.from(8 * lane).words(0);
            let [high] = if HIGH_BITS > 0 { unit.from(4 * lane).words(256) } else { [0] };
            TwoBits { low, high }
        }
    }

    /// As [`Format::fragment`].
    #[inline(always)]
    pub fn fragment(&self, step: usize) -> [u32; 4] {
        let mut words = [0; 4];
        add_plane::<2>(&mut words, &self.low, step, 0);
        if HIGH_BITS > 0 {
            add_plane::<1>(&mut words, &[self.high], step, 2);
        }
        words
    }
}

/// Adds the bits of step `step` in a plane, `BITS` bits (1 or 2) of each quant, to the quants in
/// `words`: there they are bits `to` on, `to` at most 4.
///
/// A word of a plane has `4 / BITS` steps. In each half of it bits `BITS * step` on are those of the
/// lower row's second column, those 4, 8 and 12 further on are of the upper row's first, the lower
/// row's first and the upper row's second.
#[inline(always)]
fn add_plane<const BITS: usize>(words: &mut [u32; 4], plane: &[u32], step: usize, to: usize) {
    let (word, shift) = (plane[step * BITS / 4], step * BITS % 4 + 4 - to);
    let mask = (((1 << BITS) - 1) << to) * 0x0001_0001;
    // Bytes of each half swapped, the second columns' bits are where the first's are.
    let first = word >> shift;
    words[0] |= first & mask;
    words[1] |= first & (mask << 4);
    let second = math::byte_perm(word, 0, 0x2301) >> shift;
    words[2] |= second & mask;
    words[3] |= second & (mask << 4);
}

/// The byte `byte` of four, as a float; `BIAS` is subtracted.
#[inline(always)]
pub fn byte_to_f32<const BIAS: u32>(bytes: u32, byte: usize) -> f32 {
    /// 2^23: its last bit counts 1.
    const ONES: u32 = 0x4b00_0000;
    let bits = math::byte_perm(bytes, ONES, 0x7440 | byte as u32);
    f32::from_bits(bits) - (f32::from_bits(ONES) + BIAS as f32)
}

/// The f16 `half` of a word, as a float.
#[inline(always)]
pub fn half_to_f32(word: u32, half: usize) -> f32 {
    let pair = F16x2::from_bits(word);
    convert::f16_to_f32(if half == 0 { pair.lo() } else { pair.hi() })
}
