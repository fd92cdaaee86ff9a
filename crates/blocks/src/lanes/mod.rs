//! Sixteen numbers at a time, in vector registers where the processor has them.

use super::half_to_f32;
use std::array;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

/// What a block's elements are computed with. Products and sums are rounded one by one, as ggml's
/// are, but for those that are named "multiply-add".
pub trait Lanes: Copy {
    /// Sixteen f32.
    type F32s: Copy;
    /// Sixteen i32.
    type I32s: Copy;

    /// Whether sixteen f32 fill one of 32 registers, not two of 16.
    fn has_32_registers(self) -> bool {
        false
    }

    /// Zeros.
    fn zero(self) -> Self::F32s;

    /// Zeros.
    fn zero_i32s(self) -> Self::I32s;

    /// What `values` holds.
    fn load(self, values: &[f32; 16]) -> Self::F32s;

    /// Adds the products of both 16-bit halves of pair `i` and `b` to lane `i`; the pairs are a column
    /// of [`transpose_pairs`](Self::transpose_pairs).
    fn multiply_add_halves(self, a: &[u32; 16], b: u32, acc: Self::I32s) -> Self::I32s;

    /// `ints[i] * (scales[i] * factor) + acc[i]`, with multiply-add.
    fn scale_add(
        self,
        ints: Self::I32s,
        scales: &[f32; 16],
        factor: f32,
        acc: Self::F32s,
    ) -> Self::F32s;

    /// `a[i] * b[i] + acc[i]`.
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], acc: Self::F32s) -> Self::F32s;

    /// `a[i] * b[i]`, where the compiler might take sixteen instructions.
    #[inline(always)]
    fn multiply(self, a: &[f32; 16], b: &[f32; 16]) -> [f32; 16] {
        array_of(|i| a[i] * b[i])
    }

    /// Adds the products of `levels` and `x` to some lanes, those of each half times its scale, with
    /// multiply-add. At most four are added before, which is exact.
    fn multiply_add_pairs(
        self,
        levels: &[i8; 32],
        x: &[i16; 32],
        scales: [f32; 2],
        acc: Self::F32s,
    ) -> Self::F32s;

    /// Whether [`multiply_bytes`](Self::multiply_bytes) is quick: products of bytes in one
    /// instruction.
    fn has_byte_products(self) -> bool {
        false
    }

    /// Adds up, four by four, the products of levels below 128 and x, which is 256 times its first
    /// half and its second: exact.
    #[inline(always)]
    fn multiply_bytes(self, levels: &[u8; 64], x: &[[i8; 64]; 2]) -> Self::I32s {
        let _ = (levels, x);
        unreachable!("asked for without byte products")
    }

    /// Adds up products of `levels` and `x`, each pair of them in a lane.
    #[inline(always)]
    fn multiply_words(self, levels: &[i8; 32], x: &[i16; 32]) -> Self::I32s {
        let _ = (levels, x);
        unreachable!("asked for without byte products")
    }

    /// `ints[i] * scales[i] + acc[i]`, with multiply-add.
    #[inline(always)]
    fn multiply_add_ints(
        self,
        ints: Self::I32s,
        scales: &[f32; 16],
        acc: Self::F32s,
    ) -> Self::F32s {
        self.scale_add(ints, scales, 1.0, acc)
    }

    /// `values[indices[i]]`, of indices below 16.
    #[inline(always)]
    fn permute(self, values: &[f32; 16], indices: &[u32; 16]) -> [f32; 16] {
        array_of(|i| values[indices[i] as usize & 15])
    }

    /// The bits of `mask` of each byte, the first 32 shifted by the first of `left`, the others by the
    /// second: to the right where it is negative, at most by seven. A bit stays in its byte.
    #[inline(always)]
    fn shift_halves(self, halves: [&[u8; 32]; 2], left: [i32; 2], mask: u8) -> [u8; 64] {
        let half = |i: usize| -> [u8; 32] { map(*halves[i], |byte| shift(byte, left[i]) & mask) };
        join(&half(0), &half(1))
    }

    /// The lower nibbles of the first sixteen bytes, their upper ones, and those of the others.
    #[inline(always)]
    fn nibbles(self, halves: [&[u8; 16]; 2]) -> [u8; 64] {
        let half = |i: usize| -> [u8; 32] { array_of(|j| halves[i][j % 16] >> (j / 16 * 4) & 15) };
        join(&half(0), &half(1))
    }

    /// Pairs of `levels` that follow each other, as 16-bit halves.
    #[inline(always)]
    fn widen_pairs(self, levels: &[i8; 32]) -> [u32; 16] {
        let half = |level: i8| u32::from(i16::from(level).cast_unsigned());
        array_of(|i| half(levels[2 * i]) | half(levels[2 * i + 1]) << 16)
    }

    /// Transposes sixteen rows of sixteen 32-bit elements.
    #[inline(always)]
    fn transpose(self, rows: &[[u32; 16]; 16]) -> [[u32; 16]; 16] {
        array_of(|i| array_of(|j| rows[j][i]))
    }

    /// Transposes sixteen rows of [`widen_pairs`](Self::widen_pairs), for
    /// [`multiply_add_halves`](Self::multiply_add_halves).
    #[inline(always)]
    fn transpose_pairs(self, rows: &[[u32; 16]; 16]) -> [[u32; 16]; 16] {
        self.transpose(rows)
    }

    /// What `acc` holds.
    fn values(self, acc: Self::F32s) -> [f32; 16];

    /// `levels[i]` as f32.
    #[inline(always)]
    fn widen(self, levels: &[i8; 16], out: &mut [f32; 16]) {
        out.iter_mut().zip(levels).for_each(|(out, &level)| *out = f32::from(level));
    }

    /// Sixteen f16, little-endian.
    #[inline(always)]
    fn widen_halves(self, stored: &[[u8; 2]; 16]) -> [f32; 16] {
        array_of(|i| half_to_f32(u16::from_le_bytes(stored[i])))
    }

    /// `table[indices[i]]`, of indices below 16.
    #[inline(always)]
    fn look_up(self, table: &[i8; 16], indices: [u8; 16]) -> [i8; 16] {
        array_of(|i| table[usize::from(indices[i] & 15)])
    }

    /// Element `i` is `value` where bit `i` is set, 0 elsewhere.
    #[inline(always)]
    fn spread_bits(self, bits: u64, value: u8) -> [u8; 64] {
        let bytes: [u8; 64] = array_of(|i| bits.to_le_bytes()[i / 8]);
        array_of(|i| if bytes[i] & 1 << (i % 8) != 0 { value } else { 0 })
    }

    /// The number of an f16.
    #[inline(always)]
    fn half_to_f32(self, bits: u16) -> f32 {
        half_to_f32(bits)
    }
}

/// `first`, then `second`.
#[inline(always)]
fn join(first: &[u8; 32], second: &[u8; 32]) -> [u8; 64] {
    pulp::cast([*first, *second])
}

/// `byte`, shifted to the left, or to the right where `left` is negative.
#[inline(always)]
fn shift(byte: u8, left: i32) -> u8 {
    if left < 0 { byte >> -left } else { byte << left }
}

/// Asks for the memory at `next` before it is read: that of rows that are read side by side comes
/// late otherwise.
#[inline(always)]
pub fn prefetch<T>(next: Option<&T>) {
    #[cfg(target_arch = "x86_64")]
    if let Some(next) = next {
        safe_arch::prefetch_t0(next);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = next;
}

/// The sum of sixteen numbers, by halves.
#[inline(always)]
pub fn sum(values: [f32; 16]) -> f32 {
    let eight: [f32; 8] = array_of(|i| values[i] + values[i + 8]);
    let four: [f32; 4] = array_of(|i| eight[i] + eight[i + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// The array of `f(i)`: a loop that the compiler vectorises, where it calls `array::from_fn`.
#[inline(always)]
pub fn array_of<T: Copy + Default, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    out.iter_mut().enumerate().for_each(
        #[inline(always)]
        |(i, out)| *out = f(i),
    );
    out
}

/// As `array.map(f)`, likewise.
#[inline(always)]
pub fn map<A: Copy, T: Copy + Default, const N: usize>(
    array: [A; N],
    f: impl Fn(A) -> T,
) -> [T; N] {
    array_of(|i| f(array[i]))
}

/// Without vector registers, or with those that the compiler may use everywhere.
#[derive(Clone, Copy)]
pub struct Portable;

impl Lanes for Portable {
    type F32s = [f32; 16];
    type I32s = [i32; 16];

    #[inline(always)]
    fn zero(self) -> [f32; 16] {
        [0.0; 16]
    }

    #[inline(always)]
    fn zero_i32s(self) -> [i32; 16] {
        [0; 16]
    }

    #[inline(always)]
    fn load(self, values: &[f32; 16]) -> [f32; 16] {
        *values
    }

    #[inline(always)]
    fn multiply_add_halves(self, a: &[u32; 16], b: u32, acc: [i32; 16]) -> [i32; 16] {
        let halves = |pair: u32| [pair as i16, (pair >> 16) as i16].map(i32::from);
        let [b_low, b_high] = halves(b);
        array::from_fn(|i| {
            let [low, high] = halves(a[i]);
            acc[i] + (low * b_low + high * b_high)
        })
    }

    #[inline(always)]
    fn scale_add(
        self,
        ints: [i32; 16],
        scales: &[f32; 16],
        factor: f32,
        acc: [f32; 16],
    ) -> [f32; 16] {
        array::from_fn(|i| ints[i] as f32 * (scales[i] * factor) + acc[i])
    }

    #[inline(always)]
    fn multiply_add(self, a: &[f32; 16], b: &[f32; 16], acc: [f32; 16]) -> [f32; 16] {
        array::from_fn(|i| a[i] * b[i] + acc[i])
    }

    #[inline(always)]
    fn multiply_add_pairs(
        self,
        levels: &[i8; 32],
        x: &[i16; 32],
        scales: [f32; 2],
        acc: [f32; 16],
    ) -> [f32; 16] {
        let product = |i: usize| i32::from(levels[i]) * i32::from(x[i]);
        array::from_fn(|i| (product(2 * i) + product(2 * i + 1)) as f32 * scales[i / 8] + acc[i])
    }

    #[inline(always)]
    fn values(self, acc: [f32; 16]) -> [f32; 16] {
        acc
    }
}
