//! Element types of accumulators.

use super::element::Element;
use crate::{F16x2, convert};
use half::f16;

#[cfg(target_arch = "nvptx64")]
use {super::descriptor::Major, crate::warp::stay_converged, core::arch::asm};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for half::f16 {}
}

/// Element type of an accumulator: `f32`, or `f16` for operands of `f16`, in half the registers.
pub trait AccumulatorType: Copy + sealed::Sealed {
    /// A register of an accumulator: one value, or two of adjacent columns.
    type Register: Copy;
    /// A register of zeros.
    const ZERO: Self::Register;
    /// Values per register.
    const PER_REGISTER: usize;
    /// Columns of an accumulator per register.
    const COLUMNS: usize = 2 * Self::PER_REGISTER;

    /// The register of `value(0)` and, if it holds two values, `value(1)`, rounded to nearest.
    fn pack(value: impl Fn(usize) -> f32) -> Self::Register;

    /// Value `i` of a register.
    fn unpack(register: Self::Register, i: usize) -> f32;

    /// The type in the emulator's types.
    #[cfg(not(target_arch = "nvptx64"))]
    const EMULATED: simt::device::AccumulatorType;

    /// `wgmma.fence`; the compiler moves no access of the registers across it.
    #[cfg(target_arch = "nvptx64")]
    fn fence<const REGS: usize>(registers: &mut [Self::Register; REGS]);

    /// `wgmma.wait_group`, likewise.
    #[cfg(target_arch = "nvptx64")]
    fn wait_group<const REGS: usize, const PENDING: u32>(registers: &mut [Self::Register; REGS]);
}

/// Element type of an accumulator for operands of elements `E`.
pub trait AccumulatorFor<E>: AccumulatorType {
    /// The instruction of [`InFlight::mma`](super::InFlight::mma).
    ///
    /// # Safety
    /// As there.
    #[cfg(target_arch = "nvptx64")]
    unsafe fn mma<const REGS: usize, A: Major<E>, B: Major<E>>(
        d: &mut [Self::Register; REGS],
        a: u64,
        b: u64,
        accumulate: bool,
    );

    /// The instruction of [`InFlight::mma_rs`](super::InFlight::mma_rs).
    ///
    /// # Safety
    /// As there.
    #[cfg(target_arch = "nvptx64")]
    unsafe fn mma_rs<const REGS: usize, B: Major<E>>(
        d: &mut [Self::Register; REGS],
        a: [u32; 4],
        b: u64,
        accumulate: bool,
    );
}

impl<E: Element> AccumulatorFor<E> for f32 {
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    unsafe fn mma<const REGS: usize, A: Major<E>, B: Major<E>>(
        d: &mut [f32; REGS],
        a: u64,
        b: u64,
        accumulate: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe { E::mma::<REGS, A, B>(d, a, b, accumulate) }
    }

    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    unsafe fn mma_rs<const REGS: usize, B: Major<E>>(
        d: &mut [f32; REGS],
        a: [u32; 4],
        b: u64,
        accumulate: bool,
    ) {
        // SAFETY: the caller's promise.
        unsafe { E::mma_rs::<REGS, B>(d, a, b, accumulate) }
    }
}

/// `$instruction` with all of `$registers` as in-out operands, so that the compiler moves no access
/// of them across it.
#[cfg(target_arch = "nvptx64")]
macro_rules! instruction_on {
    ($n:tt, [$($i:literal)*], ($registers:expr, $instruction:literal, $($operand:tt)*)) => {
        // SAFETY: it orders accesses of the registers, and writes none.
        unsafe {
            stay_converged();
            asm!(
                concat!($instruction, " //" $(, " {", $i, "}")*),
                $(inout(reg32) $registers[$i],)*
                $($operand)*
                options(nostack, preserves_flags)
            );
        }
    };
}

/// Accumulators of `$sum`, `$per_register` values in each `$register`.
macro_rules! sum {
    (
        $sum:ty, $emulated:ident, $register:ty = $zero:expr, $per_register:literal,
        |$value:ident| $pack:expr, |$from:ident, $i:ident| $unpack:expr
    ) => {
        impl AccumulatorType for $sum {
            type Register = $register;
            const ZERO: $register = $zero;
            const PER_REGISTER: usize = $per_register;
            #[cfg(not(target_arch = "nvptx64"))]
            const EMULATED: simt::device::AccumulatorType = simt::device::AccumulatorType::$emulated;

            #[inline(always)]
            fn pack($value: impl Fn(usize) -> f32) -> $register {
                $pack
            }

            #[inline(always)]
            fn unpack($from: $register, $i: usize) -> f32 {
                $unpack
            }

            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            fn fence<const REGS: usize>(registers: &mut [$register; REGS]) {
                match_registers!(REGS, instruction_on(registers, "wgmma.fence.sync.aligned;",));
            }

            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            fn wait_group<const REGS: usize, const PENDING: u32>(
                registers: &mut [$register; REGS],
            ) {
                match_registers!(REGS, instruction_on(
                    registers, "wgmma.wait_group.sync.aligned {pending};", pending = const PENDING,
                ));
            }
        }
    };
}

sum!(f32, F32, f32 = 0.0, 1, |value| value(0), |register, _i| register);
sum!(
    f16,
    F16,
    u32 = 0,
    2,
    |value| convert::f32_to_f16x2(value(0), value(1)).to_bits(),
    |register, i| {
        let pair = F16x2::from_bits(register);
        convert::f16_to_f32(if i == 0 { pair.lo() } else { pair.hi() })
    }
);
