//! Accumulators that the tensor cores may be writing.

use super::MAX_PENDING;
use super::accumulator::Accumulator;
use super::accumulator_type::{AccumulatorFor, AccumulatorType};
use super::descriptor::{Major, MatrixDescriptor};
use super::element::Element;
use core::marker::PhantomData;

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
#[cfg(not(target_arch = "nvptx64"))]
use simt::device::{OperandA, Wgmma};

/// An [`Accumulator`] that MMAs may be writing; [`InFlight::wait`] returns its values.
///
/// # Pipelining
/// To keep one group of MMAs pending while the next is issued, leave the accumulator in flight:
/// [`wait_group`](super::wait_group) waits until a stage's operands may be overwritten, and
/// [`InFlight::wait`] follows the loop. Each iteration executes a [`fence`](super::fence) or
/// [`Accumulator::start`] right before its MMAs.
///
/// Values stay in registers only if all indices are constants to LLVM. ptxas serialises the MMAs,
/// with a warning C75xx, if other instructions access their registers while they are pending; so
/// create a [`FragmentA`] when no MMA that reads one is pending (C7513).
///
/// # Numerics
/// Products are exact. The emulator adds the products of one instruction and D in f64 and rounds
/// once, to nearest, to f32 or f16. Tensor cores align and truncate in steps of k = 16, or 32 for
/// 8-bit elements, and round D after each step: see [`crate::mma::m16n8k16`]. So f16 accumulators
/// over k have an error of up to `k / 16` units in the last place.
#[must_use = "an accumulator in flight must be waited for"]
pub struct InFlight<const REGS: usize, T: AccumulatorType = f32> {
    #[cfg(target_arch = "nvptx64")]
    registers: [T::Register; REGS],
    #[cfg(not(target_arch = "nvptx64"))]
    registers: simt::device::Fragment,
    #[cfg(not(target_arch = "nvptx64"))]
    sum: PhantomData<T>,
}

/// A thread's fragment of an operand A of elements `E`, in registers: `[64, 16]` of 16-bit
/// elements, two per register, or `[64, 32]` of 8-bit elements, four per register, the lowest k in
/// the lowest bits.
///
/// Register `i` of thread `t` holds elements of row `t % 128 / 32 * 16 + t % 32 / 4 + i % 2 * 8`,
/// the first of them at k = `t % 4 * 2 + i / 2 * 8`, or `t % 4 * 4 + i / 2 * 16` of 8-bit elements.
///
/// MMAs read the registers until their group has been waited for. So a fragment is lent to them,
/// cannot be written or copied, and is dropped after that wait, which the emulator checks.
pub struct FragmentA<E> {
    #[cfg(target_arch = "nvptx64")]
    registers: [u32; 4],
    #[cfg(not(target_arch = "nvptx64"))]
    registers: simt::device::FragmentA,
    marker: PhantomData<E>,
}

impl<E: Element> FragmentA<E> {
    /// The fragment in these registers, which are computed before this call.
    #[inline(always)]
    #[track_caller]
    pub fn new(registers: [u32; 4]) -> Self {
        #[cfg(target_arch = "nvptx64")]
        let registers = {
            let [mut a0, mut a1, mut a2, mut a3] = registers;
            // SAFETY: a comment, no instruction; it keeps the compiler from computing the registers
            // later.
            unsafe {
                asm!("// {} {} {} {}", inout(reg32) a0, inout(reg32) a1, inout(reg32) a2,
                    inout(reg32) a3, options(nostack, preserves_flags));
            }
            [a0, a1, a2, a3]
        };
        #[cfg(not(target_arch = "nvptx64"))]
        let registers = simt::device::FragmentA::new(registers);
        FragmentA { registers, marker: PhantomData }
    }
}

impl<const REGS: usize, T: AccumulatorType> InFlight<REGS, T> {
    /// See [`Accumulator::start`].
    #[inline(always)]
    #[track_caller]
    pub(super) fn start(values: [T::Register; REGS]) -> Self {
        #[cfg(target_arch = "nvptx64")]
        {
            let mut registers = values;
            T::fence(&mut registers);
            InFlight { registers }
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            let unpack = |&register| (0..T::PER_REGISTER).map(move |i| T::unpack(register, i));
            let values: Vec<f32> = values.iter().flat_map(unpack).collect();
            let registers = simt::device::wgmma_fence(&values);
            InFlight { registers, sum: PhantomData }
        }
    }

    /// Issues `D = A * B + D`, or `D = A * B` if not `accumulate`, both operands in shared memory.
    #[doc = ptx!("wgmma.mma_async.sync.aligned")]
    ///
    /// # Safety
    /// 1. The operands that the descriptors name are inside the block's shared memory and
    ///    initialised; a proxy fence and a barrier follow what threads wrote there.
    /// 2. Nothing writes the operands until a [`wait_group`](super::wait_group) or
    ///    [`InFlight::wait`] has waited for the MMA's group.
    /// 3. [`commit`](super::commit) closes the MMA's group before this accumulator is waited for,
    ///    and it is waited for before it is dropped.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn mma<E: Element, A: Major<E>, B: Major<E>>(
        &mut self,
        a: MatrixDescriptor<E, A>,
        b: MatrixDescriptor<E, B>,
        accumulate: bool,
    ) where
        T: AccumulatorFor<E>,
    {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        unsafe {
            <T as AccumulatorFor<E>>::mma::<REGS, A, B>(
                &mut self.registers,
                a.bits(),
                b.bits(),
                accumulate,
            )
        }
        #[cfg(not(target_arch = "nvptx64"))]
        self.emulate::<E, B>(OperandA::Shared(a.bits()), A::TRANSPOSED, b, accumulate)
    }

    /// [`InFlight::mma`] with A in registers ("RS").
    #[doc = ptx!("wgmma.mma_async.sync.aligned")]
    ///
    /// # Safety
    /// 1. The requirements of [`InFlight::mma`], for B.
    /// 2. An [`Accumulator::start`] or a [`fence`](super::fence) is executed between
    ///    [`FragmentA::new`] and this call, which the emulator checks.
    /// 3. `a` is dropped after the MMA's group has been waited for.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn mma_rs<E: Element, B: Major<E>>(
        &mut self,
        a: &FragmentA<E>,
        b: MatrixDescriptor<E, B>,
        accumulate: bool,
    ) where
        T: AccumulatorFor<E>,
    {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        unsafe {
            let d = &mut self.registers;
            <T as AccumulatorFor<E>>::mma_rs::<REGS, B>(d, a.registers, b.bits(), accumulate)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        self.emulate::<E, B>(a.registers.operand(), false, b, accumulate)
    }

    /// Waits until at most `PENDING` of the newest groups are pending, and returns the accumulator.
    /// None of the pending groups may have an MMA of it, which the emulator checks.
    #[doc = ptx!("wgmma.wait_group.sync.aligned")]
    #[inline(always)]
    #[track_caller]
    pub fn wait<const PENDING: u32>(self) -> Accumulator<REGS, T> {
        const { assert!(PENDING <= MAX_PENDING) };
        #[cfg(target_arch = "nvptx64")]
        {
            let mut registers = self.registers;
            T::wait_group::<REGS, PENDING>(&mut registers);
            Accumulator::from_values(registers)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        {
            super::wait_group::<PENDING>();
            let mut values = vec![0.0; REGS * T::PER_REGISTER];
            simt::device::wgmma_read(&self.registers, &mut values);
            let register = |i| T::pack(|j| values[i * T::PER_REGISTER + j]);
            Accumulator::from_values(core::array::from_fn(register))
        }
    }

    /// The MMA on the emulator.
    #[cfg(not(target_arch = "nvptx64"))]
    #[track_caller]
    fn emulate<E: Element, B: Major<E>>(
        &mut self,
        a: OperandA,
        a_mn_major: bool,
        b: MatrixDescriptor<E, B>,
        accumulate: bool,
    ) {
        let mma = Wgmma {
            a_element: E::EMULATED,
            b_element: E::EMULATED,
            sum: T::EMULATED,
            a,
            b: b.bits(),
            a_mn_major,
            b_mn_major: B::TRANSPOSED,
            accumulate,
        };
        simt::device::wgmma(&mma, &mut self.registers);
    }
}
