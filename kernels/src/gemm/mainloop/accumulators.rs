//! The accumulators of a warpgroup, in registers.

use super::wgmma::Turns;
use crate::gemm::config::wgmma::{ROW_BYTES, WgmmaTile};
use crate::gemm::epilogue::wgmma::{SUBTILE_COLUMNS, SUBTILE_REGS};
use crate::tile::element::WgmmaOperand;
use cuda_std::prelude::*;
use cuda_std::wgmma::{
    self, Accumulator, AccumulatorFor, AccumulatorType, InFlight, KMajor, MatrixDescriptor,
};

/// Rows of an MMA.
pub const MMA_M: u32 = 64;

/// Most MMAs of a warpgroup along m.
pub const MAX_MMAS: usize = 2;

/// Bytes of a row of A or B that one MMA reads: 16 elements of 16 bits, 32 of 8.
const MMA_K_BYTES: u32 = 32;

/// Most subtiles of a warp along n.
pub const MAX_SUBTILES_N: usize = 4;

/// The accumulators of a warpgroup: one or several MMAs along m.
///
/// A warp owns 16 rows of each MMA. The epilogue takes these in subtiles of 16 x 64.
pub trait Accumulators: Sized {
    /// Rows of all MMAs.
    const ROWS: u32;
    /// Columns of an MMA.
    const COLUMNS: u32;
    /// The type of an accumulator.
    type Element;
    /// Subtiles of a warp along n.
    const SUBTILES_N: u32 = Self::COLUMNS.div_ceil(SUBTILE_COLUMNS);
    /// Subtiles of a warp.
    const NUM_SUBTILES: u32 = Self::ROWS / MMA_M * Self::SUBTILES_N;
    /// The accumulators while MMAs are in flight.
    type InFlight;

    /// Accumulators of zeros, to which MMAs can be issued.
    fn start() -> Self::InFlight;

    /// Waits for all MMAs.
    fn wait(acc: Self::InFlight) -> Self;

    /// Calls `f` for every subtile of the warp, unrolled: with its index, and the thread's values
    /// in the register order of an accumulator of 64 columns, of which
    /// [`subtile_columns`](Accumulators::subtile_columns) exist.
    fn for_each_subtile(self, f: impl FnMut(u32, [f32; SUBTILE_REGS]));

    /// Columns of a subtile: the last one along n may have fewer than 64.
    #[inline(always)]
    fn subtile_columns(subtile: u32) -> u32 {
        let [_, column] = Self::subtile_origin(subtile);
        SUBTILE_COLUMNS.min(Self::COLUMNS - column)
    }

    /// First row and column of a subtile, relative to the warp's outputs.
    #[inline(always)]
    fn subtile_origin(subtile: u32) -> [u32; 2] {
        [subtile / Self::SUBTILES_N * MMA_M, subtile % Self::SUBTILES_N * SUBTILE_COLUMNS]
    }
}

/// Accumulators of MMAs whose operands are `E`.
pub trait Multiply<E>: Accumulators {
    /// Issues the MMAs of a stage, in which the warpgroup's rows begin at `a` and `b`.
    ///
    /// # Safety
    /// 1. The stage is full, and nothing overwrites it until the MMAs are waited for.
    unsafe fn multiply(
        acc: &mut Self::InFlight,
        a: MatrixDescriptor<E, KMajor>,
        b: MatrixDescriptor<E, KMajor>,
    );
}

impl<const NUM_MMAS: usize, const REGS: usize, T: AccumulatorType> Accumulators
    for [Accumulator<REGS, T>; NUM_MMAS]
{
    const ROWS: u32 = MMA_M * NUM_MMAS as u32;
    const COLUMNS: u32 = (T::COLUMNS * REGS) as u32;
    type Element = T;
    type InFlight = [InFlight<REGS, T>; NUM_MMAS];

    #[inline(always)]
    #[track_caller]
    fn start() -> Self::InFlight {
        [(); NUM_MMAS].map(|()| Accumulator::zero().start())
    }

    #[inline(always)]
    #[track_caller]
    fn wait(acc: Self::InFlight) -> Self {
        acc.map(InFlight::wait::<0>)
    }

    #[inline(always)]
    fn for_each_subtile(self, mut f: impl FnMut(u32, [f32; SUBTILE_REGS])) {
        unroll!(mma in 0..NUM_MMAS, {
            let first = mma as u32 * Self::SUBTILES_N;
            mma_subtiles(&self[mma], |subtile, values| f(first + subtile, values));
        });
    }
}

impl<const NUM_MMAS: usize, const REGS: usize, E: WgmmaOperand, T: AccumulatorFor<E>> Multiply<E>
    for [Accumulator<REGS, T>; NUM_MMAS]
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
            for mma in 0..NUM_MMAS {
                let a = a.advance(mma as u32 * MMA_M * ROW_BYTES);
                // SAFETY: the caller's promise.
                unsafe { acc[mma].mma(a, b, true) };
            }
        });
    }
}

/// Accumulators in f32 to which the partial sums of a stage are added, of MMAs whose operands are
/// `E`.
pub trait AddStage<E>: Multiply<E> {
    /// Accumulators of zeros.
    fn zero() -> Self;

    /// Adds the products of a stage, in which the warpgroup's rows begin at `a` and `b`: those of
    /// columns `64 * i ..` times `factors[i]`. Takes a turn for every MMA along m, and calls
    /// `release` when the stage is read.
    ///
    /// # Safety
    /// 1. The stage is full, and stays so until `release` is called.
    unsafe fn add_stage<T: WgmmaTile>(
        &mut self,
        a: MatrixDescriptor<E, KMajor>,
        b: MatrixDescriptor<E, KMajor>,
        factors: [f32; MAX_SUBTILES_N],
        turns: Turns,
        release: impl FnOnce(),
    );
}

impl<const NUM_MMAS: usize, const REGS: usize, E: WgmmaOperand> AddStage<E>
    for [Accumulator<REGS>; NUM_MMAS]
{
    #[inline(always)]
    fn zero() -> Self {
        [(); NUM_MMAS].map(|()| Accumulator::zero())
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn add_stage<T: WgmmaTile>(
        &mut self,
        a: MatrixDescriptor<E, KMajor>,
        b: MatrixDescriptor<E, KMajor>,
        factors: [f32; MAX_SUBTILES_N],
        turns: Turns,
        release: impl FnOnce(),
    ) {
        // The MMAs take turns on one fresh accumulator: two would not fit in the registers.
        let mut release = Some(release);
        unroll!(mma in 0..2, {
            if mma < NUM_MMAS {
                let a = a.advance(mma as u32 * MMA_M * ROW_BYTES);
                turns.wait::<T>();
                let mut fresh = Accumulator::<REGS>::zero().start();
                // SAFETY: the caller's promise.
                unsafe {
                    multiply_fresh::<0, 3, REGS, E>(&mut fresh, a, b);
                    wgmma::commit();
                    multiply_fresh::<3, 4, REGS, E>(&mut fresh, a, b);
                }
                wgmma::commit();
                if T::NUM_CONSUMERS > 1 {
                    // The last MMA is in flight while the next warpgroup issues its own.
                    wgmma::wait_group::<1>();
                    turns.pass::<T>();
                }
                let partial_sums = fresh.wait::<0>().values();
                if mma + 1 == NUM_MMAS
                    && let Some(release) = release.take()
                {
                    release();
                }
                self[mma].for_each(|i, sum| {
                    *sum = math::fma(partial_sums[i], factors[i / SUBTILE_REGS], *sum);
                });
            }
        });
    }
}

/// Issues MMAs `FIRST .. END` of the four of a stage to an accumulator, whose values the first one
/// overwrites.
///
/// # Safety
/// As [`Multiply::multiply`].
#[inline(always)]
#[track_caller]
unsafe fn multiply_fresh<
    const FIRST: usize,
    const END: usize,
    const REGS: usize,
    E: WgmmaOperand,
>(
    acc: &mut InFlight<REGS>,
    a: MatrixDescriptor<E, KMajor>,
    b: MatrixDescriptor<E, KMajor>,
) {
    unroll!(k in 0..4, {
        if k >= FIRST && k < END {
            let (a, b) = (a.advance(k as u32 * MMA_K_BYTES), b.advance(k as u32 * MMA_K_BYTES));
            // SAFETY: the caller's promise.
            unsafe { acc.mma(a, b, k > 0) };
        }
    });
}

/// Calls `f` for the warp's subtiles of one MMA.
#[inline(always)]
fn mma_subtiles<const REGS: usize, T: AccumulatorType>(
    acc: &Accumulator<REGS, T>,
    mut f: impl FnMut(u32, [f32; SUBTILE_REGS]),
) {
    unroll!(subtile in 0..4, {
        if subtile < (REGS * T::COLUMNS).div_ceil(SUBTILE_COLUMNS as usize) {
            f(subtile as u32, subtile_values(acc, subtile));
        }
    });
}

/// The thread's values of a subtile of one MMA, zeros past its last column.
#[inline(always)]
fn subtile_values<const REGS: usize, T: AccumulatorType>(
    acc: &Accumulator<REGS, T>,
    subtile: usize,
) -> [f32; SUBTILE_REGS] {
    let mut values = [0.0; SUBTILE_REGS];
    unroll!(pair in 0..16, {
        let at = SUBTILE_REGS * subtile + 2 * pair;
        if at < REGS * T::PER_REGISTER {
            [values[2 * pair], values[2 * pair + 1]] = [acc.sum(at), acc.sum(at + 1)];
        }
    });
    values
}
