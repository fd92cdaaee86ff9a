//! Element types that stand alone, and products of few rows of x with weights in them: sixteen
//! elements at a time are converted in registers.

use super::lanes::{Lanes, array_of, map, sum};
use super::{Arch, WeightRows, WithLanes, dispatch, half_to_f32};
use std::marker::PhantomData;

/// Columns that a step takes, and whose sums do not wait for each other: four vectors, a part of a
/// block of scales.
const STEP: usize = 64;

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

/// [`PlainProducts`] of elements of `F`.
pub(super) fn products<F: Plain<BYTES>, const BYTES: usize>(
    arch: Arch,
    weight: WeightRows,
    x: &[&[f32]],
    out: &mut dyn FnMut(usize, usize, f32),
) {
    let mut first = 0;
    while first < x.len() {
        let rest = &x[first..];
        first += match rest.len() {
            1 => products_of::<F, BYTES, 1>(arch, weight, first, rest, out),
            2 | 3 => products_of::<F, BYTES, 2>(arch, weight, first, rest, out),
            _ => products_of::<F, BYTES, 4>(arch, weight, first, rest, out),
        };
    }
}

/// The first `T` rows of `x`, of which the first has the index `first`; gives `T`.
fn products_of<F: Plain<BYTES>, const BYTES: usize, const T: usize>(
    arch: Arch,
    weight: WeightRows,
    first: usize,
    x: &[&[f32]],
    out: &mut dyn FnMut(usize, usize, f32),
) -> usize {
    let x = *x.first_chunk().expect("T rows of x");
    let mut sums = vec![[0.0; T]; weight.num_rows()];
    dispatch(arch, RowsTimesX::<F, BYTES, T> { weight, x, sums: &mut sums, of: PhantomData });
    for (n, sums) in sums.iter().enumerate() {
        sums.iter().enumerate().for_each(|(t, &sum)| out(first + t, n, sum));
    }
    T
}

/// The weight is read from its beginning to its end: memory is fastest so.
struct RowsTimesX<'a, F, const BYTES: usize, const T: usize> {
    weight: WeightRows<'a>,
    x: [&'a [f32]; T],
    sums: &'a mut [[f32; T]],
    of: PhantomData<F>,
}

impl<F: Plain<BYTES>, const BYTES: usize, const T: usize> WithLanes
    for RowsTimesX<'_, F, BYTES, T>
{
    #[inline(always)]
    fn run(self, lanes: impl Lanes) {
        let RowsTimesX { weight, x, sums, .. } = self;
        let rows = weight.bytes().as_chunks().0.chunks_exact(weight.width());
        for (n, (row, sums)) in rows.zip(sums).enumerate() {
            let scale = |column| if F::HAS_SCALES { weight.scale(n, column) } else { 1.0 };
            *sums = row_times_x::<F, BYTES, T>(lanes, row, scale, x);
        }
    }
}

/// `scale` is that of a column.
#[inline(always)]
fn row_times_x<F: Plain<BYTES>, const BYTES: usize, const T: usize>(
    lanes: impl Lanes,
    row: &[[u8; BYTES]],
    scale: impl Fn(usize) -> f32,
    x: [&[f32]; T],
) -> [f32; T] {
    let (steps, rest) = row.as_chunks::<STEP>();
    let x_steps: [&[[f32; STEP]]; T] = map(x, |x| &x.as_chunks().0[..steps.len()]);
    let mut acc = [[lanes.zero(); 4]; T];
    for (step, stored) in steps.iter().enumerate() {
        let scale = if F::HAS_SCALES { scale(step * STEP) } else { 1.0 };
        for (i, stored) in stored.as_chunks().0.iter().enumerate() {
            let mut weight = F::widen(lanes, stored);
            if F::HAS_SCALES {
                weight = map(weight, |element| element * scale);
            }
            for t in 0..T {
                let x = &x_steps[t][step].as_chunks().0[i];
                acc[t][i] = lanes.multiply_add(&weight, x, acc[t][i]);
            }
        }
    }
    let first_rest = row.len() - rest.len();
    let rest_scale = if F::HAS_SCALES && !rest.is_empty() { scale(first_rest) } else { 1.0 };
    array_of(|t| {
        let [a, b, c, d] = map(acc[t], |acc| lanes.values(acc));
        let sums = array_of(|i| (a[i] + b[i]) + (c[i] + d[i]));
        let rest = rest.iter().zip(&x[t][first_rest..]);
        sum(sums) + rest.map(|(weight, x)| F::read(weight) * rest_scale * x).sum::<f32>()
    })
}
