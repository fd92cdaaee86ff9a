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

use crate::vectors::{Vectors, WithVectors, dispatch};
use crate::{OutOfMemory, host_memory};
use blocks::{Arch, half_to_f32};
use gpu_types::E4m3;
use half::f16;
use plan::{CacheType, PAGE_SIZE};
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
    pub fn load(
        &self,
        arch: Arch,
        page: usize,
        rows: Range<usize>,
        stride: usize,
        out: &mut [f32],
    ) {
        let [quant_bytes, scale_bytes] = self.part_bytes();
        let start = page * (quant_bytes + scale_bytes);
        let page = &self.bytes[start..][..quant_bytes + scale_bytes];
        let (quants, scales) = page.split_at(quant_bytes);
        let row_bytes = quant_bytes / PAGE_SIZE;
        let quants = quants[rows.start * row_bytes..rows.end * row_bytes].chunks_exact(row_bytes);
        let scales = &scales.as_chunks().0[rows.start..];
        let rows = quants.zip(out.chunks_exact_mut(stride));
        let head_dim = self.head_dim;
        match self.cache_type {
            CacheType::Q4_0 => dispatch(arch, Load { rows, scales, head_dim, cache_type: Q4_0 }),
            CacheType::Fp8 => dispatch(arch, Load { rows, scales, head_dim, cache_type: Fp8 }),
            _ => dispatch(arch, Load { rows, scales, head_dim, cache_type: Q8_0 }),
        }
    }
}

/// Rows that follow each other in a page of type `T`.
struct Load<'a, T, R> {
    /// Quants, and where their elements go.
    rows: R,
    /// Scales from that of the first row on.
    scales: &'a [[u8; 2]],
    head_dim: usize,
    cache_type: T,
}

impl<'a, T: Dequantise, R: Iterator<Item = (&'a [u8], &'a mut [f32])>> WithVectors
    for Load<'_, T, R>
{
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let Load { rows, scales, head_dim, cache_type } = self;
        for (row, (quants, out)) in rows.enumerate() {
            let scales = scales[row..].iter().step_by(PAGE_SIZE);
            let scales = scales.map(|scale| half_to_f32(u16::from_le_bytes(*scale)));
            cache_type.dequantise(simd, quants, scales, &mut out[..head_dim]);
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

/// A type of the cache with scales.
trait Dequantise {
    /// Reads the elements of a row.
    fn dequantise(
        &self,
        simd: impl Vectors,
        quants: &[u8],
        scales: impl Iterator<Item = f32>,
        out: &mut [f32],
    );
}

struct Q8_0;

impl Dequantise for Q8_0 {
    #[inline(always)]
    fn dequantise(
        &self,
        simd: impl Vectors,
        quants: &[u8],
        scales: impl Iterator<Item = f32>,
        out: &mut [f32],
    ) {
        let blocks = quants.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<32>().0);
        for ((quants, out), scale) in blocks.zip(scales) {
            for (quants, out) in quants.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
                simd.scale_bytes(quants, scale, out);
            }
        }
    }
}

struct Fp8;

impl Dequantise for Fp8 {
    #[inline(always)]
    fn dequantise(
        &self,
        _: impl Vectors,
        quants: &[u8],
        mut scales: impl Iterator<Item = f32>,
        out: &mut [f32],
    ) {
        let scale = scales.next().expect("a head has a scale");
        let ((quants, last_quants), (out, last_out)) =
            (quants.as_chunks(), out.as_chunks_mut::<16>());
        for (quants, out) in quants.iter().zip(out) {
            for (out, quant) in out.iter_mut().zip(in_order(quants)) {
                *out = scale * E4m3::from_bits(quant).to_f32();
            }
        }
        let len = last_out.len();
        for (column, out) in last_out.iter_mut().enumerate() {
            *out = scale * E4m3::from_bits(last_quants[byte(column, len)]).to_f32();
        }
    }
}

struct Q4_0;

impl Dequantise for Q4_0 {
    #[inline(always)]
    fn dequantise(
        &self,
        _: impl Vectors,
        quants: &[u8],
        scales: impl Iterator<Item = f32>,
        out: &mut [f32],
    ) {
        const SHIFTS: [u32; 8] = [0, 16, 4, 20, 8, 24, 12, 28];
        let blocks = quants.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<32>().0);
        for ((quants, out), scale) in blocks.zip(scales) {
            for (&quants, out) in quants.as_chunks().0.iter().zip(out.as_chunks_mut::<8>().0) {
                let quants = u32::from_le_bytes(quants);
                for (out, shift) in out.iter_mut().zip(SHIFTS) {
                    *out = scale * ((quants >> shift & 15) as f32 - 8.0);
                }
            }
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
    use crate::vectors::archs;

    const TYPES: [CacheType; 3] = [CacheType::Q8_0, CacheType::Fp8, CacheType::Q4_0];

    /// A head of 64 in the last row of the second page, of values or of keys.
    fn stored(cache_type: CacheType, of_keys: bool, values: &[f32]) -> Vec<f32> {
        let mut pool = QuantisedPool::new(cache_type, of_keys, values.len(), 2).unwrap();
        let last = PAGE_SIZE - 1;
        pool.store(1, last, values);
        let mut read = vec![f32::NAN; values.len()];
        pool.load(Arch::new(), 1, last..PAGE_SIZE, values.len(), &mut read);
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
                pool.load(Arch::new(), 0, 3..4, head_dim, &mut stored);
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

    /// Rows of whole vectors and more, and gaps between them, which stay as they are.
    #[test]
    fn every_instruction_set_reads_the_same() {
        for (cache_type, head_dim) in TYPES
            .into_iter()
            .flat_map(|of| [32, 96].map(|head_dim| (of, head_dim)))
            .chain([(CacheType::Fp8, 23)])
        {
            let mut pool = QuantisedPool::new(cache_type, true, head_dim, 2).unwrap();
            for row in 5..8 {
                pool.store(1, row, &crate::testing::random(row as u64, head_dim));
            }
            let stride = head_dim + 3;
            let read = |arch| {
                let mut out = vec![7.0; 3 * stride];
                pool.load(arch, 1, 5..8, stride, &mut out);
                assert!(out.chunks_exact(stride).all(|row| row[head_dim..] == [7.0; 3]));
                out
            };
            let wanted = read(Arch::Scalar);
            for arch in archs() {
                assert_eq!(read(arch), wanted, "{arch:?}: {cache_type}, {head_dim}");
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
