//! Accumulators whose values can be read: no MMA is writing them.

use super::accumulator_type::AccumulatorType;
use super::in_flight::InFlight;

/// A thread's fragment of its warpgroup's `[64, T::COLUMNS * REGS]` accumulator, in registers.
///
/// Value `i` of thread `t` is element (`row(t, i)`, `column(t, i)`). In f32 it is register `i`, in
/// f16 a half of register `i / 2`. `REGS` is 4, 8, 16, 32, 36, 48 or 64, and in f32 also 72, 96 or
/// 128. Registers cannot be indexed by a variable: use [`Accumulator::for_each`] and
/// [`Accumulator::for_each_16_columns`], in which indices are constants, or pass constants to
/// [`Accumulator::sum`].
pub struct Accumulator<const REGS: usize, T: AccumulatorType = f32> {
    values: [T::Register; REGS],
}

/// Row of value `i` of thread `thread` in the accumulator.
#[inline(always)]
pub const fn row(thread: u32, i: u32) -> u32 {
    thread % 128 / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8
}

/// Column of value `i` of thread `thread` in the accumulator.
#[inline(always)]
pub const fn column(thread: u32, i: u32) -> u32 {
    i / 4 * 8 + thread % 4 * 2 + i % 2
}

/// [`Accumulator::for_each`], unrolled.
macro_rules! for_each {
    ($n:tt, [$($i:literal)*], ($f:ident, $values:expr)) => {{
        $($f($i, &mut $values[$i]);)*
    }};
}

/// [`Accumulator::for_each_16_columns`], unrolled.
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

impl<const REGS: usize, T: AccumulatorType> Accumulator<REGS, T> {
    /// An accumulator of zeros.
    #[inline(always)]
    pub fn zero() -> Self {
        Accumulator::from_values([T::ZERO; REGS])
    }

    /// The accumulator in these registers.
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

    /// The thread's value `i`, which must be a constant at the call.
    #[inline(always)]
    pub fn sum(&self, i: usize) -> f32 {
        T::unpack(self.values[i / T::PER_REGISTER], i % T::PER_REGISTER)
    }

    /// Calls `f` with the index and the value of each register, unrolled: the index is a constant
    /// in `f`. Keep `f` short.
    #[inline(always)]
    #[track_caller]
    pub fn for_each(&mut self, mut f: impl FnMut(usize, &mut T::Register)) {
        match_registers!(REGS, for_each(f, self.values))
    }

    /// Passes the registers to the tensor cores: they cannot be read until [`InFlight::wait`]. The
    /// thread's earlier writes to registers are ordered before the MMAs. CUTLASS
    /// `warpgroup_arrive`.
    #[doc = ptx!("wgmma.fence.sync.aligned")]
    #[inline(always)]
    #[track_caller]
    pub fn start(self) -> InFlight<REGS, T> {
        InFlight::start(self.values)
    }
}

impl<const REGS: usize> Accumulator<REGS> {
    /// Calls `f` for each 16 columns with their index and their eight registers, unrolled as
    /// [`Accumulator::for_each`]. Packed in pairs, the registers are the [`FragmentA`] of an MMA
    /// over these columns as k, and the four matrices of a `stmatrix`.
    ///
    /// [`FragmentA`]: super::FragmentA
    #[inline(always)]
    #[track_caller]
    pub fn for_each_16_columns(&self, mut f: impl FnMut(usize, [f32; 8])) {
        const { assert!(REGS >= 8, "an accumulator of 8 columns has no 16 columns") };
        match_registers!(REGS, for_each_16_columns(f, self.values))
    }

    /// Multiplies the thread's two rows, `t % 32 / 4` and `t % 32 / 4 + 8` of the warp's 16, by
    /// `factors`.
    #[inline(always)]
    pub fn scale_rows(&mut self, factors: [f32; 2]) {
        self.for_each(|i, value| *value *= factors[i / 2 % 2]);
    }
}

/// Rejects a number of registers that no MMA has.
const fn has_instruction(registers: usize, columns: usize) {
    assert!(registers * columns <= 256, "an MMA has at most 256 columns");
    macro_rules! nothing {
        ($n:tt, $registers:tt, ()) => {
            ()
        };
    }
    match_registers!(registers, nothing())
}
