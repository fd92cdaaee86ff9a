//! A launch's operands, with the oracle's own arithmetic, and its result in f64.

use crate::layout::{Place, STEPS, swizzled};
use cuda_std::wgmma::{Element, FragmentA, Major, Swizzle};
use cuda_std::{E4m3, E5m2};
use half::{bf16, f16};

/// An element as sign, exponent and mantissa.
pub trait Float: Element + Send + Sync + 'static {
    const EXPONENT_BITS: u32;
    const MANTISSA_BITS: u32;
}

macro_rules! floats {
    ($($float:ty: $exponent:literal, $mantissa:literal;)*) => {$(
        impl Float for $float {
            const EXPONENT_BITS: u32 = $exponent;
            const MANTISSA_BITS: u32 = $mantissa;
        }
    )*};
}

floats! { f16: 5, 10; bf16: 8, 7; E4m3: 4, 3; E5m2: 5, 2; }

/// An operand: bits and value of element `[mn][k]`.
pub type Matrix = Vec<Vec<(u32, f64)>>;

/// Numbers from 0.5 to 3.5 with two bits of mantissa: sums of their products are exact in f32.
fn draw<F: Float>(mn: usize, random: &mut u64) -> Matrix {
    let mut element = || {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let [sign, exponent, mantissa] = [*random >> 8 & 1, *random >> 16 & 1, *random >> 24 & 3];
        let biased = (1 << (F::EXPONENT_BITS - 1)) - 1 - (exponent as u32);
        let magnitude = (biased << 2 | mantissa as u32) << F::MANTISSA_BITS >> 2;
        let bits = (sign as u32) << (F::EXPONENT_BITS + F::MANTISSA_BITS) | magnitude;
        let value = (1.0 + mantissa as f64 / 4.0) / (1 << exponent) as f64;
        (bits, if sign == 1 { -value } else { value })
    };
    let k = STEPS * 32 / size_of::<F>();
    (0..mn).map(|_| (0..k).map(|_| element()).collect()).collect()
}

/// One launch: `STEPS` MMAs with one accumulator.
pub struct Case {
    pub a: Matrix,
    /// `None` if A is in registers.
    pub a_place: Option<Place>,
    pub b: Matrix,
    pub b_place: Place,
    pub b_start: u32,
    /// The initial accumulator, `[row][column]`.
    pub before: Vec<Vec<f32>>,
    pub accumulate: bool,
    /// Whether each MMA is its own group, one of which stays pending.
    pub rounds: bool,
    /// The words of the block's shared memory.
    pub shared: Vec<u32>,
}

impl Case {
    pub fn new<F: Float, A: Major<F>, B: Major<F>>(
        n: usize,
        (a_swizzle, b_swizzle): (Option<Swizzle>, Swizzle),
        (accumulate, rounds): (bool, bool),
    ) -> Case {
        let (size, k) = (size_of::<F>(), 32 / size_of::<F>());
        let mut random = 0x9e37_79b9_7f4a_7c15 ^ n as u64;
        let (a, b) = (draw::<F>(64, &mut random), draw::<F>(n, &mut random));
        let a_place = a_swizzle.map(|swizzle| Place::dense(A::TRANSPOSED, swizzle, 64, k, size));
        let b_place = Place::dense(B::TRANSPOSED, b_swizzle, n, k, size);
        // Memory outside of the operands is NaN in every type.
        let mut bytes = Vec::new();
        if let Some(place) = &a_place {
            place.write::<F>(&a, 0, &mut bytes);
        }
        let b_start = bytes.len().next_multiple_of(1024);
        b_place.write::<F>(&b, b_start, &mut bytes);
        bytes.resize(bytes.len().next_multiple_of(4), 0xff);
        let (words, _) = bytes.as_chunks();
        let shared = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
        let value = |m: usize, n: usize| if accumulate { (m * 3 + n) as f32 } else { f32::NAN };
        let before = (0..64).map(|m| (0..n).map(|n| value(m, n)).collect()).collect();
        let b_start = b_start as u32;
        Case { a, a_place, b, b_place, b_start, before, accumulate, rounds, shared }
    }

    /// Element `[row][column]` of the result.
    pub fn oracle(&self, row: usize, column: usize) -> f64 {
        let products = self.a[row].iter().zip(&self.b[column]).map(|((_, a), (_, b))| a * b);
        let before = if self.accumulate { self.before[row][column] } else { 0.0 };
        f64::from(before) + products.sum::<f64>()
    }

    /// The element if the accumulator is rounded to f16 after each MMA of `k` elements.
    pub fn oracle_in_f16(&self, row: usize, column: usize, k: usize) -> f64 {
        let before = if self.accumulate { f64::from(self.before[row][column]) } else { 0.0 };
        let pairs: Vec<f64> =
            self.a[row].iter().zip(&self.b[column]).map(|((_, a), (_, b))| a * b).collect();
        // The sums are exact in f32, so that they are rounded once.
        let add = |sum: f64, step: &[f64]| {
            f64::from(f16::from_f32((sum + step.iter().sum::<f64>()) as f32))
        };
        pairs.chunks(k).fold(before, add)
    }

    /// A's registers of an MMA: the figures "Register fragment layout for matrix A".
    pub fn fragment<F: Float>(&self, thread: usize, step: usize) -> FragmentA<F> {
        let packed = 4 / size_of::<F>();
        FragmentA::new(std::array::from_fn(|i| {
            let row = thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
            let k = step * 8 * packed + i / 2 * 4 * packed + thread % 4 * packed;
            let elements = self.a[row][k..k + packed].iter();
            elements.rev().fold(0, |word, (bits, _)| word << (32 / packed) | bits)
        }))
    }
}

impl Place {
    /// Writes an operand that starts at `start` of shared memory.
    fn write<F: Float>(&self, matrix: &Matrix, start: usize, bytes: &mut Vec<u8>) {
        let size = size_of::<F>();
        let step_k = 32 / size;
        for (mn, row) in matrix.iter().enumerate() {
            for (k, (bits, _)) in row.iter().enumerate() {
                let (step, k) = (k / step_k, k % step_k);
                let product = start + self.start(step, matrix.len(), step_k);
                let address = swizzled(product + self.canonical(mn, k, size), self.swizzle);
                bytes.resize(bytes.len().max(address + size), 0xff);
                bytes[address..address + size].copy_from_slice(&bits.to_le_bytes()[..size]);
            }
        }
    }
}
