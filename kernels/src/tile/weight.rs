//! How a weight is stored: in the type of the operands, or in E4M3, which a lane converts after it
//! has loaded it.

use crate::element::Half;
use cuda_std::prelude::*;
use cuda_std::{E4m3, E4m3x2, Element};
use half::{bf16, f16};

/// Bytes of a lane's load.
const LOAD_BYTES: usize = 16;

/// A lane's load of 16 bytes.
pub type Load = [u32; LOAD_BYTES / size_of::<u32>()];

/// Most `VEC_ELEMS` that a load of a weight has.
pub const MAX_VECS: usize = 2;

/// The elements of a weight in memory, multiplied as `E`.
pub trait WeightElement<E: Half>: Element {
    /// Elements of a load.
    const LOAD_ELEMS: u32 = (LOAD_BYTES / size_of::<Self>()) as u32;

    /// Loads of `E` that a load of these becomes.
    const VECS: usize = size_of::<E>() / size_of::<Self>();

    /// Whether there are scales.
    const IS_SCALED: bool;

    /// What the numbers of [`WeightElement::operands`] are multiplied by, beside the scales.
    const FACTOR: f32;

    /// Elements `4 * quad .. 4 * quad + 4` of a load, two to a word: of A or B of an MMA.
    fn operands(load: &Load, quad: usize) -> [u32; 2];
}

macro_rules! unscaled {
    ($($half:ty),*) => {$(
        impl WeightElement<$half> for $half {
            const IS_SCALED: bool = false;
            const FACTOR: f32 = 1.0;

            #[inline(always)]
            fn operands(load: &Load, quad: usize) -> [u32; 2] {
                [load[2 * quad], load[2 * quad + 1]]
            }
        }
    )*};
}

unscaled!(f16, bf16);

/// The scales of a weight whose elements are [scaled](WeightElement::IS_SCALED).
#[derive(Clone, Copy)]
pub struct Scales {
    /// `[rows]`, or `[rows / SCALE_BLOCK, k / SCALE_BLOCK]`, rounded up.
    pub scales: Global<f32>,
    /// Scales from a row of blocks to the next; 0 where each row of the weight has a scale.
    pub stride: u32,
}

/// Rows of a block that shares a scale, and its elements along k.
pub const SCALE_BLOCK: u32 = 128;

impl Scales {
    /// Issues the load of the scale of the block with a row's element `k`; 1 where rows have
    /// scales, 0 unless `condition` holds.
    ///
    /// # Safety
    /// 1. If `condition` holds, there is such an element.
    #[inline(always)]
    pub unsafe fn block_scale(&self, row: u32, k: u32, condition: bool) -> f32 {
        if self.stride == 0 {
            return 1.0;
        }
        let block = row / SCALE_BLOCK * self.stride + k / SCALE_BLOCK;
        // SAFETY: the caller's promise.
        let [scale] = unsafe { self.scales.wrapping_add(block as usize).get_vec_if(0, condition) };
        scale
    }

    /// Issues the load of the scale of a row; 1 where blocks have scales.
    ///
    /// # Safety
    /// 1. There is such a row.
    #[inline(always)]
    pub unsafe fn row_scale(&self, row: u32) -> f32 {
        // SAFETY: the caller's promise.
        if self.stride == 0 { unsafe { self.scales.get(row as usize) } } else { 1.0 }
    }
}

/// Whether E4M3 is converted by an instruction. Only sm_89 and newer have it.
const CONVERTS_E4M3: bool = cfg!(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"));

impl WeightElement<f16> for E4m3 {
    const IS_SCALED: bool = true;

    /// The exponents of f16 and of E4M3 are biased by 15 and by 7.
    const FACTOR: f32 = if CONVERTS_E4M3 { 1.0 } else { 256.0 };

    #[inline(always)]
    fn operands(load: &Load, quad: usize) -> [u32; 2] {
        if CONVERTS_E4M3 { converted(load[quad]) } else { in_place(load[quad]) }
    }
}

/// The four numbers of a word.
#[inline(always)]
fn converted(word: u32) -> [u32; 2] {
    let pair = |codes: u16| convert::e4m3x2_to_f16x2(E4m3x2::from_bits(codes)).to_bits();
    [pair(word as u16), pair((word >> 16) as u16)]
}

/// The four numbers of a word, times 2^-8: their bits in the places of those of f16. Subnormal
/// numbers stay exact; the code of NaN becomes 480.
#[inline(always)]
fn in_place(word: u32) -> [u32; 2] {
    // Bytes 1 and 3 are the first two numbers, bytes 0 and 2 the others.
    let word = math::byte_perm(word, 0, 0x1302);
    let spread = |codes: u32| codes & 0x8000_8000 | codes >> 1 & 0x3f80_3f80;
    [spread(word), spread(word << 8)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_std::F16x2;

    #[test]
    fn both_conversions_are_exact() {
        for code in (0..=u8::MAX).filter(|code| code & 0x7f != 0x7f) {
            for place in 0..4 {
                let word = 0x0138_d681 & !(0xff << (8 * place)) | u32::from(code) << (8 * place);
                let numbers = |words: [u32; 2]| {
                    words.map(F16x2::from_bits).map(|pair| [pair.lo(), pair.hi()].map(f16::to_f32))
                };
                let want = word.to_le_bytes().map(|code| E4m3::from_bits(code).to_f32());
                let [[a, b], [c, d]] = numbers(converted(word));
                assert_eq!([a, b, c, d], want, "{word:#x}");
                let [[a, b], [c, d]] = numbers(in_place(word));
                assert_eq!([a, b, c, d].map(|x| 256.0 * x), want, "{word:#x}");
            }
        }
    }
}
