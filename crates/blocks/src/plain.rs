//! Element types that stand alone, and products of few rows of x with weights in them: sixteen
//! elements at a time are converted in registers.

use super::lanes::{Lanes, array_of, map, sum};
use super::{Arch, WeightRows, WithLanes, dispatch, half_to_f32};
use std::marker::PhantomData;

/// Columns that a step takes, and whose sums do not wait for each other: two vectors.
const STEP: usize = 32;

/// A type whose elements stand alone.
pub trait Plain<const BYTES: usize> {
    /// Whether elements have scales besides.
    const HAS_SCALES: bool = false;

    /// The number that is stored.
    fn read(stored: &[u8; BYTES]) -> f32;

    /// Sixteen numbers.
    #[inline(always)]
    fn widen(_: impl Lanes, stored: &[[u8; BYTES]; 16]) -> [f32; 16] {
        array_of(|i| Self::read(&stored[i]))
    }
}

/// Little-endian f32.
pub struct F32;

impl Plain<4> for F32 {
    #[inline(always)]
    fn read(stored: &[u8; 4]) -> f32 {
        f32::from_le_bytes(*stored)
    }
}

/// Little-endian f16.
pub struct F16;

impl Plain<2> for F16 {
    #[inline(always)]
    fn read(stored: &[u8; 2]) -> f32 {
        half_to_f32(u16::from_le_bytes(*stored))
    }

    #[inline(always)]
    fn widen(lanes: impl Lanes, stored: &[[u8; 2]; 16]) -> [f32; 16] {
        lanes.widen_halves(stored)
    }
}

/// The upper half of a little-endian f32.
pub struct BF16;

impl Plain<2> for BF16 {
    #[inline(always)]
    fn read(&[low, high]: &[u8; 2]) -> f32 {
        f32::from_le_bytes([0, 0, low, high])
    }
}

/// E4M3, without its scale.
pub struct E4M3;

impl Plain<1> for E4M3 {
    const HAS_SCALES: bool = true;

    #[inline(always)]
    fn read(&[stored]: &[u8; 1]) -> f32 {
        gpu_types::E4m3::from_bits(stored).to_f32()
    }
}

/// Inner products of rows of a weight with rows of x: calls the last argument with the row of x,
/// the row of the weight and their product. The bits of a row of x do not depend on the others.
pub type PlainProducts = fn(Arch, WeightRows, &[&[f32]], &mut dyn FnMut(usize, usize, f32));

/// [`PlainProducts`] of elements of `F`. As many rows of the weight and of x at once as there are
/// registers for their sums.
pub(super) fn products<F: Plain<BYTES>, const BYTES: usize>(
    arch: Arch,
    weight: WeightRows,
    x: &[&[f32]],
    out: &mut dyn FnMut(usize, usize, f32),
) {
    let mut first = 0;
    while first < x.len() {
        let rest = &x[first..];
        match rest.len() {
            1 => products_of::<F, BYTES, 4, 1>(arch, weight, first, rest, out),
            2 | 3 => products_of::<F, BYTES, 4, 2>(arch, weight, first, rest, out),
            _ => products_of::<F, BYTES, 2, 4>(arch, weight, first, rest, out),
        }
        first += match rest.len() {
            len @ (1 | 2) => len,
            3 => 2,
            _ => 4,
        };
    }
}

/// `R` rows of the weight at a time and the first `T` rows of `x`, of which the first has the index
/// `first`.
fn products_of<F: Plain<BYTES>, const BYTES: usize, const R: usize, const T: usize>(
    arch: Arch,
    weight: WeightRows,
    first: usize,
    x: &[&[f32]],
    out: &mut dyn FnMut(usize, usize, f32),
) {
    let x = *x.first_chunk().expect("T rows of x");
    let mut sums = vec![[0.0; T]; weight.num_rows()];
    dispatch(arch, RowsTimesX::<F, BYTES, R, T> { weight, x, sums: &mut sums, of: PhantomData });
    for (n, sums) in sums.iter().enumerate() {
        sums.iter().enumerate().for_each(|(t, &sum)| out(first + t, n, sum));
    }
}

struct RowsTimesX<'a, F, const BYTES: usize, const R: usize, const T: usize> {
    weight: WeightRows<'a>,
    x: [&'a [f32]; T],
    sums: &'a mut [[f32; T]],
    of: PhantomData<F>,
}

impl<F: Plain<BYTES>, const BYTES: usize, const R: usize, const T: usize> WithLanes
    for RowsTimesX<'_, F, BYTES, R, T>
{
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let RowsTimesX { weight, x, sums, .. } = self;
        let (together, rest) = sums.as_chunks_mut::<R>();
        let first_rest = together.len() * R;
        for (i, sums) in together.iter_mut().enumerate() {
            *sums = rows_times_x::<_, F, BYTES, R, T>(lanes, weight, i * R, x);
        }
        for (i, sums) in rest.iter_mut().enumerate() {
            [*sums] = rows_times_x::<_, F, BYTES, 1, T>(lanes, weight, first_rest + i, x);
        }
    }
}

/// `R` rows of the weight from `first` on.
#[inline(always)]
fn rows_times_x<L: Lanes, F: Plain<BYTES>, const BYTES: usize, const R: usize, const T: usize>(
    lanes: L,
    weight: WeightRows,
    first: usize,
    x: [&[f32]; T],
) -> [[f32; T]; R] {
    let (width, steps) = (weight.width(), weight.width() / STEP);
    let rows: [&[[u8; BYTES]]; R] =
        array_of(|r| &weight.bytes().as_chunks().0[(first + r) * width..][..width]);
    let scale = |r: usize, step: usize| weight.scale(first + r, step * STEP);
    let whole: [&[[[u8; BYTES]; STEP]]; R] = map(rows, |row| &row.as_chunks().0[..steps]);
    let x_whole: [&[[f32; STEP]]; T] = map(x, |x| &x.as_chunks().0[..steps]);
    let mut acc = [[[lanes.zero(); 2]; T]; R];
    for step in 0..steps {
        for r in 0..R {
            let scale = if F::HAS_SCALES { scale(r, step) } else { 1.0 };
            let stored = whole[r][step].as_chunks().0;
            for half in 0..2 {
                let mut weight = F::widen(lanes, &stored[half]);
                if F::HAS_SCALES {
                    weight = map(weight, |element| element * scale);
                }
                for t in 0..T {
                    let x = &x_whole[t][step].as_chunks().0[half];
                    acc[r][t][half] = lanes.multiply_add(&weight, x, acc[r][t][half]);
                }
            }
        }
    }
    let mut sums = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            let [low, high] = map_values(lanes, acc[r][t]);
            let rest = rows[r][steps * STEP..].iter().zip(&x[t][steps * STEP..]);
            let scale = if F::HAS_SCALES && steps * STEP < width { scale(r, steps) } else { 1.0 };
            let rest: f32 = rest.map(|(weight, x)| F::read(weight) * scale * x).sum();
            sums[r][t] = rest + sum(array_of(|i| low[i] + high[i]));
        }
    }
    sums
}

/// What both hold.
#[inline(always)]
fn map_values<L: Lanes>(lanes: L, [low, high]: [L::F32s; 2]) -> [[f32; 16]; 2] {
    [lanes.values(low), lanes.values(high)]
}
