//! Accumulators that the tensor cores are writing.

use super::MAX_PENDING;
use super::accumulator::Accumulator;
use super::descriptor::{Major, MatrixDescriptor};
use super::element::Element;
use super::sum::{Sum, SumOf};
use core::marker::PhantomData;

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
#[cfg(not(target_arch = "nvptx64"))]
use simt::device::{OperandA, Wgmma};

/// An [`Accumulator`] that products may be writing: its values come back by [`InFlight::wait`].
#[must_use = "an accumulator in flight has to be waited for"]
pub struct InFlight<const REGS: usize, T: Sum = f32> {
    #[cfg(target_arch = "nvptx64")]
    registers: [T::Register; REGS],
    #[cfg(not(target_arch = "nvptx64"))]
    registers: simt::device::Fragment,
    #[cfg(not(target_arch = "nvptx64"))]
    sum: PhantomData<T>,
}

/// A thread's part of an operand A of elements `E`, in registers: `[64, 16]` of 16-bit elements, two
/// in a register, or `[64, 32]` of 8-bit ones, four in a register; the lowest k in the lowest bits.
///
/// Register `i` of thread `t` holds elements of row `t % 128 / 32 * 16 + t % 32 / 4 + i % 2 * 8`,
/// the first of them at k = `t % 4 * 2 + i / 2 * 8`, or `t % 4 * 4 + i / 2 * 16` of 8-bit elements.
#[derive(Clone, Copy)]
pub struct FragmentA<E> {
    registers: [u32; 4],
    marker: PhantomData<E>,
}

impl<E: Element> FragmentA<E> {
    /// The fragment of these registers, all of them written where this stands.
    #[inline(always)]
    pub fn new(registers: [u32; 4]) -> Self {
        #[cfg(target_arch = "nvptx64")]
        let registers = {
            let [mut a0, mut a1, mut a2, mut a3] = registers;
            // SAFETY: no instruction; it keeps the compiler from computing the registers later.
            unsafe {
                asm!("// {} {} {} {}", inout(reg32) a0, inout(reg32) a1, inout(reg32) a2,
                    inout(reg32) a3, options(nostack, preserves_flags));
            }
            [a0, a1, a2, a3]
        };
        FragmentA { registers, marker: PhantomData }
    }
}

impl<const REGS: usize, T: Sum> InFlight<REGS, T> {
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
            let sums = |&register| (0..T::PER_REGISTER).map(move |i| T::unpack(register, i));
            let sums: Vec<f32> = values.iter().flat_map(sums).collect();
            let registers = simt::device::wgmma_fence(&sums);
            InFlight { registers, sum: PhantomData }
        }
    }

    /// Starts `D = A * B + D`, or `D = A * B` if not `accumulate`, both operands in shared memory.
    ///
    /// PTX `wgmma.mma_async.sync.aligned`.
    ///
    /// # Safety
    /// 1. The operands lie where the descriptors say, inside the block's shared memory, written; what
    ///    threads wrote is followed by a proxy fence and a barrier.
    /// 2. No one writes them until a [`wait_group`](super::wait_group) or [`InFlight::wait`] that
    ///    leaves no group of the product under way.
    /// 3. [`commit`](super::commit) closes the product's group before this accumulator is waited for,
    ///    and it is waited for before it is dropped.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn mma<E: Element, A: Major<E>, B: Major<E>>(
        &mut self,
        a: MatrixDescriptor<E, A>,
        b: MatrixDescriptor<E, B>,
        accumulate: bool,
    ) where
        T: SumOf<E>,
    {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        unsafe {
            <T as SumOf<E>>::mma::<REGS, A, B>(&mut self.registers, a.bits(), b.bits(), accumulate)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        self.emulate::<E, B>(OperandA::Shared(a.bits()), A::TRANSPOSED, b, accumulate)
    }

    /// As [`InFlight::mma`], with A in registers (the field's "RS").
    ///
    /// PTX `wgmma.mma_async.sync.aligned`.
    ///
    /// # Safety
    /// 1. What [`InFlight::mma`] asks, of B.
    /// 2. Between the making of `a` and this call stands an [`Accumulator::start`] or a
    ///    [`fence`](super::fence).
    #[inline(always)]
    #[track_caller]
    pub unsafe fn mma_rs<E: Element, B: Major<E>>(
        &mut self,
        a: FragmentA<E>,
        b: MatrixDescriptor<E, B>,
        accumulate: bool,
    ) where
        T: SumOf<E>,
    {
        #[cfg(target_arch = "nvptx64")]
        // SAFETY: the caller's promise.
        unsafe {
            let d = &mut self.registers;
            <T as SumOf<E>>::mma_rs::<REGS, B>(d, a.registers, b.bits(), accumulate)
        }
        #[cfg(not(target_arch = "nvptx64"))]
        self.emulate::<E, B>(OperandA::Registers(a.registers), false, b, accumulate)
    }

    /// Waits until at most `PENDING` of the newest groups are under way, none of them with a product
    /// of this accumulator, which the emulator checks, and gives its values.
    ///
    /// PTX `wgmma.wait_group.sync.aligned`.
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
            let mut sums = vec![0.0; REGS * T::PER_REGISTER];
            simt::device::wgmma_read(&self.registers, &mut sums);
            let register = |i| T::pack(|j| sums[i * T::PER_REGISTER + j]);
            Accumulator::from_values(core::array::from_fn(register))
        }
    }

    /// The product on the emulator.
    #[cfg(not(target_arch = "nvptx64"))]
    #[track_caller]
    fn emulate<E: Element, B: Major<E>>(
        &mut self,
        a: OperandA,
        a_mn_major: bool,
        b: MatrixDescriptor<E, B>,
        accumulate: bool,
    ) {
        let product = Wgmma {
            a_element: E::EMULATED,
            b_element: E::EMULATED,
            sum: T::EMULATED,
            a,
            b: b.bits(),
            a_mn_major,
            b_mn_major: B::TRANSPOSED,
            accumulate,
        };
        simt::device::wgmma(&product, &mut self.registers);
    }
}
