//! Quants as numbers in f16, for fragments of an MMA.

use crate::kv_cache::CacheType;
use cuda_std::prelude::*;
use cuda_std::{E4m3x2, F16x2, f16x2};

/// Quants of a format.
///
/// Word 0 of a fragment's pair is made of the bit fields 0 of the halves of a word, and so on; E4M3
/// on sm_90a, of adjacent bytes.
pub trait KvQuants: Copy {
    /// The format.
    #[doc(hidden)]
    const FORMAT: CacheType;
    /// Bits of a quant.
    #[doc(hidden)]
    const BITS: u32;
    /// Exponent of the power of two that the numbers of [`KvQuants::unpack_k`] are to be multiplied
    /// by, beside the scale.
    #[doc(hidden)]
    const K_EXPONENT: u32;
    /// What those numbers are too large by, as f16, negative; 0 for nothing.
    #[doc(hidden)]
    const K_BIAS: u16;
    /// As [`KvQuants::K_EXPONENT`], of [`KvQuants::unpack_v`].
    #[doc(hidden)]
    const V_EXPONENT: u32;
    /// Exponent of the largest power of two that a scale's product with is an f16.
    #[doc(hidden)]
    const ROOM: u32;
    /// Whether [`KvQuants::unpack_k`] takes columns 0 and 2 of four, then 1 and 3.
    #[doc(hidden)]
    const INTERLEAVED: bool;

    /// The numbers `2 * pair` and `2 * pair + 1` of a word of K.
    #[doc(hidden)]
    fn unpack_k(word: u32, pair: u32) -> u32;

    /// The numbers at bit fields `index` of the two halves of a word.
    #[doc(hidden)]
    fn unpack_v(word: u32, index: u32) -> u32;
}

/// q8_0.
#[derive(Clone, Copy)]
pub struct Q8;

/// E4M3.
#[derive(Clone, Copy)]
pub struct Fp8;

/// q4_0.
#[derive(Clone, Copy)]
pub struct Q4;

/// The f16 of 1024 in both halves: its lowest bits count ones.
const MAGIC: u32 = 0x6400_6400;

/// The lowest bits of an f16 that is no more than them count these: 2^-24.
const SUBNORMAL_EXPONENT: u32 = 24;

impl KvQuants for Q8 {
    const FORMAT: CacheType = CacheType::Q8_0;
    const BITS: u32 = 8;
    const K_EXPONENT: u32 = SUBNORMAL_EXPONENT;
    const K_BIAS: u16 = 0x8080;
    const V_EXPONENT: u32 = 0;
    const ROOM: u32 = 6;
    const INTERLEAVED: bool = false;

    #[inline(always)]
    fn unpack_k(word: u32, pair: u32) -> u32 {
        math::byte_perm(word, 0, 0x4240 + 0x0101 * pair)
    }

    #[inline(always)]
    fn unpack_v(word: u32, index: u32) -> u32 {
        let biased = math::byte_perm(word, MAGIC, 0x7270 + 0x0101 * index);
        // 1024 + 128.
        f16x2::sub(F16x2::from_bits(biased), F16x2::from_bits(0x6480_6480)).to_bits()
    }
}

/// Whether E4M3 is converted by an instruction. Only sm_89 and newer have it.
const CONVERTS_E4M3: bool = cfg!(any(not(target_arch = "nvptx64"), target_feature = "sm_90a"));

/// The exponents of f16 and of E4M3 are biased by 15 and by 7.
const E4M3_EXPONENT: u32 = if CONVERTS_E4M3 { 0 } else { 8 };

/// Two numbers in E4M3 of a half of a word.
#[inline(always)]
fn e4m3_of_half(word: u32, half: u32) -> u32 {
    let codes = E4m3x2::from_bits((word >> (16 * half)) as u16);
    convert::e4m3x2_to_f16x2(codes).to_bits()
}

/// Times 2^-8, the numbers in E4M3 of bytes `index` of the halves of a word: their bits in place.
#[inline(always)]
fn e4m3_in_place(word: u32, index: u32) -> u32 {
    let codes = if index == 0 { word << 8 } else { word };
    codes & 0x8000_8000 | codes >> 1 & 0x3f80_3f80
}

impl KvQuants for Fp8 {
    const FORMAT: CacheType = CacheType::Fp8;
    const BITS: u32 = 8;
    const K_EXPONENT: u32 = E4M3_EXPONENT;
    const K_BIAS: u16 = 0;
    const V_EXPONENT: u32 = E4M3_EXPONENT;
    const ROOM: u32 = 8;
    const INTERLEAVED: bool = CONVERTS_E4M3;

    #[inline(always)]
    fn unpack_k(word: u32, pair: u32) -> u32 {
        if CONVERTS_E4M3 { e4m3_of_half(word, pair) } else { e4m3_in_place(word, pair) }
    }

    #[inline(always)]
    fn unpack_v(word: u32, index: u32) -> u32 {
        if CONVERTS_E4M3 {
            e4m3_of_half(math::byte_perm(word, 0, 0x3120), index)
        } else {
            e4m3_in_place(word, index)
        }
    }
}

impl KvQuants for Q4 {
    const FORMAT: CacheType = CacheType::Q4_0;
    const BITS: u32 = 4;
    const K_EXPONENT: u32 = SUBNORMAL_EXPONENT;
    const K_BIAS: u16 = 0x8008;
    const V_EXPONENT: u32 = 0;
    const ROOM: u32 = 3;
    const INTERLEAVED: bool = false;

    #[inline(always)]
    fn unpack_k(word: u32, pair: u32) -> u32 {
        word >> (4 * pair) & 0x000f_000f
    }

    #[inline(always)]
    fn unpack_v(word: u32, index: u32) -> u32 {
        let biased = math::lop3::<0xea>(word >> (4 * index), 0x000f_000f, MAGIC);
        // 1024 + 8.
        f16x2::sub(F16x2::from_bits(biased), F16x2::from_bits(0x6408_6408)).to_bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    fn numbers(words: u32, exponent: u32) -> [f32; 2] {
        [words as u16, (words >> 16) as u16]
            .map(|bits| f16::from_bits(bits).to_f32() * (exponent as f32).exp2())
    }

    /// All bytes, at every place of a word.
    #[test]
    fn bytes_are_the_numbers_of_the_format() {
        for byte in 0..=255u32 {
            let word = byte | (255 - byte) << 8 | (byte ^ 1) << 16 | (byte ^ 128) << 24;
            let q8 = |index: u32| (word >> (8 * index) & 255) as f32;
            for index in 0..2 {
                let bias = f16::from_bits(Q8::K_BIAS).to_f32() * 24f32.exp2();
                let k = numbers(Q8::unpack_k(word, index), Q8::K_EXPONENT);
                assert_eq!(k.map(|x| x + bias), [q8(index) - 128.0, q8(index + 2) - 128.0]);
                let v = numbers(Q8::unpack_v(word, index), Q8::V_EXPONENT);
                assert_eq!(v, [q8(index) - 128.0, q8(index + 2) - 128.0]);
            }
        }
    }

    /// Without the instruction, all codes but the NaN are those of the instruction over 2^8.
    #[test]
    fn e4m3_in_place_is_that_of_the_instruction() {
        for code in (0..=255u32).filter(|code| code & 0x7f != 0x7f) {
            let word = code | 0x1200 | code << 16 | 0x3400_0000;
            for index in 0..2 {
                let in_place = numbers(e4m3_in_place(word, index), 8);
                assert_eq!(in_place, numbers(Fp8::unpack_v(word, index), 0), "{code:#x}");
            }
            let [k0, k1] = [0, 1].map(|pair| numbers(Fp8::unpack_k(word, pair), 0));
            let [v0, v1] = [0, 1].map(|index| numbers(Fp8::unpack_v(word, index), 0));
            assert_eq!([k0[0], k0[1], k1[0], k1[1]], [v0[0], v1[0], v0[1], v1[1]]);
        }
    }

    #[test]
    fn nibbles_are_the_numbers_of_the_format() {
        for word in [0x7654_3210u32, 0xfedc_ba98, 0x0f1e_2d3c] {
            for index in 0..4 {
                let of = |half: u32| (word >> (16 * half + 4 * index) & 15) as f32 - 8.0;
                let bias = f16::from_bits(Q4::K_BIAS).to_f32() * 24f32.exp2();
                let k = numbers(Q4::unpack_k(word, index), Q4::K_EXPONENT).map(|x| x + bias);
                assert_eq!(k, [of(0), of(1)]);
                assert_eq!(numbers(Q4::unpack_v(word, index), 0), [of(0), of(1)]);
            }
        }
    }
}
