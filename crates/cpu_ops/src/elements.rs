//! Stored elements (f32, f16, bf16) and their conversion to and from f32.

use crate::{OutOfMemory, host_memory};
use blocks::{Arch, decoder};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use plan::Dtype;
use std::ops::Range;

/// NaN in every type: all bits set.
pub const POISON: f32 = f32::from_bits(u32::MAX);

const WORD_BYTES: usize = size_of::<f32>();

/// Words of four bytes that hold `len` elements of `dtype`.
pub fn words(dtype: Dtype, len: usize) -> usize {
    (len * dtype.block_bytes()).div_ceil(WORD_BYTES)
}

/// Elements of one type.
pub struct Buffer {
    dtype: Dtype,
    len: usize,
    words: Vec<f32>,
}

impl Buffer {
    /// `len` elements, all zero.
    pub fn zeroed(dtype: Dtype, len: usize) -> Self {
        Buffer { dtype, len, words: vec![0.0; words(dtype, len)] }
    }

    /// `len` elements, all zero; memory is taken when they are first touched.
    ///
    /// # Errors
    /// [`OutOfMemory`], which names `what` they are for.
    pub fn try_zeroed(what: &str, dtype: Dtype, len: usize) -> Result<Self, OutOfMemory> {
        Ok(Buffer { dtype, len, words: host_memory::zeroed(what, words(dtype, len))? })
    }

    /// Bytes in memory.
    pub fn stored_bytes(&self) -> usize {
        size_of_val(&self.words[..])
    }

    /// Sets every element to NaN.
    pub fn poison(&mut self) {
        self.words.fill(POISON);
    }

    pub fn elements(&self) -> Elements<'_> {
        Elements::new(self.dtype, &self.words, self.len)
    }

    pub fn elements_mut(&mut self) -> ElementsMut<'_> {
        ElementsMut::new(self.dtype, &mut self.words, self.len)
    }
}

/// Elements to read.
#[derive(Clone, Copy)]
pub enum Elements<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    BF16(&'a [bf16]),
}

impl<'a> Elements<'a> {
    /// The first `len` elements in `words`.
    pub fn new(dtype: Dtype, words: &'a [f32], len: usize) -> Self {
        let halves = || -> &'a [u16] { bytemuck::cast_slice(words) };
        match dtype {
            Dtype::F16 => Elements::F16(&halves().reinterpret_cast()[..len]),
            Dtype::BF16 => Elements::BF16(&halves().reinterpret_cast()[..len]),
            _ => Elements::F32(&words[..len]),
        }
    }

    pub fn slice(self, range: Range<usize>) -> Self {
        match self {
            Elements::F32(values) => Elements::F32(&values[range]),
            Elements::F16(values) => Elements::F16(&values[range]),
            Elements::BF16(values) => Elements::BF16(&values[range]),
        }
    }

    /// Writes all of them to `out`, exactly.
    pub fn widen_to(self, out: &mut [f32]) {
        let mut widen = |dtype, halves: &[u16]| {
            let decode = decoder(dtype).expect("a floating-point type");
            decode(Arch::new(), bytemuck::cast_slice(halves), out);
        };
        match self {
            Elements::F32(values) => out.copy_from_slice(values),
            Elements::F16(values) => widen(Dtype::F16, values.reinterpret_cast()),
            Elements::BF16(values) => widen(Dtype::BF16, values.reinterpret_cast()),
        }
    }
}

/// Elements to write.
pub enum ElementsMut<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    BF16(&'a mut [bf16]),
}

impl<'a> ElementsMut<'a> {
    /// The first `len` elements in `words`.
    pub fn new(dtype: Dtype, words: &'a mut [f32], len: usize) -> Self {
        match dtype {
            Dtype::F16 => ElementsMut::F16(&mut halves_mut(words).reinterpret_cast_mut()[..len]),
            Dtype::BF16 => ElementsMut::BF16(&mut halves_mut(words).reinterpret_cast_mut()[..len]),
            _ => ElementsMut::F32(&mut words[..len]),
        }
    }

    /// Writes `values` from element `start` on, rounded to nearest even.
    pub fn narrow(&mut self, start: usize, values: &[f32]) {
        let range = start..start + values.len();
        match self {
            ElementsMut::F32(elements) => elements[range].copy_from_slice(values),
            ElementsMut::F16(elements) => elements[range].convert_from_f32_slice(values),
            ElementsMut::BF16(elements) => elements[range].convert_from_f32_slice(values),
        }
    }
}

/// Rounds each value to the nearest of `dtype`, as storing it does.
pub fn round(dtype: Dtype, values: &mut [f32]) {
    let mut stored = Buffer::zeroed(dtype, values.len());
    stored.elements_mut().narrow(0, values);
    stored.elements().widen_to(values);
}

fn halves_mut(words: &mut [f32]) -> &mut [u16] {
    bytemuck::cast_slice_mut(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A third of the way to the next number, the middle (once to the lower number, once to the upper), beyond all.
    #[test]
    fn narrowing_rounds_to_nearest_even() {
        for (dtype, ulp, largest) in
            [(Dtype::F16, 1.0 / 1024.0, 65504.0), (Dtype::BF16, 1.0 / 128.0, f32::MAX)]
        {
            let values = [1.0 + ulp / 3.0, 1.0 + ulp / 2.0, 1.0 + 1.5 * ulp, largest * 2.0];
            let mut buffer = Buffer::zeroed(dtype, 6);
            buffer.elements_mut().narrow(1, &values);
            let wanted = [0.0, 1.0, 1.0, 1.0 + 2.0 * ulp, f32::INFINITY, 0.0];
            let mut wide = [f32::NAN; 6];
            buffer.elements().widen_to(&mut wide);
            assert_eq!(wide, wanted, "{dtype}");
        }
    }

    #[test]
    fn a_buffer_is_as_long_as_its_elements() {
        for (dtype, bytes) in [(Dtype::F32, 20), (Dtype::F16, 12), (Dtype::BF16, 12)] {
            let mut buffer = Buffer::zeroed(dtype, 5);
            buffer.poison();
            assert_eq!(buffer.stored_bytes(), bytes, "whole words");
            let mut wide = [0.0; 5];
            buffer.elements().widen_to(&mut wide);
            assert!(wide.iter().all(|value| value.is_nan()), "{dtype}");
        }
    }
}
