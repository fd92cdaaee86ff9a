//! The outputs of a warpgroup while they are summed: registers.

use super::epilogue::{STRIP_COLUMNS, STRIP_REGS};
use super::tiles::ROW_BYTES;
use crate::tile::element::Operand16;
use cuda_std::prelude::*;
use cuda_std::wgmma::{Accumulator, InFlight, KMajor, MatrixDescriptor, Sum, SumOf};

/// Rows of a product.
const MMA_M: u32 = 64;

/// Bytes of a row that one product takes: 16 elements.
const MMA_K_BYTES: u32 = 32;

/// Accumulators of a warpgroup, one below the other. A warp has strips of 64 columns of 16 rows of
/// each.
pub trait Accumulators: Sized {
    /// Their rows.
    const ROWS: u32;
    /// Their columns.
    const COLUMNS: u32;
    /// Strips of a warp side by side.
    const STRIPS_ACROSS: u32 = Self::COLUMNS.div_ceil(STRIP_COLUMNS);
    /// Strips of a warp.
    const STRIPS: u32 = Self::ROWS / MMA_M * Self::STRIPS_ACROSS;
    /// The accumulators while products write them.
    type InFlight;

    /// Zeros, to which products can be added.
    fn start() -> Self::InFlight;

    /// Waits for all products.
    fn wait(acc: Self::InFlight) -> Self;

    /// Calls `f` for every strip of the warp, written out: with its number, and the thread's sums
    /// of it, register by register of an accumulator of 64 columns, of which
    /// [`strip_columns`](Accumulators::strip_columns) exist.
    fn for_each_strip(self, f: impl FnMut(u32, [f32; STRIP_REGS]));

    /// Columns of a strip: the last one across may have fewer.
    #[inline(always)]
    fn strip_columns(strip: u32) -> u32 {
        let [_, column] = Self::strip_origin(strip);
        STRIP_COLUMNS.min(Self::COLUMNS - column)
    }

    /// First row and column of a strip, from those of the warp's outputs on.
    #[inline(always)]
    fn strip_origin(strip: u32) -> [u32; 2] {
        [strip / Self::STRIPS_ACROSS * MMA_M, strip % Self::STRIPS_ACROSS * STRIP_COLUMNS]
    }
}

/// Accumulators that sum products of elements `E`.
pub trait Multiply<E>: Accumulators {
    /// Starts to add the products of a stage, in which the warpgroup's rows begin at `a` and `b`.
    ///
    /// # Safety
    /// 1. The stage is filled, and nothing overwrites it until the products are waited for.
    unsafe fn multiply(
        acc: &mut Self::InFlight,
        a: MatrixDescriptor<E, KMajor>,
        b: MatrixDescriptor<E, KMajor>,
    );
}

impl<const PRODUCTS: usize, const REGS: usize, T: Sum> Accumulators
    for [Accumulator<REGS, T>; PRODUCTS]
{
    const ROWS: u32 = MMA_M * PRODUCTS as u32;
    const COLUMNS: u32 = (T::COLUMNS * REGS) as u32;
    type InFlight = [InFlight<REGS, T>; PRODUCTS];

    #[inline(always)]
    #[track_caller]
    fn start() -> Self::InFlight {
        [(); PRODUCTS].map(|()| Accumulator::zero().start())
    }

    #[inline(always)]
    #[track_caller]
    fn wait(acc: Self::InFlight) -> Self {
        acc.map(InFlight::wait::<0>)
    }

    #[inline(always)]
    fn for_each_strip(self, mut f: impl FnMut(u32, [f32; STRIP_REGS])) {
        unroll!(product in 0..PRODUCTS, {
            let first = product as u32 * Self::STRIPS_ACROSS;
            product_strips(&self[product], |strip, sums| f(first + strip, sums));
        });
    }
}

impl<const PRODUCTS: usize, const REGS: usize, E: Operand16, T: SumOf<E>> Multiply<E>
    for [Accumulator<REGS, T>; PRODUCTS]
{
    #[inline(always)]
    #[track_caller]
    unsafe fn multiply(
        acc: &mut Self::InFlight,
        a: MatrixDescriptor<E, KMajor>,
        b: MatrixDescriptor<E, KMajor>,
    ) {
        unroll!(k in 0..4, {
            let (a, b) = (a.advance(k as u32 * MMA_K_BYTES), b.advance(k as u32 * MMA_K_BYTES));
            for product in 0..PRODUCTS {
                let a = a.advance(product as u32 * MMA_M * ROW_BYTES);
                // SAFETY: the caller's promise.
                unsafe { acc[product].mma(a, b, true) };
            }
        });
    }
}

/// Calls `f` for the warp's strips of one product.
#[inline(always)]
fn product_strips<const REGS: usize, T: Sum>(
    acc: &Accumulator<REGS, T>,
    mut f: impl FnMut(u32, [f32; STRIP_REGS]),
) {
    unroll!(strip in 0..4, {
        if strip < (REGS * T::COLUMNS).div_ceil(STRIP_COLUMNS as usize) {
            f(strip as u32, strip_sums(acc, strip));
        }
    });
}

/// The thread's sums of a strip of one product, zeros behind its last column.
#[inline(always)]
fn strip_sums<const REGS: usize, T: Sum>(
    acc: &Accumulator<REGS, T>,
    strip: usize,
) -> [f32; STRIP_REGS] {
    let mut sums = [0.0; STRIP_REGS];
    unroll!(pair in 0..16, {
        let at = STRIP_REGS * strip + 2 * pair;
        if at < REGS * T::PER_REGISTER {
            [sums[2 * pair], sums[2 * pair + 1]] = [acc.sum(at), acc.sum(at + 1)];
        }
    });
    sums
}
