//! Accumulators whose values can be read.

use super::in_flight::InFlight;
use super::sum::Sum;

/// A thread's part of a `[64, T::COLUMNS * REGS]` accumulator of its warpgroup, in registers.
///
/// Sum `i` of thread `t` is element (`row(t, i)`, `column(t, i)`): of f32 sums that is register
/// `i`, of f16 ones a half of register `i / 2`. `REGS` is 4, 8, 16, 32, 36, 48, 64, or of f32
/// 72, 96 or 128. No register can be indexed by a variable: use [`Accumulator::for_each`] and
/// [`Accumulator::for_each_16_columns`], in which indices are constants, or constant arguments of
/// [`Accumulator::sum`].
pub struct Accumulator<const REGS: usize, T: Sum = f32> {
    values: [T::Register; REGS],
}

/// Row of the accumulator that sum `i` of thread `thread` is in.
#[inline(always)]
pub const fn row(thread: u32, i: u32) -> u32 {
    thread % 128 / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8
}

/// Column of the accumulator that sum `i` of thread `thread` is in.
#[inline(always)]
pub const fn column(thread: u32, i: u32) -> u32 {
    i / 4 * 8 + thread % 4 * 2 + i % 2
}

/// [`Accumulator::for_each`], written out.
macro_rules! for_each {
    ($n:tt, [$($i:literal)*], ($f:ident, $values:expr)) => {{
        $($f($i, &mut $values[$i]);)*
    }};
}

/// [`Accumulator::for_each_16_columns`], written out.
macro_rules! for_each_16_columns {
    ($n:tt, [$($i:literal)*], ($f:ident, $values:expr)) => {{
        let v = &$values;
        $(if $i % 8 == 0 && $i + 7 < REGS {
            $f($i / 8, [
                v[$i], v[$i + 1], v[$i + 2], v[$i + 3], v[$i + 4], v[$i + 5], v[$i + 6], v[$i + 7],
            ]);
        })*
    }};
}

impl<const REGS: usize, T: Sum> Accumulator<REGS, T> {
    /// All zeros.
    #[inline(always)]
    pub fn zero() -> Self {
        Accumulator::from_values([T::ZERO; REGS])
    }

    /// The accumulator of these registers.
    #[inline(always)]
    pub fn from_values(values: [T::Register; REGS]) -> Self {
        const { has_instruction(REGS, T::COLUMNS) };
        Accumulator { values }
    }

    /// The thread's registers.
    #[inline(always)]
    pub fn values(self) -> [T::Register; REGS] {
        self.values
    }

    /// The thread's sum `i`, which is a constant where the function is called.
    #[inline(always)]
    pub fn sum(&self, i: usize) -> f32 {
        T::unpack(self.values[i / T::PER_REGISTER], i % T::PER_REGISTER)
    }

    /// Calls `f` with the number and the value of each register, written out: the number is a
    /// constant in `f`. Keep `f` short.
    #[inline(always)]
    #[track_caller]
    pub fn for_each(&mut self, mut f: impl FnMut(usize, &mut T::Register)) {
        match_registers!(REGS, for_each(f, self.values))
    }

    /// Hands the registers to the tensor cores: from here until [`InFlight::wait`] they cannot be
    /// read. What the thread wrote to registers before is ordered before the products.
    ///
    /// PTX `wgmma.fence.sync.aligned`.
    #[inline(always)]
    #[track_caller]
    pub fn start(self) -> InFlight<REGS, T> {
        InFlight::start(self.values)
    }
}

impl<const REGS: usize> Accumulator<REGS> {
    /// Calls `f` for every 16 columns with their number and their eight registers, written out as
    /// [`Accumulator::for_each`] is. Packed in pairs they are the [`FragmentA`] of a product whose
    /// k are these columns, and the four matrices of a `stmatrix`.
    ///
    /// [`FragmentA`]: super::FragmentA
    #[inline(always)]
    #[track_caller]
    pub fn for_each_16_columns(&self, mut f: impl FnMut(usize, [f32; 8])) {
        const { assert!(REGS >= 8, "an accumulator of 8 columns has no 16") };
        match_registers!(REGS, for_each_16_columns(f, self.values))
    }

    /// Multiplies the thread's two rows, `t % 32 / 4` and the one 8 below it in the warp's 16, by
    /// `factors`.
    #[inline(always)]
    pub fn scale_rows(&mut self, factors: [f32; 2]) {
        self.for_each(|i, value| *value *= factors[i / 2 % 2]);
    }
}

/// Refuses a number of registers that no product has.
const fn has_instruction(registers: usize, columns: usize) {
    assert!(registers * columns <= 256, "a product has at most 256 columns");
    macro_rules! nothing {
        ($n:tt, $registers:tt, ()) => {
            ()
        };
    }
    match_registers!(registers, nothing())
}
