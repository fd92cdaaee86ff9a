//! The outputs of a warpgroup while they are summed: registers.

use super::epilogue::{OutElement, STRIP_COLUMNS, STRIP_ELEMS, WarpOutput, split_k};
use super::tiles::ROW_BYTES;
use crate::tile::element::Operand16;
use cuda_std::prelude::*;
use cuda_std::wgmma::{Accumulator, InFlight, KMajor, MatrixDescriptor};

/// Rows of a product.
const MMA_M: u32 = 64;

/// Bytes of a row that one product takes: 16 elements.
const MMA_K_BYTES: u32 = 32;

/// Accumulators of a warpgroup, one below the other.
pub trait Accumulators: Sized {
    /// Their rows.
    const ROWS: u32;
    /// Their columns.
    const COLUMNS: u32;
    /// Strips of a warp.
    const STRIPS: u32 = Self::ROWS / MMA_M * (Self::COLUMNS / STRIP_COLUMNS);
    /// The accumulators while products write them.
    type InFlight;

    /// Zeros, to which products can be added.
    fn start() -> Self::InFlight;

    /// Starts to add the products of a stage, in which the warpgroup's rows begin at `a` and `b`.
    ///
    /// # Safety
    /// 1. The stage is filled, and nothing overwrites it until the products are waited for.
    unsafe fn multiply<E: Operand16>(
        acc: &mut Self::InFlight,
        a: MatrixDescriptor<E, KMajor>,
        b: MatrixDescriptor<E, KMajor>,
    );

    /// Waits for all products.
    fn wait(acc: Self::InFlight) -> Self;

    /// Stores the warp's sums.
    ///
    /// # Safety
    /// 1. The whole warp calls this, converged.
    unsafe fn store<O: OutElement>(self, out: &mut WarpOutput<O>);

    /// Writes the warp's sums to `smem`, strip by strip.
    ///
    /// # Safety
    /// 1. The whole warp calls this; `smem` has room for its strips, and nobody else accesses it.
    unsafe fn lay_down(self, smem: Shared<f32>);
}

impl<const PRODUCTS: usize, const REGS: usize> Accumulators for [Accumulator<REGS>; PRODUCTS] {
    const ROWS: u32 = MMA_M * PRODUCTS as u32;
    const COLUMNS: u32 = 2 * REGS as u32;
    type InFlight = [InFlight<REGS>; PRODUCTS];

    #[inline(always)]
    #[track_caller]
    fn start() -> Self::InFlight {
        [(); PRODUCTS].map(|()| Accumulator::zero().start())
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn multiply<E: Operand16>(
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

    #[inline(always)]
    #[track_caller]
    fn wait(acc: Self::InFlight) -> Self {
        acc.map(InFlight::wait::<0>)
    }

    #[inline(always)]
    unsafe fn store<O: OutElement>(self, out: &mut WarpOutput<O>) {
        let sums = self.map(Accumulator::values);
        unroll!(product in 0..PRODUCTS, {
            // SAFETY: the caller's promise.
            unsafe { store_product(&sums[product], product as u32 * MMA_M, out) };
        });
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn lay_down(self, smem: Shared<f32>) {
        let sums = self.map(Accumulator::values);
        unroll!(product in 0..PRODUCTS, {
            let smem = smem.offset(product as u32 * Self::STRIPS / PRODUCTS as u32 * STRIP_ELEMS);
            // SAFETY: the caller's promise.
            unsafe { lay_down_product(&sums[product], smem) };
        });
    }
}

/// Stores the warp's sums of one product.
///
/// # Safety
/// 1. The whole warp calls this, converged.
#[inline(always)]
unsafe fn store_product<O: OutElement, const REGS: usize>(
    sums: &[f32; REGS],
    first_row: u32,
    out: &mut WarpOutput<O>,
) {
    unroll!(strip in 0..4, {
        if strip < REGS / 32 {
            // SAFETY: the caller's promise.
            unsafe { O::store_strip::<REGS, strip>(out, first_row, sums) };
        }
    });
}

/// Writes the warp's sums of one product to `smem`.
///
/// # Safety
/// As [`Accumulators::lay_down`].
#[inline(always)]
#[track_caller]
unsafe fn lay_down_product<const REGS: usize>(sums: &[f32; REGS], smem: Shared<f32>) {
    unroll!(strip in 0..4, {
        if strip < REGS / 32 {
            // SAFETY: the caller's promise.
            unsafe {
                split_k::lay_down::<REGS, strip>(smem.offset(strip as u32 * STRIP_ELEMS), sums)
            };
        }
    });
}
