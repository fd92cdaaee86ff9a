//! How keys and values are stored: element types, and 8 and 4 bits with scales.
//!
//! A page of a head is `[PAGE_SIZE, head_dim]` elements, then `[num_scales, PAGE_SIZE]` scales in
//! f16. An element is its scale times its quant:
//!
//! | format | scale `d` | quant of `x` |
//! | --- | --- | --- |
//! | q8_0, of 32 columns | largest magnitude / 127 | `round(x / d) + 128`, in 1 ..= 255, less 128 |
//! | fp8, of a row | largest magnitude / 448 | `x / d` in E4M3 |
//! | q4_0, of 32 columns | value of largest magnitude / -8 | `floor(x / d + 8.5)`, in 0 ..= 15, less 8 |
//!
//! Keys of q4_0 are those of blocks that went through [`hadamard`](super::hadamard).
//!
//! A 32-bit word of 8- or 4-bit quants holds its even columns first, then the odd ones: what an MMA
//! takes in a register is then two masked bit fields of a word.

use super::PAGE_SIZE;
use crate::element::{Columns, VEC_ELEMS};
use cuda_std::E4m3;
use cuda_std::prelude::*;
use gpu_types::CacheType;
use half::{bf16, f16};

/// Columns that share a scale in q8_0 and q4_0.
pub(crate) const BLOCK_COLUMNS: u32 = CacheType::BLOCK_ELEMS;

/// What a q8_0 quant of 0 is stored as.
const Q8_ZERO: i32 = 128;

/// First byte, in a pool, of the page of `kv_head`.
#[inline(always)]
pub(crate) fn page_start(
    format: CacheType,
    page: u32,
    kv_head: u32,
    num_kv_heads: u32,
    head_dim: u32,
) -> usize {
    let page = page as usize * num_kv_heads as usize + kv_head as usize;
    page * (PAGE_SIZE * format.row_bytes(head_dim)) as usize
}

/// The scale of values of which `key` is the largest [`magnitude_key`].
#[inline(always)]
pub(crate) fn scale(format: CacheType, key: u32) -> f16 {
    let magnitude = f32::from_bits(key >> 1);
    convert::f32_to_f16(match format {
        CacheType::Q4_0 => f32::from_bits(key.rotate_right(1)) / -8.0,
        CacheType::Fp8 => magnitude / E4m3::MAX,
        _ => magnitude / 127.0,
    })
}

/// The quant of `value` times the inverse of its scale.
#[inline(always)]
pub(crate) fn quant(format: CacheType, scaled: f32) -> u32 {
    match format {
        CacheType::Q4_0 => convert::f32_to_i32_rz(scaled + 8.5).clamp(0, 15) as u32,
        CacheType::Fp8 => e4m3_of(scaled),
        _ => (convert::f32_to_i32_rn(scaled).clamp(-127, 127) + Q8_ZERO) as u32,
    }
}

/// Up to eight columns of row `row` of a page of a head; zeros past its end.
///
/// # Safety
/// 1. `page` holds the row and its scales, written; `columns` are those of `head_dim`, from
///    `first` on. Heads of q8_0 and q4_0 are whole blocks.
#[inline(always)]
pub(crate) unsafe fn load(
    format: CacheType,
    page: Global<u8>,
    row: u32,
    head_dim: u32,
    first: u32,
    columns: Columns,
) -> [f32; VEC_ELEMS as usize] {
    let start = (row * format.quant_bytes(head_dim)) as usize;
    let scale = |index: u32| {
        // SAFETY: the caller's promise.
        convert::f16_to_f32(unsafe {
            let scales = page.add((PAGE_SIZE * format.quant_bytes(head_dim)) as usize);
            scales.cast::<f16>().get((index * PAGE_SIZE + row) as usize)
        })
    };
    // SAFETY: the caller's promise.
    unsafe {
        match format {
            CacheType::F32 => columns.load(page.add(start).cast::<f32>()),
            CacheType::F16 => columns.load(page.add(start).cast::<f16>()),
            CacheType::BF16 => columns.load(page.add(start).cast::<bf16>()),
            CacheType::Q4_0 => {
                let word: u32 = page.add(start + first as usize / 2).cast().get(0);
                let scale = scale(first / BLOCK_COLUMNS);
                core::array::from_fn(|column| {
                    let nibble = word >> nibble_shift(column as u32) & 15;
                    scale * (nibble as f32 - 8.0)
                })
            }
            CacheType::Q8_0 => {
                let scale = scale(first / BLOCK_COLUMNS);
                let quants = load_bytes(page.add(start), first, head_dim);
                quants.map(|quant| scale * (quant as i32 - Q8_ZERO) as f32)
            }
            CacheType::Fp8 => {
                let scale = scale(0);
                load_bytes(page.add(start), first, head_dim).map(|code| scale * e4m3_to_f32(code))
            }
        }
    }
}

/// The bytes of columns `first ..` of a row, zeros past its end.
///
/// # Safety
/// 1. `row` holds `head_dim` bytes; `first` is a multiple of 8 below that.
#[inline(always)]
unsafe fn load_bytes(row: Global<u8>, first: u32, head_dim: u32) -> [u8; VEC_ELEMS as usize] {
    let mut bytes = [0; VEC_ELEMS as usize];
    unroll!(i in 0..VEC_ELEMS as usize, {
        let column = first + i as u32;
        if column < head_dim {
            // SAFETY: inside, by the condition.
            bytes[i] = unsafe { row.get(byte_of(column, head_dim) as usize) };
        }
    });
    bytes
}

/// The byte of `column` in a row of 8-bit quants: of four columns first the even ones. A last word
/// that is not whole keeps its order.
#[inline(always)]
pub(crate) const fn byte_of(column: u32, head_dim: u32) -> u32 {
    if column >= head_dim / 4 * 4 {
        return column;
    }
    column / 4 * 4 + column % 4 / 2 + column % 2 * 2
}

/// Orders numbers by magnitude, of two alike the negative one last: all bits but the sign, then it.
#[inline(always)]
pub(crate) fn magnitude_key(value: f32) -> u32 {
    value.to_bits().rotate_left(1)
}

/// The inverse of a scale; 0 for 0, whose values all are.
#[inline(always)]
pub(crate) fn inverse(scale: f16) -> f32 {
    let scale = convert::f16_to_f32(scale);
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// How far the nibble of `column` is shifted in its word.
#[inline(always)]
pub(crate) const fn nibble_shift(column: u32) -> u32 {
    4 * (column % 8 / 2 + column % 2 * 4)
}

/// `x` rounded to the nearest E4M3, ties to even, saturated.
#[inline(always)]
fn e4m3_of(x: f32) -> u32 {
    let (sign, magnitude) = (x.to_bits() >> 24 & 0x80, x.to_bits() & 0x7fff_ffff);
    // Below the least normal number, 2^-6, codes are multiples of 2^-9.
    if f32::from_bits(magnitude) < 0.015_625 {
        return sign | convert::f32_to_u32_rn(f32::from_bits(magnitude) * 512.0);
    }
    // Three bits of fraction, rounded; an exponent with a bias of 7 in place of 127.
    let rounded = magnitude + 0x7_ffff + (magnitude >> 20 & 1);
    sign | ((rounded >> 20).saturating_sub(120 << 3)).min(0x7e)
}

/// The number of an E4M3 code that is no NaN: its bits in place, times the difference of the biases.
#[inline(always)]
fn e4m3_to_f32(code: u8) -> f32 {
    let code = code as u32;
    let scaled = f32::from_bits((code & 0x80) << 24 | (code & 0x7f) << 20);
    scaled * f32::from_bits((127 + 120) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code, every middle between two codes, and what is beside it.
    #[test]
    fn e4m3_is_that_of_the_specification() {
        for code in 0..=0x7eu8 {
            let value = E4m3::from_bits(code).to_f32();
            assert_eq!(e4m3_to_f32(code), value, "{code:#x}");
            assert_eq!(e4m3_to_f32(code | 0x80), -value, "{code:#x}");
            let next = E4m3::from_bits((code + 1).min(0x7e)).to_f32();
            let middle = f32::midpoint(value, next);
            for x in [value, middle, middle.next_up(), middle.next_down(), next] {
                for x in [x, -x] {
                    let want = u32::from(E4m3::from_f32(x).to_bits());
                    assert_eq!(e4m3_of(x), want, "{x}");
                }
            }
        }
        for x in [449.0, 464.0, 1e9, f32::INFINITY] {
            assert_eq!([e4m3_of(x), e4m3_of(-x)], [0x7e, 0xfe], "{x}");
        }
    }
}
