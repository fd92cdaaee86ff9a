//! A pool of the cache whose elements have scales: quantised when they are appended, dequantised
//! when they are read.
//!
//! | type | scale `d`, rounded to f16 | element `x` is stored as | and read as |
//! | --- | --- | --- | --- |
//! | q8_0 | largest magnitude / 127 | `round(x / d) + 128`, in 1 ..= 255 | `d * (q - 128)` |
//! | fp8 | largest magnitude / 448 | `x / d` rounded to E4M3 | `d * q` |
//! | q4_0 | value of largest magnitude / -8 | `floor(x / d + 8.5)`, in 0 ..= 15 | `d * (q - 8)` |
//!
//! Keys of q4_0 are rotated before, in each block of 32 columns:
//! `y[i] = sum_j (-1)^popcount(i & j) x[j] / sqrt(32)`, its own inverse. They are read so.
//!
//! What is not finite makes its scale so, and with it all elements that share it NaN.

use crate::{OutOfMemory, host_memory};
use blocks::{Arch, decoder};
use gpu_types::E4m3;
use half::f16;
use plan::{CacheType, Dtype, PAGE_SIZE};
use std::borrow::Cow;
use std::f32::consts::FRAC_1_SQRT_2;
use std::ops::Range;

/// Pages of a head, as [`KvLayout`](plan::KvLayout) says.
pub struct QuantisedPool {
    cache_type: CacheType,
    is_rotated: bool,
    head_dim: usize,
    bytes: Vec<u8>,
}

impl QuantisedPool {
    /// `num_pages` pages of a head, of keys or of values, which hold nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(
        cache_type: CacheType,
        of_keys: bool,
        head_dim: usize,
        num_pages: usize,
    ) -> Result<Self, OutOfMemory> {
        let page_bytes = PAGE_SIZE * cache_type.row_bytes(head_dim as u32) as usize;
        let len = num_pages.saturating_mul(page_bytes);
        let mut bytes = host_memory::zeroed("the KV cache", len)?;
        if cfg!(debug_assertions) {
            // Scales of NaN.
            bytes.fill(u8::MAX);
        }
        let is_rotated = of_keys && cache_type.rotates_keys();
        Ok(QuantisedPool { cache_type, is_rotated, head_dim, bytes })
    }

    /// Bytes in memory.
    pub fn stored_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of quants and of scales of a page of a head.
    fn part_bytes(&self) -> [usize; 2] {
        let row =
            [self.cache_type.quant_bytes(self.head_dim as u32) as usize, 2 * self.num_scales()];
        row.map(|bytes| PAGE_SIZE * bytes)
    }

    fn num_scales(&self) -> usize {
        self.cache_type.num_scales(self.head_dim as u32) as usize
    }

    /// Elements that share a scale.
    fn group(&self) -> usize {
        self.head_dim / self.num_scales()
    }

    /// Stores `values` as row `row` of page `page`.
    pub fn store(&mut self, page: usize, row: usize, values: &[f32]) {
        let ([quant_bytes, scale_bytes], group) = (self.part_bytes(), self.group());
        let mut values = Cow::from(values);
        if self.is_rotated {
            rotate(values.to_mut());
        }
        let start = page * (quant_bytes + scale_bytes);
        let page = &mut self.bytes[start..][..quant_bytes + scale_bytes];
        let (quants, scales) = page.split_at_mut(quant_bytes);
        let row_bytes = quant_bytes / PAGE_SIZE;
        let quants = &mut quants[row * row_bytes..][..row_bytes];
        let parts = values
            .chunks_exact(group)
            .zip(quants.chunks_exact_mut(row_bytes * group / self.head_dim));
        for (index, (values, quants)) in parts.enumerate() {
            let scale = quantise(self.cache_type, values, quants);
            let scale_row = index * PAGE_SIZE + row;
            scales[2 * scale_row..][..2].copy_from_slice(&scale.to_le_bytes());
        }
    }

    /// Writes rows `rows` of page `page` to `out`, `stride` elements apart.
    pub fn load(&self, page: usize, rows: Range<usize>, stride: usize, out: &mut [f32]) {
        match self.cache_type {
            CacheType::Q4_0 => self.load_by(dequantise_q4_0, page, rows, stride, out),
            CacheType::Fp8 => self.load_by(dequantise_fp8, page, rows, stride, out),
            _ => self.load_by(dequantise_q8_0, page, rows, stride, out),
        }
    }

    /// [`QuantisedPool::load`] by a function that reads the elements of quants that share a scale.
    fn load_by(
        &self,
        dequantise: impl Fn(&[u8], f32, &mut [f32]),
        page: usize,
        rows: Range<usize>,
        stride: usize,
        out: &mut [f32],
    ) {
        let ([quant_bytes, scale_bytes], group) = (self.part_bytes(), self.group());
        let start = page * (quant_bytes + scale_bytes);
        let page = &self.bytes[start..][..quant_bytes + scale_bytes];
        let (quants, scales) = page.split_at(quant_bytes);
        let row_bytes = quant_bytes / PAGE_SIZE;
        let quants = &quants[rows.start * row_bytes..rows.end * row_bytes];
        let widen = decoder(Dtype::F16).expect("a floating-point type");
        let mut wide = [0.0; PAGE_SIZE];
        let wide = &mut wide[..rows.len()];
        for (index, scales) in scales.chunks_exact(2 * PAGE_SIZE).enumerate() {
            widen(Arch::new(), &scales[2 * rows.start..2 * rows.end], wide);
            let group_bytes = row_bytes * group / self.head_dim;
            let rows = quants.chunks_exact(row_bytes).zip(out.chunks_exact_mut(stride));
            Arch::new().dispatch(
                #[inline(always)]
                || {
                    for ((quants, out), &scale) in rows.zip(&*wide) {
                        let quants = &quants[index * group_bytes..][..group_bytes];
                        dequantise(quants, scale, &mut out[index * group..][..group]);
                    }
                },
            );
        }
    }
}

/// Multiplies each block of 32 by the Hadamard matrix over `sqrt(32)`: sums and differences of
/// columns whose indices differ in a bit, one bit after the other.
pub fn rotate(values: &mut [f32]) {
    for block in values.as_chunks_mut::<32>().0 {
        for bit in [1, 2, 4, 8, 16] {
            for low in (0..32).filter(|column| column & bit == 0) {
                let (a, b) = (block[low], block[low + bit]);
                (block[low], block[low + bit]) = (a + b, a - b);
            }
        }
        block.iter_mut().for_each(|value| *value *= FRAC_1_SQRT_2 / 4.0);
    }
}

/// Stores the quants of `values`, which share a scale; returns it.
fn quantise(cache_type: CacheType, values: &[f32], quants: &mut [u8]) -> f16 {
    let largest = largest(values);
    let scale = f16::from_f32(match cache_type {
        CacheType::Q4_0 => largest / -8.0,
        CacheType::Fp8 => largest.abs() / E4m3::MAX,
        _ => largest.abs() / 127.0,
    });
    let inverse = if scale.to_f32() == 0.0 { 0.0 } else { 1.0 / scale.to_f32() };
    let scaled = values.iter().map(|value| value * inverse);
    match cache_type {
        CacheType::Q4_0 => {
            quants.fill(0);
            for (column, value) in scaled.enumerate() {
                let quant = (value + 8.5).floor().clamp(0.0, 15.0) as u8;
                let (byte, shift) = nibble(column);
                quants[byte] |= quant << shift;
            }
        }
        CacheType::Fp8 => {
            for (column, value) in scaled.enumerate() {
                quants[byte(column, values.len())] = E4m3::from_f32(value).to_bits();
            }
        }
        _ => {
            for (column, value) in scaled.enumerate() {
                let quant = value.round_ties_even().clamp(-127.0, 127.0) as i8;
                quants[byte(column, values.len())] = (i16::from(quant) + 128) as u8;
            }
        }
    }
    scale
}

/// Reads the elements of `quants`, which share a scale.
#[inline(always)]
fn dequantise_q8_0(quants: &[u8], scale: f32, values: &mut [f32]) {
    for (quants, values) in quants.as_chunks().0.iter().zip(values.as_chunks_mut::<16>().0) {
        for (value, quant) in values.iter_mut().zip(in_order(quants)) {
            *value = scale * (f32::from(quant) - 128.0);
        }
    }
}

/// As [`dequantise_q8_0`].
#[inline(always)]
fn dequantise_fp8(quants: &[u8], scale: f32, values: &mut [f32]) {
    let ((quants, last_quants), (values, last)) =
        (quants.as_chunks(), values.as_chunks_mut::<16>());
    let read = |quant| scale * E4m3::from_bits(quant).to_f32();
    for (quants, values) in quants.iter().zip(values) {
        for (value, quant) in values.iter_mut().zip(in_order(quants)) {
            *value = read(quant);
        }
    }
    let len = last.len();
    for (column, value) in last.iter_mut().enumerate() {
        *value = read(last_quants[byte(column, len)]);
    }
}

/// As [`dequantise_q8_0`].
#[inline(always)]
fn dequantise_q4_0(quants: &[u8], scale: f32, values: &mut [f32]) {
    const SHIFTS: [u32; 8] = [0, 16, 4, 20, 8, 24, 12, 28];
    for (&quants, values) in quants.as_chunks().0.iter().zip(values.as_chunks_mut::<8>().0) {
        let quants = u32::from_le_bytes(quants);
        for (value, shift) in values.iter_mut().zip(SHIFTS) {
            *value = scale * ((quants >> shift & 15) as f32 - 8.0);
        }
    }
}

/// Four words of bytes in the order of their columns.
#[inline(always)]
fn in_order(words: &[u8; 16]) -> [u8; 16] {
    let mut ordered = [0; 16];
    for (word, ordered) in words.as_chunks().0.iter().zip(ordered.as_chunks_mut().0) {
        let word = u32::from_le_bytes(*word);
        let outer = word & 0xFF00_00FF;
        *ordered = (outer | word >> 8 & 0xFF00 | (word & 0xFF00) << 8).to_le_bytes();
    }
    ordered
}

/// The value of largest magnitude; one that is not finite is larger than any that is.
fn largest(values: &[f32]) -> f32 {
    let key = |value: f32| value.to_bits().rotate_left(1);
    values.iter().copied().max_by_key(|&value| key(value)).unwrap_or(0.0)
}

/// The byte of `column` of `len`: of four columns first the even ones; a last word that is not
/// whole keeps its order.
fn byte(column: usize, len: usize) -> usize {
    if column >= len / 4 * 4 {
        return column;
    }
    column / 4 * 4 + column % 4 / 2 + column % 2 * 2
}

/// Byte, and shift in it, of the nibble of `column`: of eight columns first the even ones.
fn nibble(column: usize) -> (usize, usize) {
    let nibble = column % 8 / 2 + column % 2 * 4;
    (column / 8 * 4 + nibble / 2, nibble % 2 * 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [CacheType; 3] = [CacheType::Q8_0, CacheType::Fp8, CacheType::Q4_0];

    /// A head of 64 in the last row of the second page, of values or of keys.
    fn stored(cache_type: CacheType, of_keys: bool, values: &[f32]) -> Vec<f32> {
        let mut pool = QuantisedPool::new(cache_type, of_keys, values.len(), 2).unwrap();
        let last = PAGE_SIZE - 1;
        pool.store(1, last, values);
        let mut read = vec![f32::NAN; values.len()];
        pool.load(1, last..PAGE_SIZE, values.len(), &mut read);
        if pool.is_rotated {
            rotate(&mut read);
        }
        read
    }

    #[test]
    fn zeros_stay_zeros_beside_other_blocks() {
        for (cache_type, of_keys) in TYPES.into_iter().flat_map(|of| [(of, false), (of, true)]) {
            let mut values = [0.0; 64];
            assert_eq!(stored(cache_type, of_keys, &values), values, "{cache_type}");
            values[32..].fill(-2.0);
            let read = stored(cache_type, of_keys, &values);
            assert_eq!(read[..32], values[..32], "{cache_type}");
            let is_close = |read: &f32| (read + 2.0).abs() < 2e-3;
            assert!(read[32..].iter().all(is_close), "{cache_type}: {read:?}");
        }
    }

    /// A scale is that of a block of 32, but in fp8: there of the head.
    #[test]
    fn what_is_not_finite_is_seen() {
        for (cache_type, of_keys) in TYPES.into_iter().flat_map(|of| [(of, false), (of, true)]) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9] {
                let mut values = [1.0; 64];
                values[40] = bad;
                let read = stored(cache_type, of_keys, &values);
                let first = if cache_type == CacheType::Fp8 { 0 } else { 32 };
                let is_kept = |value: &f32| (value - 1.0).abs() < 1e-2;
                assert!(read[..first].iter().all(is_kept), "{cache_type}: {bad}");
                assert!(
                    read[first..].iter().all(|value| !value.is_finite()),
                    "{cache_type}: {bad}"
                );
            }
        }
    }

    /// What is stored of a rotated row, read without rotating it back, beside the matrix in f64.
    #[test]
    fn keys_of_4_bits_are_rotated_by_the_hadamard_matrix() {
        for cache_type in TYPES {
            for head_dim in [32, 64, 96] {
                let values: Vec<f32> =
                    (0..head_dim).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
                let mut pool = QuantisedPool::new(cache_type, true, head_dim, 1).unwrap();
                pool.store(0, 3, &values);
                let mut stored = vec![f32::NAN; head_dim];
                pool.load(0, 3..4, head_dim, &mut stored);
                let mut back = stored.clone();
                assert_eq!(pool.is_rotated, cache_type == CacheType::Q4_0);
                if pool.is_rotated {
                    rotate(&mut back);
                }
                for (at, stored) in stored.iter().enumerate() {
                    let block = &values[at / 32 * 32..][..32];
                    let sign = |j: usize| 1.0 - 2.0 * f64::from(((at % 32) & j).count_ones() % 2);
                    let rotated =
                        (0..32).map(|j| sign(j) * f64::from(block[j])).sum::<f64>() / 32f64.sqrt();
                    let want = match cache_type {
                        CacheType::Q4_0 => rotated,
                        _ => f64::from(values[at]),
                    };
                    // Half a step: of a largest magnitude of up to 4, an eighth of it.
                    let step = if cache_type == CacheType::Q4_0 { 0.5 } else { 0.07 };
                    let off = (f64::from(*stored) - want).abs();
                    assert!(off <= step / 2.0 * 1.01, "{cache_type}: {at}: {stored}, not {want}");
                    let off = (back[at] - values[at]).abs();
                    assert!(off <= 0.7, "{cache_type}: {at}: {}, not {}", back[at], values[at]);
                }
            }
        }
    }

    #[test]
    fn an_outlier_costs_its_block_alone() {
        let values: Vec<f32> = (0..64).map(|i| if i == 5 { 300.0 } else { 0.5 }).collect();
        let read = stored(CacheType::Q8_0, false, &values);
        assert!((read[5] - 300.0).abs() < 0.2 && read[6] == 0.0, "{read:?}");
        assert!(read[32..].iter().all(|value| (value - 0.5).abs() < 3e-3), "{read:?}");
    }
}
