//! The accumulators of a warpgroup, in registers.

use crate::gemm::config::wgmma::ROW_BYTES;
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

    /// The thread's values of a subtile, which is a constant at the call, in the register order of an
    /// accumulator of 64 columns; zeros past its last column.
    fn subtile(&self, subtile: u32) -> [f32; SUBTILE_REGS];

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
    fn subtile(&self, subtile: u32) -> [f32; SUBTILE_REGS] {
        let mma = (subtile / Self::SUBTILES_N) as usize;
        subtile_values(&self[mma], (subtile % Self::SUBTILES_N) as usize)
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

/// Accumulators in f32 to which partial sums of operands `E` are added, a stage at a time. A stage
/// has one or two parts along n: partial sums of two parts are in registers at the same time.
pub trait AddParts<E>: Accumulators {
    /// Parts of a stage.
    const NUM_PARTS: u32;
    /// Columns of a part.
    const PART_COLUMNS: u32 = Self::COLUMNS / Self::NUM_PARTS;
    /// The partial sums of a part while its MMAs are in flight.
    type Part;

    /// Accumulators of zeros.
    fn zero() -> Self;

    /// Issues the MMAs of a part, whose rows begin at `a` and `b`, and closes their group.
    ///
    /// # Safety
    /// 1. The stage is full, and nothing overwrites it until the MMAs are waited for.
    unsafe fn issue(a: MatrixDescriptor<E, KMajor>, b: MatrixDescriptor<E, KMajor>) -> Self::Part;

    /// Waits for all groups but the newest `PENDING`, calls `release`, and adds the partial sums of
    /// part `PART`, those of columns `64 * i ..` times `factors[i]`.
    fn add<const PART: usize, const PENDING: u32>(
        &mut self,
        part: Self::Part,
        factors: Option<[f32; MAX_SUBTILES_N]>,
        release: impl FnOnce(),
    );
}

/// [`AddParts`] for accumulators of that many registers, by parts of as many or half as many.
macro_rules! add_parts {
    ($($registers:literal by $part_registers:literal;)*) => {$(
        impl<E: WgmmaOperand> AddParts<E> for [Accumulator<$registers>; 1] {
            const NUM_PARTS: u32 = $registers / $part_registers;
            type Part = InFlight<$part_registers>;

            #[inline(always)]
            fn zero() -> Self {
                [Accumulator::zero()]
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn issue(
                a: MatrixDescriptor<E, KMajor>,
                b: MatrixDescriptor<E, KMajor>,
            ) -> Self::Part {
                let mut part = Accumulator::zero().start();
                unroll!(k in 0..4, {
                    let [a, b] = [a, b].map(|operand| operand.advance(k as u32 * MMA_K_BYTES));
                    // SAFETY: the caller's promise. The first MMA overwrites the zeros.
                    unsafe { part.mma(a, b, k > 0) };
                });
                wgmma::commit();
                part
            }

            #[inline(always)]
            #[track_caller]
            fn add<const PART: usize, const PENDING: u32>(
                &mut self,
                part: Self::Part,
                factors: Option<[f32; MAX_SUBTILES_N]>,
                release: impl FnOnce(),
            ) {
                let partial_sums = part.wait::<PENDING>().values();
                release();
                // An addition reads a register less than an FMA, while the tensor cores need the
                // register file too: 87 instead of 75 % of their peak.
                match factors {
                    None => self[0].for_each(|i, sum| {
                        if i / $part_registers == PART {
                            *sum += partial_sums[i % $part_registers];
                        }
                    }),
                    Some(factors) => self[0].for_each(|i, sum| {
                        if i / $part_registers == PART {
                            let factor = factors[i / SUBTILE_REGS];
                            *sum = math::fma(partial_sums[i % $part_registers], factor, *sum);
                        }
                    }),
                }
            }
        }
    )*};
}

add_parts! {
    32 by 32;
    64 by 64;
    96 by 48;
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
